"""The hashes of `hashing` as TensorFlow ops, bit for bit the same (a test compares them)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bigbird_ja.data.hashing import GOLDEN, MULTIPLIER_1, MULTIPLIER_2


def mix(x: tf.Tensor) -> tf.Tensor:
    """`hashing.mix` of a uint32 tensor."""
    x = _xor_shift(x, 16) * _constant(MULTIPLIER_1)
    x = _xor_shift(x, 15) * _constant(MULTIPLIER_2)
    return _xor_shift(x, 16)


def fold(key: Any, value: Any) -> tf.Tensor:
    """`hashing.fold`: uint32 tensors or Python integers, or an integer `value` of any type."""
    key = key if tf.is_tensor(key) else _constant(key)
    value = tf.cast(value, tf.uint32) if tf.is_tensor(value) else _constant(value)
    return mix(key * _constant(GOLDEN) + value + _constant(1))


def sort_keys(key: Any, ids: tf.Tensor) -> tf.Tensor:
    """`hashing.sort_keys` of an int64 tensor, as int64."""
    return tf.bitwise.bitwise_or(
        tf.bitwise.left_shift(tf.cast(fold(key, ids), tf.int64), tf.constant(31, tf.int64)), ids
    )


def _xor_shift(x: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _constant(bits)))


def _constant(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint32)
