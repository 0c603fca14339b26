from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.data import blocks
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import tokenizer as tokenizer_lib
from bigbird_ja.text import words
from bigbird_ja.text.corpus import Document
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


def test_blocks_depend_on_the_documents_alone_and_lose_none():
    texts = ["あ" * (1000 * (i % 300)) for i in range(60)]
    documents = [Document(text, "x", i) for i, text in enumerate(texts)]
    cut = list(blocks.cut_into_blocks([(documents, 1.0)], 4096, 0.1, 7))
    assert cut == list(blocks.cut_into_blocks([(iter(documents), 1.0)], 4096, 0.1, 7))
    assert sorted(t for b in cut for t in b.texts) == sorted(t for t in texts if t)
    assert {b.split for b in cut} == {"train", "eval"}
    assert [b.number for b in cut if b.split == "train"] == list(
        range(sum(b.split == "train" for b in cut))
    )


@pytest.fixture(scope="module")
def pack(tokenizer_path, sample_corpus):
    """`pack(texts, **settings)`: the rows and counts of a block, the spec and the tokenizer."""
    tokenizer = tokenizer_lib.load(tokenizer_path)
    marker = words.ScriptMarker(tokenizer)

    def packed(texts, **changes):
        spec = making.request(sample_corpus, tokenizer_path, "unused", **changes).spec
        block = blocks.Block("train", 0, tuple(texts))
        return *blocks.make_rows(block, tokenizer, marker, spec), spec, tokenizer

    return packed


@settings(max_examples=60, deadline=None)
@given(st.lists(HOSTILE, min_size=1, max_size=8), st.booleans())
def test_hostile_text_goes_through_without_a_loss(pack, texts, nsp):
    rows, stats, _, tokenizer = pack(texts, nsp=nsp)
    expected = sorted(t for ids in tokenizer.encode_batch(texts) for t in ids)
    special = tokenizer.special
    tokens = rows["tokens"][~np.isin(rows["tokens"], [special.pad, special.cls, special.sep])]
    if not stats.left_out:
        assert sorted(tokens.tolist()) == expected
    assert stats.tokens == len(tokens) and stats.sequences == len(rows)
    assert stats.documents == len(texts)


def test_a_document_of_ten_million_characters_on_one_line(pack):
    text = "吾輩は猫である。名前はまだ無い。" * 40_000
    rows, stats, _, tokenizer = pack([text])
    assert stats.tokens == len(tokenizer.encode(text)) and stats.left_out == 0
    assert (rows["tokens"] != 0).mean() > 0.99


def test_lone_surrogates_stop_with_one_line(pack):
    with pytest.raises(BadInput, match="surrogate"):
        pack(["あ\ud800い"])


def test_a_block_on_disk_is_whole_or_not_there(tmp_path, pack):
    rows, stats, spec, _ = pack(["吾輩は猫である。" * 50, "名前はまだ無い。" * 30])
    path, size = tmp_path / "a.block", spec.row_dtype.itemsize
    blocks.write_block(str(path), rows, stats)
    stored = blocks.read_block(str(path), size, verify=True)
    assert stored is not None and stored.stats == stats
    picked = np.array([0, len(rows) - 1])
    np.testing.assert_array_equal(stored.rows(picked, spec.row_dtype), rows[picked])
    data = path.read_bytes()
    for damaged in (data[:-1], data[:3], b"", data[:-5] + b"xxxxx"):
        path.write_bytes(damaged)
        assert blocks.read_block(str(path), size, verify=True) is None
