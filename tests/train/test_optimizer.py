"""The update rules against their definitions, and the learning rate at every step."""

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.train import optimizer
from bigbird_ja.train.optimizer import learning_rate
from tests.model.tiny import tiny_config

NAMES = (
    "bert/encoder/layer_0/output/dense/kernel",
    "bert/encoder/layer_0/output/dense/bias",
    "bert/encoder/layer_0/output/LayerNorm/gamma",
    "cls/predictions/transform/gamma",
)
DECAYED = {"adamw": NAMES[:1], "google": (NAMES[0], NAMES[3])}


def _gradients(step):
    random = np.random.default_rng(1000 + step)
    sizes = 10.0 ** random.uniform(-4, 1, len(NAMES))  # as the sizes of real ones differ
    return {
        name: (size * random.standard_normal((6, 5))).astype(np.float32)
        for name, size in zip(NAMES, sizes, strict=True)
    }


def _reference(rule, params, rates):
    """Each rule step by step in float64: AdamW as Loshchilov and Hutter define it, and
    AdamWeightDecayOptimizer of Google's BERT and BigBird code; gradients are halved."""
    params = {name: value.astype(np.float64) for name, value in params.items()}
    m = {name: np.zeros_like(value) for name, value in params.items()}
    v = {name: np.zeros_like(value) for name, value in params.items()}
    for step, rate in enumerate(rates):
        count = step + 1 if rule == "adamw" else np.inf  # Google's does not correct the means
        for name, gradient in _gradients(step).items():
            m[name] = 0.9 * m[name] + 0.1 * 0.5 * gradient
            v[name] = 0.999 * v[name] + 0.001 * (0.5 * gradient) ** 2
            mean, square = m[name] / (1 - 0.9**count), v[name] / (1 - 0.999**count)
            length = mean / (np.sqrt(square) + 1e-6)
            if name in DECAYED[rule]:
                length = length + 0.1 * params[name]
            params[name] = params[name] - rate * length
    return params


@pytest.mark.parametrize("rule", DECAYED)
def test_each_rule_trains_as_its_reference_does(rule):
    """200 steps: warm-up, peak, decay to zero; to 2e-6 of the weights of the reference."""
    sets = {"update_rule": rule, "schedule": "google", "num_train_steps": 200, "warmup_steps": 40}
    sets |= {"learning_rate": 1e-3, "weight_decay": 0.1}
    section = tiny_config(**{f"training.{key}": value for key, value in sets.items()}).training
    random = np.random.default_rng(1)
    start = {name: random.standard_normal((6, 5)).astype(np.float32) for name in NAMES}
    params = {name: tf.constant(value) for name, value in start.items()}
    slots = {slot: {name: tf.zeros_like(value) for name, value in params.items()} for slot in "mv"}
    decayed = {name: name.endswith("kernel") for name in NAMES}
    fixed = {"decayed": decayed, "muons": {}, "scale": tf.constant(0.5), "keep": tf.constant(True)}
    for step in range(200):
        at = tf.constant(step)
        now = {"global_step": at, "learning_rate": learning_rate(section, at)}
        gradients = {name: tf.constant(value) for name, value in _gradients(step).items()}
        params, slots = optimizer.update(section, params, slots, gradients, **fixed, **now)
    rates = [1e-3 * (s / 40 if s < 40 else 1 - s / 200) for s in range(200)]
    expected = _reference(rule, start, rates)
    for name, value in params.items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-6, atol=2e-6)
        assert np.abs(value - start[name]).max() > 0.005


def _curve(steps=100, beyond=0, **training):
    sets = {"num_train_steps": steps, "learning_rate": 0.5, "warmup_steps": 10, **training}
    section = tiny_config(**{f"training.{key}": value for key, value in sets.items()}).training
    return np.array([float(learning_rate(section, step)) for step in range(steps + beyond)])


STEPS = np.arange(100)
# The share of the peak after the warm-up.
CURVES = {
    "linear": (100 - STEPS) / 90,
    "cosine": 0.5 * (1 + np.cos(np.pi * (STEPS - 10) / 90)),
    "wsd": np.minimum(1, (100 - STEPS) / 20),
    "google": 1 - STEPS / 100,
}


@pytest.mark.parametrize("schedule", CURVES)
def test_the_rate_warms_up_and_falls_to_zero_at_the_last_step(schedule):
    """Google's warm-up starts at zero, and its line at the peak, at step 0."""
    decay = {"decay_fraction": 0.2} if schedule == "wsd" else {}
    curve = _curve(beyond=5, schedule=schedule, **decay)
    first = 0 if schedule == "google" else 1
    np.testing.assert_allclose(curve[:10], 0.05 * np.arange(first, first + 10), rtol=1e-6)
    np.testing.assert_allclose(curve[10:100], 0.5 * CURVES[schedule][10:], rtol=1e-5, atol=1e-6)
    assert not curve[100:].any()


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "google"])
@pytest.mark.parametrize("warmup", [0, 1, 200])
def test_odd_lengths_are_finite(schedule, warmup):
    decay = {"decay_fraction": 0.0} if schedule == "wsd" else {}
    curve = _curve(steps=3, schedule=schedule, warmup_steps=warmup, **decay)
    assert np.isfinite(curve).all() and (curve[1:] > 0).all() and (curve <= 0.5).all()
    assert curve[0] > 0 or (schedule == "google" and warmup)
