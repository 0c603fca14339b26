"""Activations against TensorFlow's; recomputation: values, gradients, how often it runs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model.layers import activate, recompute


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("keeps_slope", [False, True])
def test_gelu_new_and_its_gradient(keeps_slope: bool, jit_compile: bool) -> None:
    @tf.function(jit_compile=jit_compile)
    def computed(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = activate("gelu_new", x, keeps_slope=keeps_slope)
        return values, tape.gradient(values, x)

    x = tf.constant(np.linspace(-12, 12, 2001, dtype=np.float32))
    with tf.GradientTape() as tape:
        tape.watch(x)
        theirs = tf.nn.gelu(x, approximate=True)
    values, gradient = computed(x)
    np.testing.assert_allclose(values, theirs, atol=2e-6)
    np.testing.assert_allclose(gradient, tape.gradient(theirs, x), atol=1e-5)


@pytest.mark.parametrize("keeps_slope", [False, True])
def test_in_bfloat16_it_is_the_rounded_gradient(keeps_slope: bool) -> None:
    """A slope that was kept is rounded once more than one that is computed again."""
    x = tf.cast(np.linspace(-6, 6, 2001, dtype=np.float32), tf.bfloat16)
    exact = tf.cast(x, tf.float32)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, exact])
        ours = activate("gelu_new", x, keeps_slope=keeps_slope)
        theirs = tf.nn.gelu(exact, approximate=True)
    gradient = tape.gradient(ours, x)
    assert ours.dtype == gradient.dtype == tf.bfloat16
    np.testing.assert_allclose(
        tf.cast(gradient, tf.float32), tape.gradient(theirs, exact), rtol=2**-7, atol=1e-4
    )


@pytest.mark.parametrize("keeps_slope", [False, True])
def test_far_out_it_stays_finite(keeps_slope: bool) -> None:
    x = tf.constant([-1e30, -1e4, 0.0, 1e4], tf.float32)
    assert np.isfinite(activate("gelu_new", x, keeps_slope=keeps_slope).numpy()).all()


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_same_values_and_gradients_with_the_function_run_twice(mode):
    x, w = (tf.constant(np.random.default_rng(i).standard_normal((3, 3))) for i in range(2))
    calls: list[int] = []

    def function(x, w, unused):
        calls.append(1)
        return tf.tanh(tf.matmul(x, w)) * tf.reduce_sum(x)

    def run(is_recomputed):
        unused = tf.constant(1.0)
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = recompute(function, x, [w, unused]) if is_recomputed else function(x, w, unused)
        return y, *tape.gradient(y, [x, w])

    if mode != "eager":
        run = tf.function(run, jit_compile=mode == "jit", autograph=False)
    expected, counted = run(False), len(calls)
    recomputed = run(True)
    assert (counted, len(calls)) == (1, 1 + 2)
    for result, wanted in zip(recomputed, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-12)
