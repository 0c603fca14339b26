"""Dynamic masking: the rule of `masking` as TensorFlow ops over a whole batch.

No Python callback, so it runs wherever `tf.data` does; no generator with a state, so the same
record in the same epoch is masked the same way after any restart and on any number of hosts. The
cost is kept low by hashing instead of a random call per record, by selecting the last token taken
instead of sorting, and by summing in short runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bigbird_ja.data import hashing
from bigbird_ja.data.masking import Arrays, MaskingRule, MaskRate, mask_arrays

_RUN = 32  # tokens that `running_count` sums at once


def mask(
    tokens: tf.Tensor,
    word_starts: tf.Tensor,
    epoch: tf.Tensor,
    record: tf.Tensor,
    seed: int,
    rule: MaskingRule,
    prob: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Draws the targets of a batch; see `masking.mask_arrays`."""
    return mask_arrays(TENSORFLOW, tokens, word_starts, epoch, record, seed, rule, prob)


def rate_at(rate: MaskRate, step: tf.Tensor) -> tf.Tensor:
    """float64: as `MaskRate.at`, of an int64 step."""
    share = tf.cast(tf.minimum(step, rate.steps), tf.float64) / float(rate.steps)
    return rate.first + (rate.last - rate.first) * share


class Tensors(Arrays):
    """`Arrays` of TensorFlow.

    `tf.equal` is used instead of `==`, which compares Python objects inside a TF1 graph, where
    TPUEstimator builds its input.
    """

    xp: Any = tf
    bits: Any = tf.bitwise
    fold = staticmethod(hashing.fold_tensors)

    def cast(self, values: tf.Tensor, kind: str) -> tf.Tensor:
        return tf.cast(values, kind)

    def gather(self, values: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        return tf.gather(values, index)

    def count(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(values, tf.int32), axis=1, keepdims=True)

    def any(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_any(values, axis=1, keepdims=True)

    def max(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_max(values, axis=1, keepdims=True)

    def min(self, values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_min(values, axis=1, keepdims=True)

    def running_count(self, values: tf.Tensor) -> tf.Tensor:
        """Sums short runs by a product with a triangle of ones, and the runs by a cumulative sum.

        Several times as fast as `tf.cumsum` along the whole row. Integers below 2**24 are exact.
        """
        length = values.shape[1]
        short = tf.cast(tf.pad(values, [[0, 0], [0, -length % _RUN]]), tf.float32)
        triangle = tf.constant(np.triu(np.ones((_RUN, _RUN), np.float32)))
        within = tf.matmul(tf.reshape(short, [-1, _RUN]), triangle)
        within = tf.reshape(within, [-1, short.shape[1] // _RUN, _RUN])
        before = tf.cumsum(within[:, :, -1], axis=1, exclusive=True)
        counts = tf.reshape(within + before[:, :, None], [-1, short.shape[1]])[:, :length]
        return tf.cast(counts, tf.int32)

    def nth_highest(self, values: tf.Tensor, more: tf.Tensor, n: int) -> tf.Tensor:
        both = tf.concat([values, more], axis=1)
        return tf.raw_ops.NthElement(input=both, n=n - 1, reverse=True)[:, None]

    def at_column(self, values: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
        return tf.gather(values, column, batch_dims=1)

    def replace_rows(
        self,
        values: tf.Tensor,
        where: tf.Tensor,
        by: Callable[..., tf.Tensor],
        arguments: Sequence[tf.Tensor],
    ) -> tf.Tensor:
        rows = tf.where(where[:, 0])[:, 0]
        replaced = by(*(tf.gather(argument, rows) for argument in arguments))
        return tf.tensor_scatter_nd_update(values, rows[:, None], replaced)

    def nonzero(self, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        places = tf.where(values)  # int64 [places, 2]
        return places[:, 0], places[:, 1]

    def count_up(self, like: tf.Tensor) -> tf.Tensor:
        return tf.range(tf.shape(like, tf.int64)[0])

    def at(self, values: tf.Tensor, row: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
        return tf.gather_nd(values, tf.stack([row, column], axis=1))

    def replace(
        self, values: tf.Tensor, row: tf.Tensor, column: tf.Tensor, by: tf.Tensor
    ) -> tf.Tensor:
        return tf.tensor_scatter_nd_update(values, tf.stack([row, column], axis=1), by)

    def scatter(
        self, row: tf.Tensor, column: tf.Tensor, values: tf.Tensor, like: tf.Tensor, n: int
    ) -> tf.Tensor:
        shape = tf.cast(tf.stack([tf.shape(like)[0], n]), tf.int64)
        dense = tf.scatter_nd(tf.stack([row, column], axis=1), values, shape)
        return tf.ensure_shape(dense, [like.shape[0], n])


TENSORFLOW = Tensors()
