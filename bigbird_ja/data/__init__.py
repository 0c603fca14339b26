"""Make data sets of text and read them as batches, in the order in which a document travels.

- Describing: `manifest` (what is to be made, and what was made).
- Making: `packing`, `pair_packing` (documents to sequences), `masking`, `tfrecords` (the bytes of a
  record), `blocks`, `shards`, `work` (unfinished work, and whose it is), `build` (all).
- Checking: `check` (files, or every record).
- Reading: `order` (which record comes when), `tfrecords` again, `pipeline` (batches).

Here integers are hashed from what they belong to: the only, and stateless, source of randomness.
Masks, the order of records and the held-out documents are drawn from these hashes and from nothing
else, so they are the same after any restart, on any number of hosts and processes, and in NumPy and
TensorFlow (`pipeline.TensorOps`). 32-bit arithmetic modulo 2**32 throughout.
"""

import operator
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

Array = Any  # of NumPy or TensorFlow


# The multipliers of `lowbias32` (Chris Wellons, "Prospecting for Hash Functions", 2018): bias 0.17.
MULTIPLIER_1 = 0x7FEB352D
MULTIPLIER_2 = 0x846CA68B
GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: spreads consecutive integers


class Purpose(IntEnum):
    """Tells what a hash is for: two purposes never share a stream."""

    SHARD_ORDER = 1
    READER_ORDER = 2
    RECORD_ORDER = 3
    MASK_UNITS = 4
    MASK_ACTION = 5
    MASK_RANDOM = 6
    MASK_SPAN = 7
    HELD_OUT = 8
    SCATTER = 9
    NEXT_SENTENCE = 10
    MIXTURE = 11


def mix(values: Any) -> npt.NDArray[np.uint32]:
    """Mix 32-bit integers by a bijection whose output bits look independent of its input bits."""
    x = np.asarray(values, dtype=np.uint32)
    with np.errstate(over="ignore"):
        # Operators, not ufuncs by name: NumPy reuses the memory of their intermediate results.
        x = x ^ (x >> np.uint32(16))
        x = x * np.uint32(MULTIPLIER_1)
        x = x ^ (x >> np.uint32(15))
        x = x * np.uint32(MULTIPLIER_2)
        return x ^ (x >> np.uint32(16))


def fold(key: Any, value: Any) -> npt.NDArray[np.uint32]:
    """Return the key of one more coordinate, as in `fold(fold(seed_key, epoch), record)`."""
    key = np.asarray(key, dtype=np.uint32)
    value = np.asarray(value).astype(np.uint32)
    with np.errstate(over="ignore"):
        return mix(key * np.uint32(GOLDEN) + value + np.uint32(1))


def seed_key(seed: int, purpose: int) -> int:
    """Return the key of a seed (any integer of up to 64 bits) for one purpose."""
    seed &= 0xFFFFFFFFFFFFFFFF
    return int(fold(fold(fold(0, purpose), seed & 0xFFFFFFFF), seed >> 32))


def permutation(key: Any, ids: Any) -> npt.NDArray[np.int64]:
    """Order `ids` (int, unique, below 2**31) by the hash of each; return indices into `ids`."""
    ids = np.asarray(ids, dtype=np.int64)
    keys = (fold(key, ids).astype(np.int64) << 31) | ids  # unique: the id in the lower bits
    return np.argsort(keys, kind="stable")


class ArrayOps:
    """Operations that NumPy and TensorFlow spell differently: here NumPy's.

    Arrays are [rows, columns]; reductions keep both axes.
    """

    xp: Any = np  # has `where`, `equal`, `maximum` and others of one name in both libraries
    bits: Any = np  # has `right_shift`
    fold = staticmethod(fold)
    permutation = staticmethod(permutation)
    # [rows, columns] to [rows, 1].
    any: Any = staticmethod(partial(np.any, axis=1, keepdims=True))
    max: Any = staticmethod(partial(np.max, axis=1, keepdims=True))
    min: Any = staticmethod(partial(np.min, axis=1, keepdims=True))
    count: Any = staticmethod(partial(np.sum, axis=1, keepdims=True))  # of true values: int
    # Of each row the value in the column of [rows, 1].
    at_column: Any = staticmethod(partial(np.take_along_axis, axis=1))
    # The true values of a row up to each place, that one included: int32 [rows, columns].
    running_count: Any = staticmethod(partial(np.cumsum, axis=1, dtype=np.int32))
    nonzero: Any = staticmethod(np.nonzero)  # row and column of each true value, row by row
    gather: Any = staticmethod(operator.getitem)  # values, or rows, by indices
    select: Any = staticmethod(operator.getitem)  # values by a mask
    at: Any = staticmethod(lambda values, row, column: values[row, column])
    concat: Any = staticmethod(np.concatenate)
    count_up: Any = staticmethod(lambda like: np.arange(len(like)))  # 0, 1, ...

    def cast(self, values: Array, kind: str) -> Array:
        """Convert values to another type."""
        return np.asarray(values).astype(kind)

    def nth_highest(self, values: Array, more: Array, n: int) -> Array:
        """Return the n-th highest of `values` and `more`, side by side: [rows, 1]."""
        both = np.concatenate([values, more], axis=1)
        place = both.shape[1] - n
        return np.partition(both, place, axis=1)[:, place : place + 1]

    def replace_rows(
        self, values: Array, where: Array, by: Callable[..., Array], arguments: Sequence[Array]
    ) -> Array:
        """Replace the rows in which `where` [rows, 1] is true by `by(*arguments)` of those rows."""
        rows = np.flatnonzero(where)
        values[rows] = by(*(argument[rows] for argument in arguments))
        return values

    def replace(self, values: Array, row: Array, column: Array, by: Array) -> Array:
        """Copy `values` with other ones at some places."""
        result = values.copy()
        result[row, column] = by
        return result

    def scatter(self, row: Array, column: Array, values: Array, like: Array, n: int) -> Array:
        """Put values at their places in [rows of `like`, n]; elsewhere it is 0."""
        result = np.zeros((len(like), n), values.dtype)
        result[row, column] = values
        return result


NUMPY = ArrayOps()
