import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.data import pair_packing
from bigbird_ja.data.hashing import fold
from tests.data.test_packing import LENGTHS, covered


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(8, 300), st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_pairs_hold_every_token_once_with_true_labels(lengths, seq_length, key, rng):
    cuts = [sorted(rng.sample(range(1, n), min(n - 1, n // 9))) if n > 1 else [] for n in lengths]
    pairs = pair_packing.pack_pairs(lengths, cuts, seq_length, key)
    assert covered([[*pair.a, *pair.b] for pair in pairs], lengths)
    for pair in pairs:
        fragments = [*pair.a, *pair.b]
        assert pair.a and 1 + sum(fragment.cost for fragment in fragments) <= seq_length
        assert pair.segment_b == 1 + sum(fragment.cost for fragment in pair.a)
        if pair.b and pair.is_random:
            assert pair.a[-1].document not in {fragment.document for fragment in pair.b}
        elif pair.b:
            assert pair.b[0].document == pair.a[-1].document
            assert pair.b[0].start == pair.a[-1].end
    alone = [pair for pair in pairs if not pair.b]
    singles = [fragment for pair in alone for fragment in pair.a]
    # A sequence has no segment B only if all its fragments are single tokens, which cannot be
    # divided into A and B, and no other document has remaining text. So all these tokens come from
    # one document. Each pair with text of this document leaves at most two single tokens in it: one
    # before the start of a random B, and one after the end of A or B.
    assert all(fragment.end - fragment.start == 1 for fragment in singles)
    left = {fragment.document for fragment in singles}
    assert len(left) <= 1
    others = [p for p in pairs if p.b and any(x.document in left for x in (*p.a, *p.b))]
    assert len(singles) <= 1 + 2 * len(others)
    # All sequences without a segment B are full, except the last one. In them, [SEP] follows each
    # token.
    assert all(len(pair.a) >= (seq_length - 3) // 2 for pair in alone[:-1])


def test_b_leaves_no_single_token_behind():
    lengths = [30] * 300
    taken = [np.zeros(n, bool) for n in lengths]
    for pair in pair_packing.pack_pairs(lengths, every_nth(lengths, 7), 64, 3):
        for each in (*pair.a, *pair.b):
            taken[each.document][each.start : each.end] = True
        for each in pair.b:
            after = np.flatnonzero(taken[each.document][each.end :])
            left = after[0] if len(after) else lengths[each.document] - each.end
            # A segment B leaves a single token only if B has one token and cannot be shortened.
            assert left != 1 or each.end - each.start == 1


def every_nth(lengths, sentence):
    """Return the sentence starts of documents whose sentences all have the length `sentence`."""
    return [list(range(sentence, n, sentence)) for n in lengths]


def many_pairs(lengths, cuts, seq_length, keys):
    keys = [int(fold(7, key)) for key in range(keys)]
    return [pair for k in keys for pair in pair_packing.pack_pairs(lengths, cuts, seq_length, k)]


@pytest.mark.parametrize(
    "lengths,sentence",
    [
        # Lengths of the documents, and length of their sentences.
        ([30] * 1500, 100),
        ([300] * 500 + [100_000, 120_000], 25),
        ([300] * 500 + [350_000], 25),
    ],
    ids=["one sentence", "two long ones", "one of 70 %"],
)
def test_every_document_gets_both_labels(lengths, sentence):
    pairs = many_pairs(lengths, every_nth(lengths, sentence), 1024, 6)
    labels = np.array([pair.is_random for pair in pairs])
    assert abs(labels.mean() - 0.5) < 0.05
    long_ones = [p.is_random for p in pairs if lengths[p.a[-1].document] > 10_000]
    if long_ones:
        assert abs(np.mean(long_ones) - 0.5) < 0.07


def test_pairs_are_full_and_partners_start_anywhere_between_two_sentences():
    lengths = [1000] * 200
    pairs = many_pairs(lengths, every_nth(lengths, 20), 512, 3)
    used = sum(pair.segment_b + sum(fragment.cost for fragment in pair.b) for pair in pairs)
    assert used / (len(pairs) * 512) > 0.97
    by_label: dict[bool, list[int]] = {False: [], True: []}
    for pair in pairs:
        by_label[pair.is_random].append(pair.segment_b)
    assert abs(np.mean(by_label[False]) / np.mean(by_label[True]) - 1) < 0.05
    for label in (False, True):
        starts = np.array([pair.b[0].start for pair in pairs if pair.is_random == label])
        assert starts.min() > 0 and (starts % 20 == 0).mean() > 0.97
        shares = np.histogram(starts, 5, (0, 1000))[0] / len(starts)
        np.testing.assert_allclose(shares, 0.2, atol=0.06)
