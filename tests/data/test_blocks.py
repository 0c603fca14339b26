from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.data import blocks
from bigbird_ja.text import corpus as corpus_lib
from bigbird_ja.text import tokenizer as tokenizer_lib
from bigbird_ja.text import words
from tests.data import making

# What breaks programs: controls, NULs, surrogate pairs, right-to-left marks, half-width kana,
# newlines of all kinds, markers in any order, the names of special pieces.
HOSTILE = st.one_of(
    st.text(max_size=60),
    st.text(st.characters(min_codepoint=0x3000, max_codepoint=0x9FFF), max_size=80),
    st.text(
        st.sampled_from("ｱｲｳﾞﾟー。「」『』（）！？\u200f\u202e\u200d\x00\x07\r\n\u2028 　😀👨"),
        max_size=60,
    ),
    st.sampled_from(
        [
            "_NEWLINE__START_ARTICLE_", "_START_PARAGRAPH_\n_START_ARTICLE_\nあ",
            "[SEP][CLS][MASK]", "<pad><s></s><unk>", "_START_SECTION_", "。" * 300, "\n\n\n",
            "あ" * 3000,
        ]
    ),
)  # fmt: skip


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.1, 1 / 3, 0.5])
def test_the_held_out_share_is_exact_and_spread(fraction):
    held = [i for i in range(10_000) if blocks.is_held_out(i, fraction, seed=5)]
    assert abs(len(held) - 10_000 * fraction) <= 1
    assert held[0] in (0, 1)
    assert not any(blocks.is_held_out(i, 0.0, 5) for i in range(100))


@pytest.fixture(scope="module")
def pack(tokenizer_path, sample_corpus):
    """`pack(texts, **settings)`: the tokens of a block's rows, its counts and the tokenizer."""
    tokenizer = tokenizer_lib.load(tokenizer_path)
    marker = words.ScriptMarker(tokenizer)
    special = tokenizer.special

    def packed(texts, **changes):
        spec = making.request(sample_corpus, tokenizer_path, "unused", **changes).spec
        block = blocks.Block("train", 0, tuple(texts))
        rows, stats = blocks.make_rows(block, tokenizer, marker, spec)
        assert stats.sequences == len(rows)
        tokens = rows["tokens"].ravel()
        return tokens[~np.isin(tokens, [special.pad, special.cls, special.sep])], stats, tokenizer

    return packed


@settings(max_examples=60, deadline=None)
@given(st.lists(HOSTILE, min_size=1, max_size=8), st.booleans())
def test_hostile_text_goes_through_without_a_loss(pack, texts, nsp):
    tokens, stats, tokenizer = pack(texts, nsp=nsp)
    if not stats.left_out:
        expected = sorted(t for ids in tokenizer.encode_batch(texts) for t in ids)
        assert sorted(tokens.tolist()) == expected
    assert stats.tokens == len(tokens)
    assert stats.documents == len(texts)


def test_a_document_of_ten_million_characters_on_one_line(pack):
    text = "吾輩は猫である。名前はまだ無い。" * 40_000
    tokens, stats, tokenizer = pack([text])
    assert tokens.tolist() == tokenizer.encode(text)
    assert len(tokens) / (stats.sequences * 128) > 0.97


def test_the_longest_real_documents_come_back_letter_for_letter(real_text_path, pack):
    for text in sorted(corpus_lib.open_corpus([real_text_path]).texts(), key=len)[-3:]:
        tokens, _, tokenizer = pack([text], seq_length=512)
        assert tokens.tolist() == tokenizer.encode(text)
