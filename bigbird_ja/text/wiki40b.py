"""Wiki40b's layout: markers that cut an article into title, sections and paragraphs.

    \\n_START_ARTICLE_\\nTITLE\\n_START_SECTION_\\nTITLE\\n_START_PARAGRAPH_\\nTEXT_NEWLINE_TEXT

Source: Guo et al. 2020, "Wiki-40B: Multilingual Language Model Dataset" (TFDS `wiki40b`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ARTICLE = "_START_ARTICLE_"
SECTION = "_START_SECTION_"
PARAGRAPH = "_START_PARAGRAPH_"
NEWLINE = "_NEWLINE_"
MARKERS: tuple[str, ...] = (ARTICLE, SECTION, PARAGRAPH, NEWLINE)


@dataclass(frozen=True)
class Section:
    """One section; the lead before the first heading has the title ""."""

    title: str
    paragraphs: tuple[str, ...]


def render(title: str, sections: Sequence[Section]) -> str:
    """An article in Wiki40b's layout."""
    parts = [f"\n{ARTICLE}\n{title}"]
    for section in sections:
        if section.title:
            parts.append(f"\n{SECTION}\n{section.title}")
        if section.paragraphs:
            parts.append(f"\n{PARAGRAPH}\n{NEWLINE.join(section.paragraphs)}")
    return "".join(parts)
