"""Dropout masks from a counter: their statistics, their keys, their gradient."""

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model.layers import dropout, fold_in, keep_mask, make_key

RATE = 0.1
SHAPE = [2048, 256]


@pytest.fixture(scope="module")
def masks():
    return [keep_mask(SHAPE, RATE, fold_in(make_key(7, step), 3)).numpy() for step in range(4)]


def test_the_rate_of_elements_rows_and_columns(masks):
    spread = np.sqrt(RATE * (1 - RATE))
    for mask in masks:
        assert abs(mask.mean() - (1 - RATE)) < 5 * spread / np.sqrt(mask.size)
        for axis in (0, 1):
            expected = spread / np.sqrt(SHAPE[axis])
            assert mask.mean(axis).std() == pytest.approx(expected, rel=0.2)


def test_neighbors_rectangles_and_steps_are_independent(masks):
    centered = [mask - mask.mean() for mask in masks]
    f = centered[0]
    products = [f[1:] * f[:-1], f[:, 1:] * f[:, :-1], f[64:] * f[:-64]]
    products += [f[1:, 1:] * f[:-1, 1:] * f[1:, :-1] * f[:-1, :-1]]  # four corners
    products += [centered[i] * centered[j] for i in range(4) for j in range(i)]
    for product in products:
        assert abs(product.mean()) / product.std() * np.sqrt(product.size) < 5


def test_a_key_is_a_function_of_seed_step_and_place():
    def key(seed, step, place):
        return tuple(fold_in(make_key(seed, step), place).numpy().tolist())

    of_tensors = fold_in(make_key(1, tf.constant(2, tf.int64)), tf.constant(3))
    assert key(1, 2, 3) == tuple(of_tensors.numpy().tolist())
    others = {key(s, t, p) for s in (1, 2, 1 << 40) for t in range(8) for p in range(8)}
    assert len(others) == 3 * 8 * 8


@pytest.mark.parametrize(("jit", "dtype"), [(False, tf.float32), (True, tf.bfloat16)])
def test_the_gradient_uses_the_same_mask(jit, dtype):
    @tf.function(jit_compile=jit)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = dropout(x, RATE, make_key(1, 5), 3)
            total = tf.reduce_sum(tf.cast(y, tf.float32))
        return y, tape.gradient(total, x)

    y, gradient = run(tf.ones([8, 4, 32], dtype))
    assert y.dtype == dtype
    np.testing.assert_array_equal(tf.cast(y, tf.float32), tf.cast(gradient, tf.float32))
    kept = tf.cast(y, tf.float32).numpy()
    np.testing.assert_allclose(kept[kept > 0], 1 / (1 - RATE), rtol=4e-3)
    expected = keep_mask([8, 4, 32], RATE, fold_in(make_key(1, 5), 3)).numpy()
    np.testing.assert_array_equal(kept > 0, expected)
