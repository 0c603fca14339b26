from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.data import packing, pair_packing
from bigbird_ja.data.packing import Piece

LENGTHS = st.lists(
    st.one_of(st.integers(0, 40), st.integers(0, 400), st.integers(2000, 3000)), max_size=60
)


def covered(sequences, lengths):
    """Every token of every document, once."""
    seen = [np.zeros(length, int) for length in lengths]
    for sequence in sequences:
        for piece in sequence:
            assert piece.start < piece.end
            seen[piece.document][piece.start : piece.end] += 1
    return all((tokens == 1).all() for tokens in seen)


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(8, 300))
def test_every_token_is_in_exactly_one_piece_and_sequences_are_not_too_long(lengths, seq_length):
    sequences = packing.pack(lengths, seq_length)
    assert covered(sequences, lengths)
    for sequence in sequences:
        assert sequence and 1 + sum(piece.cost for piece in sequence) <= seq_length
        assert sequence == sorted(sequence, key=lambda p: (p.document, p.start))


@pytest.mark.parametrize(
    "lengths",
    [
        [2500] * 200,  # more than half a sequence each: no two fit together
        [1500] * 300,
        [4094] * 50 + [1] * 50,
        np.random.default_rng(0).lognormal(5.5, 1.5, 3000).astype(int).tolist(),
        [300_000],
    ],
)
def test_at_least_97_percent_is_text_whatever_the_lengths(lengths):
    sequences = packing.pack(lengths, 4096)
    used = sum(1 + sum(p.cost for p in s) for s in sequences)
    assert covered(sequences, lengths)
    assert used / (len(sequences) * 4096) > 0.97


def test_short_documents_stay_whole_where_they_can():
    lengths = np.random.default_rng(1).integers(20, 900, 800).tolist()
    pieces = [p for s in packing.pack(lengths, 4096) for p in s]
    split = {p.document for p in pieces if p.end - p.start < lengths[p.document]}
    assert len(split) < 0.02 * len(lengths)


def test_the_worked_example_of_the_docs():
    sequences = packing.pack([7, 3, 12], 10)
    assert sequences == [
        [Piece(2, 0, 8)],
        [Piece(0, 0, 7)],
        [Piece(1, 0, 3), Piece(2, 8, 12)],
    ]
    tokens = [np.arange(10, 17), np.arange(20, 23), np.arange(30, 42)]
    starts = [np.zeros(len(x), bool) for x in tokens]
    ids, marks = packing.fill(sequences, tokens, starts, 10, 0, 4, 5)
    assert ids.tolist() == [
        [4, 30, 31, 32, 33, 34, 35, 36, 37, 5],
        [4, 10, 11, 12, 13, 14, 15, 16, 5, 0],
        [4, 20, 21, 22, 5, 38, 39, 40, 41, 5],
    ]
    assert np.flatnonzero(marks[2]).tolist() == [0, 1, 4, 5, 9]


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(8, 300), st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_pairs_hold_every_token_once_and_tell_the_truth(lengths, seq_length, key, rng):
    cuts = [sorted(rng.sample(range(1, n), min(n - 1, n // 9))) if n > 1 else [] for n in lengths]
    pairs = pair_packing.pack_pairs(lengths, cuts, seq_length, key)
    assert covered([[*pair.a, *pair.b] for pair in pairs], lengths)
    for pair in pairs:
        pieces = [*pair.a, *pair.b]
        assert pair.a and 1 + sum(piece.cost for piece in pieces) <= seq_length
        assert pair.segment_b == 1 + sum(piece.cost for piece in pair.a)
        if pair.b and pair.is_random:
            last = pair.a[-1].document
            assert all(piece.document != last for piece in pair.b)
        elif pair.b:
            assert pair.b[0].document == pair.a[-1].document
            assert pair.b[0].start == pair.a[-1].end
    alone = [pair for pair in pairs if not pair.b]
    assert len(alone) <= 1 + sum(length == 1 for length in lengths)


def test_half_of_the_pairs_are_random_full_and_cut_between_sentences():
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(6, 1.2, 2000).astype(int).tolist()
    cuts = [list(range(25, n, 25)) for n in lengths]
    pairs = pair_packing.pack_pairs(lengths, cuts, 4096, 5)
    randoms = np.mean([pair.is_random for pair in pairs])
    used = sum(1 + sum(p.cost for p in (*pair.a, *pair.b)) for pair in pairs)
    assert 0.4 < randoms < 0.6
    assert used / (len(pairs) * 4096) > 0.97
    at_sentence = [p.a[-1].end % 25 == 0 or p.a[-1].end == lengths[p.a[-1].document] for p in pairs]
    assert np.mean(at_sentence) > 0.97
