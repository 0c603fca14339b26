"""Wiki40b's layout is what its readers expect."""

from __future__ import annotations

from bigbird_ja.text import wiki40b
from bigbird_ja.text.wiki40b import ARTICLE, NEWLINE, PARAGRAPH, SECTION, Section
from tests.text import wiki40b_reader


def test_an_article_is_written_as_title_sections_and_paragraphs() -> None:
    sections = (
        Section("", ("藩である。",)),
        Section("略歴", ("一。", "二。")),
        Section("空の節", ()),
    )
    text = wiki40b.render("水口藩", sections)
    assert text == (
        f"\n{ARTICLE}\n水口藩\n{PARAGRAPH}\n藩である。\n{SECTION}\n略歴\n{PARAGRAPH}\n一。{NEWLINE}二。"
        f"\n{SECTION}\n空の節"
    )
    assert wiki40b_reader.parse(text) == ("水口藩", sections)
