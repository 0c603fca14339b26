import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.data import packing
from bigbird_ja.data.packing import Fragment

LENGTHS = st.lists(
    st.one_of(st.integers(0, 40), st.integers(0, 400), st.integers(2000, 3000)), max_size=60
)


def covered(sequences, lengths):
    """Return whether every token of every document is in exactly one fragment."""
    seen = [np.zeros(length, int) for length in lengths]
    for sequence in sequences:
        for fragment in sequence:
            assert fragment.start < fragment.end
            seen[fragment.document][fragment.start : fragment.end] += 1
    return all((tokens == 1).all() for tokens in seen)


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(8, 300))
def test_every_token_is_in_one_fragment_and_no_sequence_is_too_long(lengths, seq_length):
    sequences = packing.pack(lengths, seq_length)
    assert covered(sequences, lengths)
    for sequence in sequences:
        assert sequence and 1 + sum(fragment.cost for fragment in sequence) <= seq_length
        assert sequence == sorted(sequence, key=lambda p: (p.document, p.start))


@pytest.mark.parametrize(
    "lengths",
    [
        [2500] * 200,  # No two documents fit into one sequence.
        [4094] * 50 + [1] * 50,
        np.random.default_rng(0).lognormal(5.5, 1.5, 3000).astype(int).tolist(),
        [300_000],
    ],
)
def test_at_least_97_percent_is_text_for_any_lengths(lengths):
    sequences = packing.pack(lengths, 4096)
    used = sum(1 + sum(p.cost for p in s) for s in sequences)
    assert covered(sequences, lengths)
    assert used / (len(sequences) * 4096) > 0.97


def test_short_documents_stay_whole_if_possible():
    lengths = np.random.default_rng(1).integers(20, 900, 800).tolist()
    fragments = [p for s in packing.pack(lengths, 4096) for p in s]
    split = {p.document for p in fragments if p.end - p.start < lengths[p.document]}
    assert len(split) < 0.02 * len(lengths)


def test_packing_matches_the_example_of_the_docs():
    sequences = packing.pack([7, 3, 12], 10)
    assert sequences == [
        [Fragment(2, 0, 8)],
        [Fragment(0, 0, 7)],
        [Fragment(1, 0, 3), Fragment(2, 8, 12)],
    ]
    tokens = [np.arange(10, 17), np.arange(20, 23), np.arange(30, 42)]
    starts = [np.zeros(len(x), bool) for x in tokens]
    ids, marks = packing.fill(sequences, tokens, starts, 10, {"pad": 0, "cls": 4, "sep": 5})
    assert ids.tolist() == [
        [4, 30, 31, 32, 33, 34, 35, 36, 37, 5],
        [4, 10, 11, 12, 13, 14, 15, 16, 5, 0],
        [4, 20, 21, 22, 5, 38, 39, 40, 41, 5],
    ]
    assert np.flatnonzero(marks[2]).tolist() == [0, 1, 4, 5, 9]
