"""gelu_new by way of the sigmoid is TensorFlow's tanh form, values and gradient."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from bigbird_ja.model.layers import activate


def test_gelu_new_and_its_gradient() -> None:
    x = tf.constant(np.linspace(-12, 12, 2001, dtype=np.float32))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ours = activate("gelu_new", x)
        theirs = tf.nn.gelu(x, approximate=True)
    np.testing.assert_allclose(ours, theirs, atol=2e-6)
    np.testing.assert_allclose(tape.gradient(ours, x), tape.gradient(theirs, x), atol=1e-5)


def test_far_out_it_stays_finite() -> None:
    x = tf.constant([-1e30, -1e4, 0.0, 1e4], tf.float32)
    assert np.isfinite(activate("gelu_new", x).numpy()).all()
