"""Sentence splitting is lossless for any string, and finds the sentences of Japanese text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.text.markers import MARKERS
from bigbird_ja.text.sentences import MAX_BRACKET_LENGTH, split_sentences
from tests.text import BOUNDARIES

# Characters that the splitter treats specially. The generated strings also contain others.
CHARACTERS = "。！？!?.．…‥「」『』（）()[]“”\"'’\n\r\u2028 　とは、aA1１\ud800\0\u200f"
PARTS = st.sampled_from([*CHARACTERS, *MARKERS]) | st.text(max_size=4)


@settings(max_examples=50)
@given(st.lists(PARTS, max_size=60).map("".join))
def test_joined_sentences_are_the_text(text):
    sentences = split_sentences(text)
    assert "".join(sentences) == text
    assert all(sentences)


@pytest.mark.parametrize("expected", BOUNDARIES["sentences"])
def test_sentence_boundaries(expected):
    assert split_sentences("".join(expected)) == expected


def test_a_bracket_that_closes_too_late_is_unmatched():
    far = "「" + "文。" * MAX_BRACKET_LENGTH + "」と言った。"
    assert len(split_sentences(far)) >= MAX_BRACKET_LENGTH


class Counting(str):
    """String that counts the characters of all its slices."""

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
    assert "".join(split_sentences(text)) == text
    assert text.taken < 40 * len(text)
