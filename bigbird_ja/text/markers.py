"""Markers of Wiki40b's layout, and the text that stands for a mask in a user's input."""

import re

# Separators of an article's title, sections and paragraphs.
ARTICLE = "_START_ARTICLE_"
SECTION = "_START_SECTION_"
PARAGRAPH = "_START_PARAGRAPH_"
NEWLINE = "_NEWLINE_"
MARKERS = (ARTICLE, SECTION, PARAGRAPH, NEWLINE)
MASK = "[MASK]"

_START = re.compile(r"_START_(?:ARTICLE|SECTION|PARAGRAPH)_\n?")


def remove_markers(text: str) -> str:
    """Remove Wiki40b's markers from a text, and replace `NEWLINE` by a line break."""
    return _START.sub("", text).replace(NEWLINE, "\n")
