"""Starts of words in text and in tokens, by writing system (kanji, kana, ...) and by MeCab."""

import importlib.util
import sys

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.text import corpus, words
from tests.text import BOUNDARIES, HARD

has_mecab = importlib.util.find_spec("fugashi") is not None


def cut(text, offsets):
    ends = [*offsets[1:].tolist(), len(text)] if text else []
    return [text[a:b] for a, b in zip(offsets.tolist(), ends, strict=True)]


@pytest.mark.parametrize("expected", BOUNDARIES["words"])
def test_script_boundaries(expected):
    text = "".join(expected)
    assert cut(text, words.find_script_boundaries(text)) == expected


@pytest.mark.skipif(not has_mecab, reason="fugashi is not installed")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("すもももももももものうち", ["すもも", "も", "もも", "も", "もも", "の", "うち"]),
        ("▁今日は▁良い\n天気\0です。", ["▁今日", "は", "▁良い", "\n天気", "\0です", "。"]),
        ("　", ["　"]),
        ("", []),
    ],
)
def test_mecab_boundaries(text, expected):
    assert cut(text, words.find_mecab_boundaries(text)) == expected


def test_mecab_without_its_extra_is_explained(monkeypatch):
    words._load_mecab.cache_clear()
    monkeypatch.setitem(sys.modules, "fugashi", None)
    with pytest.raises(BadInput, match=r"bigbird-ja\[words\]"):
        words.find_mecab_boundaries("a")
    words._load_mecab.cache_clear()


def test_word_starts_by_token_table_and_by_text_agree(tokenizer_path, sample_corpus, monkeypatch):
    monkeypatch.setattr(words, "_load_mecab", lambda: None)
    monkeypatch.setattr(words, "find_mecab_boundaries", words.find_script_boundaries)
    tok = read_tokenizer(tokenizer_path)
    texts = [*corpus.open_corpus([sample_corpus]).texts(), *HARD, "😀\u200d😀 \0 巀巀"]
    ids = tok.encode_arrays(texts)
    by_token, by_text = (
        words.make_word_marker(kind, tok)(texts, ids) for kind in ("script", "mecab")
    )
    assert [(len(x), x.dtype) for x in by_token] == [(len(x), bool) for x in ids]
    total = sum(map(len, ids))
    differing = sum(int((a != b).sum()) for a, b in zip(by_token, by_text, strict=True))
    assert total > 50_000
    # The word start of a token such as "ヶ月" depends on the text before it. A table of tokens
    # cannot express that.
    assert differing / total < 1e-4
    assert words.make_word_marker("script", tok)([], []) == []
