"""Array operations with one interface, and bit-identical results, in NumPy and TensorFlow.

So `masking` and `order` contain one implementation, which accepts arrays of either library.
"""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from bigbird_ja.data import hashing

Array = Any
# Number of tokens that `TensorFlowOps.running_count` sums at once.
_RUN = 32


class ArrayOps:
    """Operations in NumPy, and the interface of `TensorFlowOps`.

    Arrays are [rows, columns]. Reductions keep both axes.
    """

    # Module of the functions that have the same name in both libraries, such as `where`.
    xp: Any = np
    # Module of bitwise functions, such as `right_shift`.
    bits: Any = np
    fold: Any = staticmethod(hashing.fold)
    permutation: Any = staticmethod(hashing.permutation)
    # Reductions of [rows, columns] to [rows, 1].
    any: Any = staticmethod(partial(np.any, axis=1, keepdims=True))
    max: Any = staticmethod(partial(np.max, axis=1, keepdims=True))
    min: Any = staticmethod(partial(np.min, axis=1, keepdims=True))
    # Number of true values in each row.
    count: Any = staticmethod(partial(np.sum, axis=1, keepdims=True))
    # One value of each row: [rows, 1]. Another array [rows, 1] contains the value's column.
    at_column: Any = staticmethod(partial(np.take_along_axis, axis=1))
    # Number of true values in a row up to and including each column: int32 [rows, columns].
    running_count: Any = staticmethod(partial(np.cumsum, axis=1, dtype=np.int32))
    # Row and column of each true value, row by row.
    nonzero: Any = staticmethod(np.nonzero)
    # Values, or rows of values, at the given indices.
    gather: Any = staticmethod(operator.getitem)
    # Values for which a mask is true.
    select: Any = staticmethod(operator.getitem)
    at: Any = staticmethod(lambda values, row, column: values[row, column])
    concat: Any = staticmethod(np.concatenate)
    # The indices 0, 1, ... of an array's elements.
    count_up: Any = staticmethod(lambda like: np.arange(len(like)))

    def cast(self, values: Array, kind: str) -> Array:
        """Convert values to another type."""
        return np.asarray(values).astype(kind)

    def nth_highest(self, values: Array, more: Array, n: int) -> Array:
        """Return the n-th highest value of each row in `values` and `more` together: [rows, 1]."""
        both = np.concatenate([values, more], axis=1)
        place = both.shape[1] - n
        return np.partition(both, place, axis=1)[:, place : place + 1]

    def replace_rows(
        self, values: Array, where: Array, by: Callable[..., Array], arguments: Sequence[Array]
    ) -> Array:
        """Return `values` with some rows replaced.

        Args:
            values: [rows, columns].
            where: bool [rows, 1], whether to replace a row.
            by: function that computes the new rows from the same rows of `arguments`.
            arguments: arrays [rows, ...].
        """
        rows = np.flatnonzero(where)
        values[rows] = by(*(argument[rows] for argument in arguments))
        return values

    def replace(self, values: Array, row: Array, column: Array, by: Array) -> Array:
        """Return a copy of `values`, with the elements at some rows and columns replaced."""
        result = values.copy()
        result[row, column] = by
        return result

    def scatter(self, row: Array, column: Array, values: Array, like: Array, n: int) -> Array:
        """Return zeros with `values` at some rows and columns: [rows of `like`, n]."""
        result = np.zeros((len(like), n), values.dtype)
        result[row, column] = values
        return result


NUMPY = ArrayOps()


class TensorFlowOps(ArrayOps):
    """Operations in TensorFlow's graph, without Python callbacks."""

    def __init__(self) -> None:
        """Import TensorFlow, which is not needed for NumPy's operations."""
        import tensorflow as tf

        self.xp, self.bits = tf, tf.bitwise
        self.any = partial(tf.reduce_any, axis=1, keepdims=True)
        self.max = partial(tf.reduce_max, axis=1, keepdims=True)
        self.min = partial(tf.reduce_min, axis=1, keepdims=True)
        self.at_column = partial(tf.gather, batch_dims=1)
        self.gather, self.select = tf.gather, tf.boolean_mask
        self.concat = partial(tf.concat, axis=0)
        self.count_up = lambda like: tf.range(tf.shape(like, tf.int64)[0])
        self.nonzero = lambda values: tf.unstack(tf.where(values), axis=1)
        self.at = lambda values, *place: tf.gather_nd(values, tf.stack(place, axis=1))

    def cast(self, values: Array, kind: str) -> Array:
        """Implement `ArrayOps.cast`."""
        return self.xp.cast(values, kind)

    def fold(self, key: Any, value: Any) -> Array:
        """Implement `hashing.fold`.

        The key may be a Python integer, and the value may be an array of NumPy.
        """
        tf = self.xp

        def xor_shift(x: Array, bits: int) -> Array:
            return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, np.uint32(bits)))

        key = key if tf.is_tensor(key) else tf.constant(key, tf.uint32)
        x = key * np.uint32(hashing.GOLDEN) + tf.cast(value, tf.uint32) + np.uint32(1)
        x = xor_shift(x, 16) * np.uint32(hashing.MULTIPLIER_1)
        x = xor_shift(x, 15) * np.uint32(hashing.MULTIPLIER_2)
        return xor_shift(x, 16)

    def permutation(self, key: Any, ids: Any) -> Array:
        """Implement `hashing.permutation`."""
        tf = self.xp
        keys = tf.cast(self.fold(key, ids), tf.int64) * (1 << 31) + ids
        return tf.cast(tf.argsort(keys), tf.int64)

    def count(self, values: Array) -> Array:
        """Implement `ArrayOps.count`."""
        tf = self.xp
        return tf.reduce_sum(tf.cast(values, tf.int32), axis=1, keepdims=True)

    def running_count(self, values: Array) -> Array:
        """Implement `ArrayOps.running_count`.

        Short runs are summed by a product with a triangular matrix of ones, and `tf.cumsum` sums
        only their totals. This is several times as fast as `tf.cumsum` along the whole row. Floats
        represent integers below 2**24 exactly.
        """
        tf = self.xp
        length = values.shape[1]
        short = tf.cast(tf.pad(values, [[0, 0], [0, -length % _RUN]]), tf.float32)
        triangle = tf.constant(np.triu(np.ones((_RUN, _RUN), np.float32)))
        within = tf.matmul(tf.reshape(short, [-1, _RUN]), triangle)
        within = tf.reshape(within, [-1, short.shape[1] // _RUN, _RUN])
        before = tf.cumsum(within[:, :, -1], axis=1, exclusive=True)
        counts = tf.reshape(within + before[:, :, None], [-1, short.shape[1]])[:, :length]
        return tf.cast(counts, tf.int32)

    def nth_highest(self, values: Array, more: Array, n: int) -> Array:
        """Implement `ArrayOps.nth_highest`."""
        tf = self.xp
        both = tf.concat([values, more], axis=1)
        return tf.raw_ops.NthElement(input=both, n=n - 1, reverse=True)[:, None]

    def replace_rows(
        self, values: Array, where: Array, by: Callable[..., Array], arguments: Sequence[Array]
    ) -> Array:
        """Implement `ArrayOps.replace_rows`."""
        tf = self.xp
        rows = tf.where(where[:, 0])[:, 0]
        replaced = by(*(tf.gather(argument, rows) for argument in arguments))
        return tf.tensor_scatter_nd_update(values, rows[:, None], replaced)

    def replace(self, values: Array, row: Array, column: Array, by: Array) -> Array:
        """Implement `ArrayOps.replace`."""
        tf = self.xp
        return tf.tensor_scatter_nd_update(values, tf.stack([row, column], axis=1), by)

    def scatter(self, row: Array, column: Array, values: Array, like: Array, n: int) -> Array:
        """Implement `ArrayOps.scatter`."""
        tf = self.xp
        shape = tf.cast(tf.stack([tf.shape(like)[0], n]), tf.int64)
        dense = tf.scatter_nd(tf.stack([row, column], axis=1), values, shape)
        return tf.ensure_shape(dense, [like.shape[0], n])
