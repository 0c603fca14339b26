"""Recomputation by itself: values, gradients, and how often the function runs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model.layers import recompute


def _function(calls):
    def function(x, w, unused):
        calls.append(1)
        return tf.tanh(tf.matmul(x, w)) * tf.reduce_sum(x)

    return function


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_same_values_and_gradients_with_the_function_run_twice(mode):
    x, w = (tf.constant(np.random.default_rng(i).standard_normal((3, 3))) for i in range(2))
    results = []
    for wrap in (False, True):
        calls: list[int] = []
        function = _function(calls)

        def run(x, w, function=function, wrap=wrap):
            unused = tf.constant(1.0)
            with tf.GradientTape() as tape:
                tape.watch([x, w])
                y = recompute(function, x, [w, unused]) if wrap else function(x, w, unused)
            return y, *tape.gradient(y, [x, w])

        if mode != "eager":
            run = tf.function(run, jit_compile=mode == "jit", autograph=False)
        results.append([value.numpy() for value in run(x, w)])
        assert len(calls) == 1 + wrap
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
