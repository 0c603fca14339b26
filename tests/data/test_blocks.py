from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.data import blocks
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.text import words
from tests.data import making
from tests.text import HARD

# Texts that often cause errors: control characters, surrogate pairs, right-to-left marks,
# half-width kana, all kinds of newlines, names of special tokens, very long lines.
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
    """Return a function that packs texts into a block with given settings.

    The function returns the ordinary tokens of the block, the block's counts, and the tokenizer.
    """
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
def test_packing_hostile_text_loses_no_token(pack, texts, nsp):
    tokens, stats, tokenizer = pack(texts, nsp=nsp)
    if not stats.left_out:
        expected = sorted(t for ids in tokenizer.encode_batch(texts) for t in ids)
        assert sorted(tokens.tolist()) == expected
    assert stats.tokens == len(tokens)
    assert stats.documents == len(texts)


@pytest.mark.parametrize(
    ("weight", "eval_fraction"), [(0.0001, 0.001), (0.25, 1 / 3), (1.001, 0.0), (12.75, 0.001)]
)
def test_an_epoch_takes_each_document_as_often_as_the_weight_says(weight, eval_fraction):
    number = 20_000
    a = [f"a{i}" for i in range(number)]
    b = [f"b{i}" for i in range(100)]
    cut = blocks.cut_into_blocks([(a, weight), (b, 1.0)], 128, eval_fraction, 5)
    times = {"train": Counter(), "eval": Counter()}
    numbers = {"train": [], "eval": []}
    for block in cut:
        numbers[block.split].append(block.number)
        assert {text[0] for text in block.texts} == {"ab"[block.corpus]}
        assert not times[block.split].keys() & set(block.texts)
        times[block.split].update(dict.fromkeys(block.texts, block.times))
    assert all(each == list(range(len(each))) for each in numbers.values())
    assert set(times["eval"].values()) <= {1} and not times["train"].keys() & times["eval"].keys()
    held_out = sum(text[0] == "a" for text in times["eval"])
    assert abs(held_out - number * eval_fraction) <= 1
    trained = [count for text, count in times["train"].items() if text[0] == "a"]
    assert abs(sum(trained) - weight * (number - held_out)) <= 1
    assert set(trained) <= {int(weight), int(weight) + 1}
