"""The generated corpus: a function of seed and index, varied, with facts restated far away."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys

import pytest

from bigbird_ja.text import sample, sample_words, sentences, wiki40b
from bigbird_ja.text.corpus import open_corpus
from tests.text import wiki40b_reader


def test_an_article_depends_on_seed_and_index_alone() -> None:
    forward = list(sample.documents(20, seed=3))
    assert [sample.document(i, 3) for i in reversed(range(20))] == forward[::-1]
    assert list(sample.documents(5, seed=3, start=15)) == forward[15:]
    assert sample.document(0, 3) != sample.document(0, 4) != sample.document(1, 4)
    assert len({*forward}) == 20


def test_it_is_the_same_in_another_process() -> None:
    code = "from bigbird_ja.text import sample; print(sample.document(5, 3), end='')"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, encoding="utf-8",
        env={"PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": ":".join(sys.path)},
    ).stdout  # fmt: skip
    assert printed == sample.document(5, 3)


def test_lengths_vary_around_the_mean() -> None:
    lengths = [len(text) for text in sample.documents(600, seed=1)]
    assert 2500 < sum(lengths) / len(lengths) < 4500
    assert min(lengths) < 600
    assert max(lengths) > 15_000
    short = [len(text) for text in sample.documents(100, seed=1, mean_length=600)]
    assert 400 < sum(short) / len(short) < 1200


def test_articles_have_what_makes_japanese_hard() -> None:
    text = "".join(sample.documents(100, seed=2))
    for mark in "「」『』（）？！、。…ー":
        assert mark in text
    patterns = (
        r"\d\.\d", r"[０-９]．[０-９]", "！？", "「[^」]*『", "（『.*?』（", "[A-Z]{2}",
        "「[^」]*_NEWLINE_", r"\d,\d{3}", "元年",
    )  # fmt: skip
    for pattern in patterns:
        assert re.search(pattern, text), pattern
    assert not re.search(r"[{}]", text)


def test_articles_are_in_wiki40bs_layout() -> None:
    for text in sample.documents(50, seed=4):
        title, sections = wiki40b_reader.parse(text)
        assert title and len(sections) >= 2
        assert all(section.paragraphs for section in sections)
        assert wiki40b.render(title, sections) == text
        assert "".join(sentences.split(text)) == text


def test_articles_are_known_again_and_other_text_is_not() -> None:
    for mean_length in (250, 3000, 40_000):
        articles = sample.documents(60, seed=6, mean_length=mean_length)
        assert all(sample.is_generated(text.strip()) for text in articles)
    others = ["", "一", "吾輩は猫である。名前はまだ無い。" * 30]
    others.append("\n_START_ARTICLE_\n水口藩\n_START_PARAGRAPH_\n近江国にあった藩。藩庁は水口城。")
    assert not any(map(sample.is_generated, others))


@pytest.mark.nightly
def test_no_real_text_is_taken_for_generated(real_text_path: str) -> None:
    documents = itertools.islice(open_corpus([real_text_path]).documents(), 300)
    assert not any(sample.is_generated(document.text) for document in documents)


def test_facts_are_restated_near_and_far() -> None:
    distances = []
    names = set()
    for text in sample.documents(300, seed=5):
        for (a, b), (c, d) in sample.restated_facts(text):
            assert text[a:b] == text[c:d]
            assert 2 <= b - a <= 3 and set(text[a:b]) <= set(sample_words.FACT_LETTERS)
            assert text[a - 1] == text[c - 1] == "「"
            names.add(text[a:b])
            distances.append(c - a)
    assert len(distances) > 600
    assert min(distances) < 600
    assert max(distances) > 8000
    assert len(names) > 0.9 * len(distances) / 3
    assert sum(d > 2000 for d in distances) > 0.15 * len(distances)


def test_denser_facts_and_none() -> None:
    def count(facts: float) -> int:
        texts = sample.documents(50, seed=6, facts=facts)
        return sum(len(sample.restated_facts(text)) for text in texts)

    assert count(0) == 0
    assert count(8) > 4 * count(1) > 0


def test_restated_facts_of_other_text() -> None:
    text = "合言葉は「颯椿」。別号は「月」。愛馬は「颯椿」。合言葉は「颯椿」。別号は「雪」。"
    (pair,) = sample.restated_facts(text)
    assert [text[a:b] for a, b in pair] == ["颯椿", "颯椿"]
    assert pair[1][0] > text.index("愛馬")
    assert sample.restated_facts("") == []


def test_letters_of_names_are_distinct() -> None:
    letters = sample_words.FACT_LETTERS
    assert len(set(letters)) == len(letters)
    assert len(set(sample_words.FACT_KINDS)) == len(sample_words.FACT_KINDS)
