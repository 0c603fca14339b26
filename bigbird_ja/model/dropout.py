"""Drops out by a counter: the mask is a hash of (key, element's place), so nothing is stored.

TensorFlow's stateless random numbers are Philox: some ten rounds of multiplications per number,
kept in memory until the backward pass. A dropout mask needs one comparison per element. Here every
row and every column of the last dimension gets a well mixed 32-bit number, and two rounds of a
finaliser (multiply and shift; the constants of Chris Wellons' `lowbias32`) join them per element.
XLA fuses that into whatever uses the mask, forward and backward alike, and gives the same bits on a
CPU and on a TPU.
"""

import tensorflow as tf

_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads small integers over the range
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B


def make_key(seed: int, step: tf.Tensor | int) -> tf.Tensor:
    """Make the key of one training step: uint32 [2], a pure function of (seed, step)."""
    start = tf.constant([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], tf.uint32)
    return fold_in(start, step)


def fold_in(key: tf.Tensor, place: tf.Tensor | int) -> tf.Tensor:
    """Make a key for one place (micro-batch, replica, layer, ...) below another key.

    Args:
        key: uint32 [2].
        place: an integer, Python's or a scalar tensor; only its low 32 bits count.

    Returns:
        uint32 [2].
    """
    number = tf.cast(tf.cast(place, tf.int64) & 0xFFFFFFFF, tf.uint32)
    first = _mix(key[0] ^ _mix(number + _constant(_GOLDEN)))
    second = _mix(key[1] + first * _constant(_GOLDEN) + number)
    return tf.stack([first, second])


def dropout(x: tf.Tensor, rate: float, key: tf.Tensor | None) -> tf.Tensor:
    """Zero each element with probability `rate`, independently, and scale the others up.

    Args:
        x: float, static shape, at least one dimension.
        rate: 0 to below 1; used in steps of 2^-32.
        key: uint32 [2], different for each use; None switches dropout off (evaluation).

    Returns:
        Like `x`. The gradient uses the same mask, computed again.
    """
    if key is None or rate <= 0.0:
        return x

    @tf.custom_gradient
    def apply(x: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor, object]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
            return _masked(upstream, rate, key), None

        return _masked(x, rate, key), gradient

    with tf.name_scope("dropout"):
        return apply(x, key)


def drop_at(x: tf.Tensor, rate: float, key: tf.Tensor | None, place: int) -> tf.Tensor:
    """Apply `dropout` with the key of a place in the model below `key`."""
    return x if key is None or rate <= 0.0 else dropout(x, rate, fold_in(key, place))


def keep_mask(shape: list[int], rate: float, key: tf.Tensor) -> tf.Tensor:
    """Draw a mask of `shape`: bool, True with probability 1 - rate."""
    rows = tf.constant(0, tf.uint32)
    stride = 1
    for axis in reversed(range(len(shape) - 1)):
        place = tf.cast(tf.range(shape[axis]), tf.uint32) * _constant(stride)
        rows += tf.reshape(place, [-1] + [1] * (len(shape) - 1 - axis))
        stride *= shape[axis]
    row_bits = _mix(_mix(rows + key[0]) ^ key[1])
    columns = tf.cast(tf.range(shape[-1]), tf.uint32)
    column_bits = _mix(columns * _constant(_GOLDEN) + key[1])
    # The joining is not linear, or four corners of a rectangle would tell on each other.
    bits = row_bits ^ column_bits
    bits = (bits ^ _shift(bits, 16)) * _constant(_FIRST)
    bits = (bits ^ _shift(bits, 15)) * _constant(_SECOND)
    return bits >= _constant(min(round(rate * 2**32), 2**32 - 1))


def _masked(x: tf.Tensor, rate: float, key: tf.Tensor) -> tf.Tensor:
    with tf.name_scope("dropout"):
        keep = keep_mask(x.shape.as_list(), rate, key)
        # In float32: 1 / (1 - rate) is not a bfloat16 number.
        scaled = tf.cast(x, tf.float32) * (1.0 / (1.0 - rate))
        return tf.cast(tf.where(keep, scaled, 0.0), x.dtype)


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Mix a uint32 by a bijection that changes half of the bits whichever one is flipped."""
    x = (x ^ _shift(x, 16)) * _constant(_FIRST)
    x = (x ^ _shift(x, 15)) * _constant(_SECOND)
    return x ^ _shift(x, 16)


def _shift(x: tf.Tensor, places: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, _constant(places))


def _constant(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint32)
