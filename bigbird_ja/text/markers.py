"""The markers of Wiki40b's layout, and the mask that a user types."""

import re

# Wiki40b cuts an article into title, sections and paragraphs with these.
ARTICLE = "_START_ARTICLE_"
SECTION = "_START_SECTION_"
PARAGRAPH = "_START_PARAGRAPH_"
NEWLINE = "_NEWLINE_"
MARKERS = (ARTICLE, SECTION, PARAGRAPH, NEWLINE)
MASK = "[MASK]"  # the mask in a text that a person types

_START = re.compile(r"_START_(?:ARTICLE|SECTION|PARAGRAPH)_\n?")


def without_markers(text: str) -> str:
    """Take Wiki40b's markers out of a text; `NEWLINE` becomes the line break that it stands for."""
    return _START.sub("", text).replace(NEWLINE, "\n")
