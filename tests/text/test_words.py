"""Where words start, by script and by MeCab, in text and in tokens."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import corpus, tokenizer, words

has_mecab = importlib.util.find_spec("fugashi") is not None


def cut(text, offsets):
    ends = [*offsets[1:].tolist(), len(text)] if text else []
    return [text[a:b] for a, b in zip(offsets.tolist(), ends, strict=True)]


@pytest.mark.parametrize(
    "expected",
    [
        ["東京", "は", "日本", "の", "首都", "である", "。"],
        ["コーヒー", "を", "飲", "む"],
        ["らーめんと", "ラーメン", "が"],
        ["三ヶ月前", "の"],
        ["人々", "が"],
        ["3.14", "と", "1,000", "円"],
        ["１９９０", "年"],
        ["BigBird", "で", "TPU", "を"],
        ["A", "4", "判"],
        ["「", "えっ", "！", "？", "」"],
        ["▁New", "▁York", "の", "街"],
        ["か\u3099", "漢字"],
        ["👨\u200d", "👩", "家族"],
    ],
)
def test_script_boundaries(expected: list[str]) -> None:
    text = "".join(expected)
    assert cut(text, words.script_boundaries(text)) == expected


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
def test_mecab_boundaries(text: str, expected: list[str]) -> None:
    assert cut(text, words.mecab_boundaries(text)) == expected


def test_mecab_without_its_extra_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    words._mecab_parser.cache_clear()
    monkeypatch.setitem(sys.modules, "fugashi", None)
    with pytest.raises(BadInput, match=r"bigbird-ja\[words\]"):
        words.mecab_boundaries("a")
    words._mecab_parser.cache_clear()


def test_script_marks_of_tokens_agree_with_those_of_text(tokenizer_path, sample_corpus):
    tok = tokenizer.load(tokenizer_path)
    texts = list(corpus.open_corpus([sample_corpus]).texts())
    texts += [
        "",
        "ー",
        "コーヒーはーー",
        "a_NEWLINE__START_ARTICLE_東京",
        "😀\u200d😀 \0 巀巀",
        " 　 ",
    ]
    ids = tok.encode_arrays(texts)
    marker = words.word_marker("script", tok)
    assert marker([], []) == []
    total = differing = 0
    for text, x, starts in zip(texts, ids, marker(texts, ids), strict=True):
        assert starts.dtype == bool and len(starts) == len(x)
        by_text = words.starts_at(
            words.script_boundaries(tok.surface(text)), tok.token_offsets(text, x)
        )
        symbols = ~tok.is_text_piece[x]
        by_text |= symbols
        by_text[1:] |= symbols[:-1]
        total += len(x)
        differing += int((by_text != starts).sum())
    assert total > 50_000
    assert differing / total < 1e-4  # a piece such as "ヶ月" does not know what it follows


@pytest.mark.skipif(not has_mecab, reason="fugashi is not installed")
def test_mecab_marks_tokens(tokenizer_path):
    tok = tokenizer.load(tokenizer_path)
    texts = ["", "東京都は日本の首都である。_NEWLINE_次の巀辥山の文。", "😀 \0 巀巀"]
    ids = tok.encode_arrays(texts)
    marks = words.word_marker("mecab", tok)(texts, ids)
    assert [len(m) for m in marks] == [len(x) for x in ids]
    assert all(m[0] for m in marks[1:])
    newline = ids[1].tolist().index(tok.special.newline)
    assert marks[1][newline] and marks[1][newline + 1]
