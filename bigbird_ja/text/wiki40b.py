"""Wiki40b's layout: markers that cut an article into title, sections and paragraphs.

    \\n_START_ARTICLE_\\nTITLE\\n_START_SECTION_\\nTITLE\\n_START_PARAGRAPH_\\nTEXT_NEWLINE_TEXT

Nothing is lost: `join(blocks(text)) == text` for any string, the markers in any order or absent.
Source: Guo et al. 2020, "Wiki-40B: Multilingual Language Model Dataset" (TFDS `wiki40b`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ARTICLE = "_START_ARTICLE_"
SECTION = "_START_SECTION_"
PARAGRAPH = "_START_PARAGRAPH_"
NEWLINE = "_NEWLINE_"
MARKERS: tuple[str, ...] = (ARTICLE, SECTION, PARAGRAPH, NEWLINE)

_BLOCK_MARKER = re.compile(f"({ARTICLE}|{SECTION}|{PARAGRAPH})")


@dataclass(frozen=True)
class Block:
    """A marker and what follows it, up to the next one, white space included.

    `marker` is empty for text before the first marker.
    """

    marker: str
    text: str


@dataclass(frozen=True)
class Section:
    """One section; the lead before the first heading has the title ""."""

    title: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True)
class Article:
    """What a text says, as a reader sees it; `blocks` keeps every character."""

    title: str
    sections: tuple[Section, ...]
    blocks: tuple[Block, ...]


def blocks(text: str) -> list[Block]:
    """Cuts `text` at the block markers, losing nothing: `join` is the inverse."""
    pieces = _BLOCK_MARKER.split(text)
    found = [Block("", pieces[0])] if pieces[0] else []
    found += [Block(pieces[i], pieces[i + 1]) for i in range(1, len(pieces), 2)]
    return found


def join(parts: Iterable[Block]) -> str:
    """The text that `parts` were cut from."""
    return "".join(block.marker + block.text for block in parts)


def parse(text: str) -> Article:
    """Reads a text as title, sections and paragraphs.

    Tolerant: text without markers is an article without a title and with one paragraph per line; a
    second article marker starts a new section of that title; a paragraph before any heading
    belongs to the lead.
    """
    found = blocks(text)
    title: str | None = None
    sections: list[tuple[str, list[str]]] = []
    for block in found:
        content = block.text.strip()
        if block.marker == ARTICLE and title is None and not sections:
            title = content
        elif block.marker in (ARTICLE, SECTION):
            sections.append((content, []))
        elif content:
            if not sections:
                sections.append(("", []))
            split_at = NEWLINE if block.marker == PARAGRAPH else "\n"
            sections[-1][1].extend(p.strip() for p in content.split(split_at) if p.strip())
    return Article(
        title or "", tuple(Section(name, tuple(body)) for name, body in sections), tuple(found)
    )


def render(title: str, sections: Sequence[Section]) -> str:
    """An article in Wiki40b's layout; `parse` gives back the same title and sections."""
    parts = [f"\n{ARTICLE}\n{title}"]
    for section in sections:
        if section.title:
            parts.append(f"\n{SECTION}\n{section.title}")
        if section.paragraphs:
            parts.append(f"\n{PARAGRAPH}\n{NEWLINE.join(section.paragraphs)}")
    return "".join(parts)
