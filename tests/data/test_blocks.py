import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.data import blocks
from bigbird_ja.text import words
from bigbird_ja.text.load import read_tokenizer
from tests.data import making
from tests.text import HARD

# What breaks programs: controls, NULs, surrogate pairs, right-to-left marks, half-width kana,
# newlines of all kinds, markers in any order, the names of special pieces, long runs.
ODD_CHARACTERS = "ｱｲｳﾞﾟー。「」『』（）！？\u200f\u202e\u200d\x00\x07\r\n\u2028 　😀👨"
ODD_TEXTS = ("[SEP][CLS][MASK]", "<pad><s></s><unk>", "_START_SECTION_", "一文。" * 20_000)
HOSTILE = (
    st.text(max_size=60)
    | st.text(st.characters(min_codepoint=0x3000, max_codepoint=0x9FFF), max_size=80)
    | st.text(st.sampled_from(ODD_CHARACTERS), max_size=60)
    | st.sampled_from([*HARD, *ODD_TEXTS])
)


@pytest.fixture(scope="module")
def pack(tokenizer_path, sample_corpus):
    """`pack(texts, **settings)`: the tokens of a block's rows, its counts and the tokenizer."""
    tokenizer = read_tokenizer(tokenizer_path)
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
