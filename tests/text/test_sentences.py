"""Sentence splitting: lossless for any string, and right for Japanese."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbird_ja.text import corpus, sentences

# Strings made of what the splitter looks at, and of anything else.
CHARACTERS = "。！？!?.．…‥「」『』（）()[]“”\"'’\n\r\u2028 　とは、aA1１\ud800\0\u200f"
PARTS = st.sampled_from([*CHARACTERS, *sentences.MARKERS]) | st.text(max_size=4)


@given(st.lists(PARTS, max_size=60).map("".join))
def test_joined_sentences_are_the_text(text):
    pieces = sentences.split(text)
    assert "".join(pieces) == text
    assert all(pieces)


@pytest.mark.parametrize(
    "expected",
    [
        ["一つ目。", "二つ目！", "三つ目？", "四つ目"],
        ["本当！？", "えっ!?", "はい。", "半角｡", "次"],
        ["まさか！！…", "そうか……。", "次。"],
        ["彼は「行くぞ。もう遅い！」と言った。", "次。"],
        ["「こんにちは。」", "彼女は答えた。"],
        ["「はい。」", "「いいえ。」", "終わり。"],
        ["（注。）", "次。"],
        ["彼は『「行く。」と言った。』と書いた。", "次。"],
        ["東京（旧名は江戸。武蔵国。）は首都である。", "次。"],
        ["円周率は3.14で、全角なら３．１４である。", "次。"],
        ["人口は1,234.5人。", "次。"],
        ["これは論文である．", "次の文である．"],
        ["１．概要を述べる。", "次。"],
        ["一行目\n", "二行目\r\n", "三行目"],
        ["「引用の中の\n改行。\n\n続き。」と言った。", "次。"],
        ["「一。_NEWLINE_二。」と言った。", "次。"],
        ["段落の終わり。_NEWLINE_", "次の段落。"],
        ["前。　", "字下げのあと。"],
        ["あっ！、と言った。", "次。"],
        ["He met Mr. Smith of the U.S. Army. ", "Then he left (at 3.15 p.m.). ", "End."],
        ["See https://example.com/a.b?c=d and e.g. this. ", "Next."],
        ["1. Introduction\n", "2. Method"],
        ["He said “Stop. Now.” and left. ", "Next."],
        ["\n_START_ARTICLE_\n", "題\n", "_START_PARAGRAPH_\n", "本文。", "次。"],
        ["閉じない「かっこ。", "次。", "その次。"],
        ["開かない」かっこ。", "次。"],
        ["「開いたまま。", "次。\n", "_START_PARAGRAPH_\n", "閉じる」。", "終わり。"],
    ],
)
def test_boundaries(expected):
    assert sentences.split("".join(expected)) == expected


def test_a_bracket_that_closes_too_late_is_a_stray_one():
    far = "「" + "文。" * sentences.MAX_BRACKET_LENGTH + "」と言った。"
    assert len(sentences.split(far)) >= sentences.MAX_BRACKET_LENGTH


class Counting(str):
    """Counts the characters of all that is cut out of it."""

    __slots__ = ("taken",)

    def __getitem__(self, key):
        result = super().__getitem__(key)
        self.taken = getattr(self, "taken", 0) + len(result)
        return result


UNITS = (
    "（|「」|「\n」|。|\n| \n|.|「あ。|_NEWLINE_| |」|a. |\u3000\n|\n_START_SECTION_"
    "|「_START_PARAGRAPH_」|。」|“a.” "
)


@pytest.mark.parametrize("unit", UNITS.split("|"))
def test_long_runs_are_read_in_linear_time(unit):
    text = Counting(unit * 20_000)
    assert "".join(sentences.split(text)) == text
    assert text.taken < 40 * len(text)


def test_real_text_loses_not_one_character(real_text_path):
    lengths = []
    for text in corpus.open_corpus([real_text_path]).texts():
        pieces = sentences.split(text)
        assert "".join(pieces) == text
        lengths += map(len, pieces)
    assert sum(lengths) > 10_000_000
    assert 20 < sum(lengths) / len(lengths) < 60
    assert max(lengths) < 5 * sentences.MAX_BRACKET_LENGTH
