"""Dynamic masking: the rule of `masking` as TensorFlow ops over a whole batch.

No Python callback, so it runs wherever `tf.data` does; no generator with a state, so the same
record in the same epoch is masked the same way after any restart and on any number of hosts.
`tf.not_equal` instead of `!=`: inside a TF1 graph, which is where TPUEstimator builds its input,
the operator compares Python objects. The cost is kept low by hashing instead of a random call per
record, by selecting the last token taken instead of sorting, and by summing in short runs.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from bigbird_ja.data import hashing, hashing_tf
from bigbird_ja.data.masking import (
    MASK_BELOW,
    RANDOM_BELOW,
    MaskingRule,
    MaskRate,
    hash_shift,
    position_bits,
)

_RUN = 32  # tokens that `_running_count` sums at once


def mask(
    tokens: tf.Tensor,
    word_starts: tf.Tensor,
    epoch: tf.Tensor,
    record: tf.Tensor,
    seed: int,
    rule: MaskingRule,
    prob: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Draws the targets of a batch, as `masking.mask` does.

    Args:
        tokens: int32 [b, S], S static.
        word_starts: bool [b, S].
        epoch, record: int64 [b].
        seed: of the masks.
        rule: the rest.
        prob: float64, in place of the rule's.
    """
    rows = tf.shape(tokens)[0]
    ordinary = is_ordinary(tokens, rule)
    num_ordinary = tf.reduce_sum(tf.cast(ordinary, tf.int32), axis=1)
    units, words = _units_and_words(word_starts, ordinary, epoch, record, seed, rule)
    keys = _priorities(units, ordinary, _row_key(seed, hashing.MASK_UNITS, epoch, record))
    budget = num_predictions(num_ordinary, rule, prob)
    chosen = _chosen(keys, words, budget, rule)
    places = tf.where(chosen)  # int64 [predictions, 2], row by row, positions ascending
    row, position = places[:, 0], places[:, 1]
    counts = tf.reduce_sum(tf.cast(chosen, tf.int64), axis=1)
    first = tf.gather(tf.cumsum(counts, exclusive=True), row)
    slots = tf.stack([row, tf.range(tf.shape(row, tf.int64)[0]) - first], axis=1)
    labels = tf.gather_nd(tokens, places)
    shape = tf.cast(tf.stack([rows, rule.max_predictions]), tf.int64)
    replaced = _replacements(labels, row, position, epoch, record, seed, rule)

    def laid_out(values: tf.Tensor) -> tf.Tensor:
        dense = tf.scatter_nd(slots, values, shape)
        return tf.ensure_shape(dense, [tokens.shape[0], rule.max_predictions])

    return {
        "input_ids": tf.tensor_scatter_nd_update(tokens, places, replaced),
        "masked_lm_positions": laid_out(tf.cast(position, tf.int32)),
        "masked_lm_ids": laid_out(labels),
        "masked_lm_weights": laid_out(tf.ones_like(labels, tf.float32)),
    }


def is_ordinary(tokens: tf.Tensor, rule: MaskingRule) -> tf.Tensor:
    """bool, of the shape of `tokens`: neither special nor padding."""
    ordinary = tokens >= rule.special_prefix
    for special in rule.other_special:
        ordinary = ordinary & tf.not_equal(tokens, special)
    return ordinary


def rate_at(rate: MaskRate, step: tf.Tensor) -> tf.Tensor:
    """float64: as `MaskRate.at`, of an int64 step."""
    share = tf.cast(tf.minimum(step, rate.steps), tf.float64) / float(rate.steps)
    return rate.first + (rate.last - rate.first) * share


def num_predictions(
    num_ordinary: tf.Tensor, rule: MaskingRule, prob: tf.Tensor | None = None
) -> tf.Tensor:
    """int32 [b]: as `masking.num_predictions`; both round halves to even, as Python does."""
    share = rule.prob if prob is None else prob
    wanted = tf.round(tf.cast(num_ordinary, tf.float64) * share)
    clipped = tf.clip_by_value(tf.cast(wanted, tf.int32), 1, rule.max_predictions)
    return tf.minimum(clipped, num_ordinary)


def _row_key(seed: int, purpose: int, epoch: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
    """uint32 [b, 1]."""
    key = hashing_tf.fold(hashing_tf.fold(hashing.seed_key(seed, purpose), epoch), record)
    return key[:, None]


def _units_and_words(
    word_starts: tf.Tensor,
    ordinary: tf.Tensor,
    epoch: tf.Tensor,
    record: tf.Tensor,
    seed: int,
    rule: MaskingRule,
) -> tuple[tf.Tensor, tf.Tensor]:
    """int32 [b, S] (or [1, S]) each: the unit and the word that a token belongs to."""
    length = ordinary.shape[1]
    positions = tf.range(length, dtype=tf.int32)[None, :]
    if rule.unit == "subword":
        return positions, tf.broadcast_to(positions, tf.shape(ordinary))
    special = ~ordinary
    after = tf.pad(special[:, :-1], [[0, 0], [1, 0]], constant_values=True)
    breaks = special | after
    words = _running_count(word_starts | breaks)
    if rule.unit == "whole_word":
        return words, words
    coins = hashing_tf.fold(_row_key(seed, hashing.MASK_SPAN, epoch, record), positions)
    is_head = tf.bitwise.right_shift(coins, tf.constant(31, tf.uint32)) < 1
    return _running_count(breaks | (word_starts & is_head)), words


def _running_count(values: tf.Tensor) -> tf.Tensor:
    """int32 [b, S]: how many of a row are true up to each place, that one included.

    Sums of short runs by a product with a triangle of ones, and over the runs by a cumulative sum:
    several times as fast as `tf.cumsum` along the whole row. Whole numbers below 2**24 are exact.
    """
    length = values.shape[1]
    short = tf.cast(tf.pad(values, [[0, 0], [0, -length % _RUN]]), tf.float32)
    triangle = tf.constant(np.triu(np.ones((_RUN, _RUN), np.float32)))
    within = tf.matmul(tf.reshape(short, [-1, _RUN]), triangle)
    within = tf.reshape(within, [-1, short.shape[1] // _RUN, _RUN])
    before = tf.cumsum(within[:, :, -1], axis=1, exclusive=True)
    counts = tf.reshape(within + before[:, :, None], [-1, short.shape[1]])[:, :length]
    return tf.cast(counts, tf.int32)


def _priorities(units: tf.Tensor, ordinary: tf.Tensor, row_key: tf.Tensor) -> tf.Tensor:
    """int32 or int64 [b, S]: as `masking._priorities`."""
    length = ordinary.shape[1]
    bits, shift = position_bits(length), hash_shift(length)
    kind = tf.int32 if shift else tf.int64
    drawn = hashing_tf.fold(row_key, units)
    drawn = tf.cast(tf.bitwise.right_shift(drawn, tf.constant(shift, tf.uint32)), kind)
    late = tf.range(length - 1, -1, -1, dtype=kind)[None, :]
    keys = tf.bitwise.bitwise_or(tf.bitwise.left_shift(drawn, tf.constant(bits, kind)), late)
    return tf.where(ordinary, keys, tf.constant(-1, kind))


def _chosen(keys: tf.Tensor, words: tf.Tensor, budget: tf.Tensor, rule: MaskingRule) -> tf.Tensor:
    """bool [b, S]: which tokens are predicted, as `masking._chosen`."""
    lowest = tf.constant(-1, keys.dtype)
    chosen = keys >= _nth(keys, budget, rule)
    if rule.unit == "subword":
        return chosen
    following = tf.reduce_max(tf.where(chosen, lowest, keys), axis=1, keepdims=True)
    in_word = tf.equal(words, _word_at(words, following)) & (keys >= 0) & (following >= 0)
    is_cut = tf.reduce_any(in_word & chosen, axis=1)
    rows = tf.where(is_cut)[:, 0]  # the others need no more work
    keys, words, budget, chosen_there, in_word = (
        tf.gather(values, rows) for values in (keys, words, budget, chosen, in_word)
    )
    whole = _whole_words(keys, words, budget, chosen_there, in_word, rule)
    return tf.tensor_scatter_nd_update(chosen, rows[:, None], whole)


def _whole_words(
    keys: tf.Tensor,
    words: tf.Tensor,
    budget: tf.Tensor,
    chosen: tf.Tensor,
    in_word: tf.Tensor,
    rule: MaskingRule,
) -> tf.Tensor:
    """bool [b, S]: the choice for rows whose budget ends within a word, `in_word`."""
    highest = tf.constant(keys.dtype.max, keys.dtype)
    whole = chosen & ~in_word
    left_out = tf.where(tf.reduce_any(whole, axis=1, keepdims=True), whole, chosen)
    if rule.version == 1:
        return left_out
    size = _count(in_word)
    fits = size <= budget[:, None]
    excess = tf.where(fits, size - _count(in_word & chosen), 0)
    giving = _nth(keys, excess[:, 0], rule)
    gives = tf.equal(words, _word_at(words, giving)) & (keys >= 0) & (giving < highest)
    lowest_giving = tf.reduce_min(tf.where(gives, keys, highest), axis=1, keepdims=True)
    displaced = (whole | in_word) & (keys < lowest_giving)
    return tf.where(fits, displaced, left_out)


def _count(values: tf.Tensor) -> tf.Tensor:
    """int32 [b, 1]: how many of each row are true."""
    return tf.reduce_sum(tf.cast(values, tf.int32), axis=1, keepdims=True)


def _nth(keys: tf.Tensor, count: tf.Tensor, rule: MaskingRule) -> tf.Tensor:
    """[b, 1] of the type of `keys`: the priority of token number `count`, above all for 0.

    NthElement takes one n for all rows: each is filled up with priorities above all others, so that
    the token at its own count comes at the same place.
    """
    highest, lowest = tf.constant(keys.dtype.max, keys.dtype), tf.constant(-1, keys.dtype)
    most = rule.max_predictions
    is_filled = tf.range(most)[None, :] < most - count[:, None]
    filled = tf.concat([keys, tf.where(is_filled, highest, lowest)], axis=1)
    return tf.raw_ops.NthElement(input=filled, n=most - 1, reverse=True)[:, None]


def _word_at(words: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """int32 [b, 1]: the word of the token with this priority."""
    length = words.shape[1]
    low_bits = tf.constant((1 << position_bits(length)) - 1, key.dtype)
    late = tf.cast(tf.bitwise.bitwise_and(tf.maximum(key, 0), low_bits), tf.int32)
    return tf.gather(words, tf.maximum(length - 1 - late, 0), batch_dims=1)


def _replacements(
    labels: tf.Tensor,
    row: tf.Tensor,
    position: tf.Tensor,
    epoch: tf.Tensor,
    record: tf.Tensor,
    seed: int,
    rule: MaskingRule,
) -> tf.Tensor:
    """int32 [predictions]: what stands at the predicted positions."""

    def draw(purpose: int) -> tf.Tensor:
        keys = _row_key(seed, purpose, epoch, record)[:, 0]
        return tf.cast(hashing_tf.fold(tf.gather(keys, row), position), tf.int64)

    ordinary_ids = tf.constant(rule.ordinary_ids())
    action = draw(hashing.MASK_ACTION)
    randoms = tf.gather(ordinary_ids, draw(hashing.MASK_RANDOM) % int(ordinary_ids.shape[0]))
    kept_or_random = tf.where(action < RANDOM_BELOW, randoms, labels)
    return tf.where(action < MASK_BELOW, rule.mask_id, kept_or_random)
