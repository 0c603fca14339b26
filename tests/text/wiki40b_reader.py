"""Reads Wiki40b's layout back, to see that what was written in it says what it should."""

from __future__ import annotations

import re

from bigbird_ja.text.wiki40b import ARTICLE, NEWLINE, PARAGRAPH, SECTION, Section

_MARKERS = re.compile(f"({ARTICLE}|{SECTION}|{PARAGRAPH})")


def parse(text: str) -> tuple[str, tuple[Section, ...]]:
    """Title and sections of an article that begins with its marker; the lead has the title ""."""
    before, *parts = _MARKERS.split(text)
    assert not before.strip()
    title, sections = "", []
    for marker, content in zip(parts[::2], map(str.strip, parts[1::2]), strict=True):
        if marker == ARTICLE:
            assert not title and not sections
            title = content
        elif marker == SECTION:
            sections.append((content, ()))
        else:
            name = sections.pop()[0] if sections and not sections[-1][1] else ""
            sections.append((name, tuple(content.split(NEWLINE))))
    return title, tuple(Section(*section) for section in sections)
