"""Text of other languages: words without spaces between them, and all scripts without loss."""

import itertools
import types
import unicodedata

import numpy as np
import pytest

from bigbird_ja.text import words
from bigbird_ja.text.sentences import split_sentences
from bigbird_ja.text.tokenizer import SentencePieceTokenizer
from testkit.languages import sentences_of
from tests.text import write
from tests.text.test_model_proto import train

HARD = (
    "النَّصُّ العربيّ يُقرأ من اليمين إلى اليسار، أليس كذلك؟ نعم.",
    "שָׁלוֹם עוֹלָם! זהו טקסט בעברית (עם English בתוכו).",
    "हिन्दी में क्‍ष और ज्ञ संयुक्ताक्षर हैं। दूसरा वाक्य।",
    "ภาษาไทยเขียนติดกันโดยไม่เว้นวรรคระหว่างคำ ๑๒๓",
    "ພາສາລາວ ភាសាខ្មែរ។ မြန်မာဘာသာ။",
    "👨‍👩‍👧 ❤️ 🇯🇵 👍🏽 e\u0301 o\u0302\u0323",
    "Größe, naïve, Київ, Việt Nam, 한국어 조사가",
)


@pytest.fixture(scope="module", params=["zh", "en"])
def language(request, tmp_path_factory):
    """Return a language, a text in it, and a tokenizer that is trained on this text."""
    text = "\n".join(sentences_of(request.param, 600))
    path = write(tmp_path_factory.mktemp("text") / "a.txt", text.encode())
    model = train(path, vocab_size=300, character_coverage=1.0, hard_vocab_limit=False)
    return request.param, text, SentencePieceTokenizer(model)


def test_long_runs_without_spaces_are_divided_at_tokens(language):
    name, text, tokenizer = language
    assert not tokenizer.is_japanese
    (ids,) = tokenizer.encode_arrays([text])
    (starts,) = words.make_word_marker("script", tokenizer)([text], [ids])
    surface, offsets = tokenizer.spell_with_offsets(text, ids)
    units = [
        surface[a:b].strip("▁")
        for a, b in itertools.pairwise([*offsets[starts].tolist(), len(surface)])
    ]
    if name == "en":
        assert set(units) == set("".join(c if c.isalpha() else f" {c} " for c in text).split())
    else:
        assert max(map(len, units)) <= max(4, *(len(t) for t in tokenizer.tokens[11:]))
        assert np.mean([len(unit) for unit in units]) < 4 < max(map(len, text.split("，")))


def mark(tokens, is_japanese):
    """Divide the text of these tokens into words. The vocabulary contains only these tokens."""
    kinds = types.SimpleNamespace(
        tokens=tokens,
        vocab_size=len(tokens),
        is_text_token=np.ones(len(tokens), bool),
        is_japanese=is_japanese,
        characters=np.array([len(t) for t in tokens]),
        continues_word=None,
        has_partial_characters=False,
    )
    ids = np.arange(len(tokens))
    (starts,) = words.make_word_marker("script", kinds)([""], [ids])
    heads = [*np.flatnonzero(starts), len(tokens)]
    return ["".join(tokens[a:b]) for a, b in itertools.pairwise(heads)]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["我们", "在", "北京", "大学"], ["我们", "在", "北京", "大学"]),
        # Runs of up to four Chinese characters are not divided.
        (["北京", "大学", "。", "我", "们"], ["北京大学", "。", "我们"]),
        (["ภาษา", "ไทย", "▁", "ไม่", "เว้น", "วรรค"], ["ภาษาไทย", "▁ไม่เว้นวรรค"]),
        (["ภาษา", "ไทย", "เขียน", "ติดกัน"], ["ภาษา", "ไทย", "เขียน", "ติดกัน"]),
        (["▁inter", "national", "ization"], ["▁internationalization"]),
        # Kanji next to kana are not divided, even by a tokenizer for a language without kana.
        (["機械", "学習", "理論", "は"], ["機械学習理論", "は"]),
        (["機械", "学習", "理論"], ["機械", "学習", "理論"]),
    ],
)
def test_a_run_longer_than_a_word_can_be_is_divided(tokens, expected):
    assert mark(tokens, is_japanese=False) == expected
    if "は" not in tokens and "北京" not in tokens:
        return
    assert mark(tokens, is_japanese=True) == mark(tokens, False) or len(expected) > 2


def test_japanese_is_not_divided():
    assert mark(["機械", "学習", "理論"], is_japanese=True) == ["機械学習理論"]


def test_no_character_of_any_script_is_lost(tmp_path):
    path = write(tmp_path / "a.txt", "\n".join(HARD * 30).encode())
    tokenizer = SentencePieceTokenizer(
        train(path, vocab_size=330, character_coverage=1.0, hard_vocab_limit=False)
    )
    marker = words.make_word_marker("script", tokenizer)
    for text in HARD:
        assert "".join(split_sentences(text)) == text
        (ids,) = tokenizer.encode_arrays([text])
        surface, offsets = tokenizer.spell_with_offsets(text, ids)
        assert "".join(tokenizer.written[i] for i in ids) == surface
        assert unicodedata.normalize("NFKC", surface[1:].replace("▁", " ")) == (
            unicodedata.normalize("NFKC", text)
        )
        (starts,) = marker([text], [ids])
        assert starts[0] and (np.diff(offsets) >= 0).all()


def test_sentences_end_at_the_marks_of_other_scripts():
    assert split_sentences("أليس كذلك؟ نعم.") == ["أليس كذلك؟ ", "نعم."]
    assert split_sentences("यह एक वाक्य है। दूसरा।") == ["यह एक वाक्य है। ", "दूसरा।"]
    assert split_sentences("ភាសាខ្មែរ។ ពីរ។") == ["ភាសាខ្មែរ។ ", "ពីរ។"]
