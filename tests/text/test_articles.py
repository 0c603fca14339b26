"""The generated corpus: a function of seed and index, varied, with facts restated far away."""

from __future__ import annotations

import hashlib
import re

from bigbird_ja.text import articles, sentences
from bigbird_ja.text.sentences import ARTICLE, NEWLINE, PARAGRAPH, SECTION


def test_a_seed_gives_the_same_bytes_in_every_version() -> None:
    digest = hashlib.sha256()
    digest.update("".join(articles.documents(50, seed=1)).encode())
    digest.update("".join(articles.documents(20, seed=-5, mean_length=600, facts=8)).encode())
    digest.update("".join(articles.documents(5, seed=2**63, mean_length=20_000, facts=0)).encode())
    assert digest.hexdigest() == "178e76b8e8238c546f5c9fbb1c612e5ec914778f0e14f6e96e3dd44aa8f08a33"


def test_articles_have_what_makes_japanese_hard() -> None:
    text = "".join(articles.documents(100, seed=2))
    for mark in "「」『』（）！？、。…ー":
        assert mark in text
    patterns = (
        r"\d\.\d", r"[０-９]．[０-９]", "！？", "「[^」]*『", "（『.*?』（", "[A-Z]{2}",
        "「[^」]*_NEWLINE_", r"\d,\d{3}", "元年",
    )  # fmt: skip
    for pattern in patterns:
        assert re.search(pattern, text), pattern
    assert not re.search(r"[{}]", text)


def test_articles_are_in_wiki40bs_layout() -> None:
    sections = [("", ["藩である。"]), ("略歴", ["一。", "二。"]), ("空の節", [])]
    assert articles.render("水口藩", sections) == (
        f"\n{ARTICLE}\n水口藩\n{PARAGRAPH}\n藩である。\n{SECTION}\n略歴\n{PARAGRAPH}\n一。{NEWLINE}二。"
        f"\n{SECTION}\n空の節"
    )
    layout = f"\n{ARTICLE}\n.+\n{PARAGRAPH}\n.+(\n{SECTION}\n.+\n{PARAGRAPH}\n.+)+"
    for text in articles.documents(50, seed=4):
        assert re.fullmatch(layout, text)
        assert "".join(sentences.split(text)) == text


def test_facts_are_restated_near_and_far() -> None:
    distances, names = [], set()
    for text in articles.documents(300, seed=5):
        for (a, b), (c, d) in articles.restated_facts(text):
            assert text[a - 1 : b] == text[c - 1 : d] and text[a - 1] == "「"
            assert 2 <= b - a <= 3 and set(text[a:b]) <= set(articles.WORDS["fact_letters"])
            names.add(text[a:b])
            distances.append(c - a)
    assert len(distances) > 600 and len(names) > 0.9 * len(distances) / 3
    assert min(distances) < 600 and max(distances) > 8000
    assert sum(d > 2000 for d in distances) > 0.15 * len(distances)
