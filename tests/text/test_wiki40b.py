"""Wiki40b's markers: nothing is lost, in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bigbird_ja.text import wiki40b
from bigbird_ja.text.wiki40b import ARTICLE, NEWLINE, PARAGRAPH, SECTION, Section

texts = st.lists(
    st.one_of(st.sampled_from([*wiki40b.MARKERS, "\n", "_START_", "東京。"]), st.text(max_size=5)),
    max_size=20,
).map("".join)


@given(texts)
def test_joined_blocks_are_the_text(text: str) -> None:
    assert wiki40b.join(wiki40b.blocks(text)) == text
    assert wiki40b.join(wiki40b.parse(text).blocks) == text


def test_an_article_is_parsed_into_title_sections_and_paragraphs() -> None:
    text = (
        f"\n{ARTICLE}\n水口藩\n{PARAGRAPH}\n藩である。\n{SECTION}\n略歴\n{PARAGRAPH}\n一。{NEWLINE}二。"
        f"\n{SECTION}\n空の節"
    )
    article = wiki40b.parse(text)
    assert article.title == "水口藩"
    assert article.sections == (
        Section("", ("藩である。",)),
        Section("略歴", ("一。", "二。")),
        Section("空の節", ()),
    )
    assert wiki40b.render(article.title, article.sections) == text


def test_markers_in_the_wrong_order_still_parse() -> None:
    article = wiki40b.parse(f"{PARAGRAPH}先に段落{SECTION}節{ARTICLE}あとから題{PARAGRAPH}本文")
    assert article.title == ""
    assert [s.title for s in article.sections] == ["", "節", "あとから題"]
    assert article.sections[2].paragraphs == ("本文",)


def test_text_without_markers_is_one_section() -> None:
    assert wiki40b.parse("一行目\n\n二行目").sections == (Section("", ("一行目", "二行目")),)
    assert wiki40b.parse("").sections == ()
