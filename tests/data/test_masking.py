import dataclasses
import hashlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.data import masking
from bigbird_ja.data.pipeline import TENSORFLOW
from testkit import synthetic

RULE = masking.MaskingRule(200, tuple(range(11)), 6, 0, 12, 0.15, "whole_word")
UNITS = ("subword", "whole_word", "span")


def some_records(count, length, seed=0, vocab_size=200):
    return synthetic.random_records(np.random.default_rng(seed), count, length, vocab_size)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("length,most", [(64, 64), (300, 40), (70_000, 50)])
@pytest.mark.parametrize("specials", [(0, 2, 3, 5, 6, 199), (0, 6, *range(9, 199, 5))])
@pytest.mark.parametrize("prob", [None, 0.3])
def test_tensorflow_and_numpy_draw_the_same_masks(unit, length, most, specials, prob):
    rule = dataclasses.replace(RULE, unit=unit, max_predictions=most, special_ids=specials)
    tokens, starts = some_records(3, length)
    starts[2, length // 2 :] = False  # The second half of the record is one long word.
    tokens[1, 1:] = 5  # This record contains nothing to predict.
    epoch, record = np.array([0, 3, 2**20]), np.array([5, 0, 2**30])
    asked = rule if prob is None else dataclasses.replace(rule, prob=prob)
    ours = masking.mask(tokens, starts, epoch, record, 2**40 + 7, asked)
    given = map(tf.constant, (tokens, starts, epoch, record))
    rate = None if prob is None else tf.constant(prob, tf.float64)
    theirs = masking.mask_arrays(TENSORFLOW, *given, 2**40 + 7, rule, rate)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name].numpy(), err_msg=name)
        assert value.dtype == theirs[name].dtype.as_numpy_dtype


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_targets_follow_the_rule(data):
    length = data.draw(st.integers(4, 80))
    most = data.draw(st.integers(1, length))
    unit, prob = (data.draw(st.sampled_from(each)) for each in (UNITS, [0.01, 0.15, 0.5]))
    rule = dataclasses.replace(RULE, unit=unit, max_predictions=most, prob=prob)
    tokens = np.array([data.draw(st.lists(st.integers(0, 40), min_size=length, max_size=length))])
    starts = np.array([data.draw(st.lists(st.booleans(), min_size=length, max_size=length))])
    made = masking.mask(tokens, starts, 0, 0, data.draw(st.integers(0, 2**64 - 1)), rule)
    ordinary = masking.is_ordinary(tokens, rule)[0]
    n = int(ordinary.sum())
    weights = made["masked_lm_weights"][0]
    count = int(weights.sum())
    wanted = min(most, max(1, round(rule.prob * n)), n)
    positions = made["masked_lm_positions"][0][:count]
    assert set(weights.tolist()) <= {0.0, 1.0} and (np.diff(weights) <= 0).all()
    assert (np.diff(positions) > 0).all() and ordinary[positions].all()
    np.testing.assert_array_equal(made["masked_lm_ids"][0][:count], tokens[0][positions])
    assert not made["masked_lm_positions"][0][count:].any()
    others = np.setdiff1d(np.arange(length), positions)
    np.testing.assert_array_equal(made["input_ids"][0][others], tokens[0][others])
    now = made["input_ids"][0][positions]
    assert masking.is_ordinary(now, rule)[now != rule.mask_id].all()
    assert count <= wanted and (count > 0) == (n > 0)
    if rule.unit == "subword":
        assert count == wanted
    else:
        words = words_of(ordinary, starts[0])
        longest = max((len(w) for w in words), default=1)
        assert count > wanted - longest
        split = [w for w in words if 0 < len(set(w) & set(positions.tolist())) < len(w)]
        # Only a word that exceeds the remaining number of predictions may be masked in part.
        assert not split or (len(split) == 1 and count == wanted)


def words_of(ordinary, starts):
    words = []
    for at, is_word in enumerate(ordinary):
        if not is_word:
            continue
        if starts[at] or at == 0 or not ordinary[at - 1]:
            words.append([])
        words[-1].append(at)
    return words


def test_targets_are_the_same_in_every_version():
    tokens, starts = some_records(20, 300)
    digest = hashlib.sha256()
    for unit in UNITS:
        rule = dataclasses.replace(RULE, unit=unit, max_predictions=40)
        made = masking.mask(tokens, starts, 2, np.arange(20), 5, rule)
        for name in sorted(made):
            digest.update(made[name].tobytes())
    expected = "fa0a1570a132ffceaeb5224c335b8e580ba354a0fc1375c3c6a8916d0fc4eec5"
    assert digest.hexdigest() == expected


def test_special_ids_are_computed_once():
    rule = dataclasses.replace(RULE, vocab_size=30_000, special_ids=(0, 1, 2, *range(100, 1100)))
    assert rule.is_ordinary_id is rule.is_ordinary_id and rule.ordinary_ids is rule.ordinary_ids
    assert masking.is_ordinary(np.arange(2000)[None, :], rule).sum() == 997
