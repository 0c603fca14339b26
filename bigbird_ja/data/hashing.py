"""Hashes of integers, the only source of randomness of a data set.

Masks, the order of records and the held-out documents depend only on these hashes. So they are the
same after a restart, on any number of hosts and processes, and in NumPy and TensorFlow (`ops`).
All arithmetic is modulo 2**32.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

# Multipliers of the hash function `lowbias32`, which has a bias of 0.17. Source: Chris Wellons,
# "Prospecting for Hash Functions", 2018.
MULTIPLIER_1 = 0x7FEB352D
MULTIPLIER_2 = 0x846CA68B
# Multiplier that spreads consecutive integers: 2**32 / golden ratio.
GOLDEN = 0x9E3779B9


class Purpose(IntEnum):
    """Purposes of hashes. Each purpose has its own stream of random numbers."""

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
    """Mix the bits of 32-bit integers by a bijection."""
    x = np.asarray(values, dtype=np.uint32)
    with np.errstate(over="ignore"):
        # With operators, unlike named ufuncs, NumPy reuses the memory of intermediate results.
        x = x ^ (x >> np.uint32(16))
        x = x * np.uint32(MULTIPLIER_1)
        x = x ^ (x >> np.uint32(15))
        x = x * np.uint32(MULTIPLIER_2)
        return x ^ (x >> np.uint32(16))


def fold(key: Any, value: Any) -> npt.NDArray[np.uint32]:
    """Return the hash of a key and a value.

    For several values, calls are nested, as in `fold(fold(key, epoch), record)`.
    """
    key = np.asarray(key, dtype=np.uint32)
    value = np.asarray(value).astype(np.uint32)
    with np.errstate(over="ignore"):
        return mix(key * np.uint32(GOLDEN) + value + np.uint32(1))


def seed_key(seed: int, purpose: int) -> int:
    """Return the hash key for one purpose, derived from a seed (an integer of up to 64 bits)."""
    seed &= 0xFFFFFFFFFFFFFFFF
    return int(fold(fold(fold(0, purpose), seed & 0xFFFFFFFF), seed >> 32))


def permutation(key: Any, ids: Any) -> npt.NDArray[np.int64]:
    """Return the indices that sort `ids` (int, unique, below 2**31) by their hashes."""
    ids = np.asarray(ids, dtype=np.int64)
    # The id in the lower bits makes the keys unique.
    keys = (fold(key, ids).astype(np.int64) << 31) | ids
    return np.argsort(keys, kind="stable")
