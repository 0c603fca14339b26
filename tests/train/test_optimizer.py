"""AdamW against its definition, and the learning rate at every step."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.train import optimizer
from bigbird_ja.train.optimizer import learning_rate
from bigbird_ja.train.step import initial_slots
from tests.model.tiny import tiny_config

_TRAINING = tiny_config(**{"training.weight_decay": 0.1}).training
_DECAYED = {"kernel": True, "bias": False}


def _start():
    random = np.random.default_rng(0)
    return {
        "kernel": random.standard_normal((4, 3)).astype(np.float32),
        "bias": random.standard_normal(3).astype(np.float32),
    }


def _gradients(step):
    random = np.random.default_rng(100 + step)
    return {name: random.standard_normal(value.shape) for name, value in _start().items()}


def _run(steps, *, scale=1.0, keep=lambda step: True):
    params = {name: tf.constant(value) for name, value in _start().items()}
    slots = initial_slots(params)
    for step in range(steps):
        gradients = {name: tf.constant(g, tf.float32) for name, g in _gradients(step).items()}
        params, slots = optimizer.update(
            _TRAINING,
            params,
            slots,
            gradients,
            decayed=_DECAYED,
            global_step=tf.constant(step),
            learning_rate=tf.constant(0.01),
            scale=tf.constant(scale),
            keep=tf.constant(keep(step)),
        )
    return params, slots


def test_five_steps_follow_the_definition():
    params, _ = _run(5, scale=0.5)
    for name, theta in _start().items():
        theta = theta.astype(np.float64)
        m, v = np.zeros_like(theta), np.zeros_like(theta)
        for step in range(5):
            gradient = 0.5 * _gradients(step)[name]
            m = 0.9 * m + 0.1 * gradient
            v = 0.999 * v + 0.001 * gradient**2
            corrected = m / (1 - 0.9 ** (step + 1))
            root = np.sqrt(v / (1 - 0.999 ** (step + 1)))
            decay = 0.1 * theta if _DECAYED[name] else 0.0
            theta = theta - 0.01 * (corrected / (root + 1e-6) + decay)
        np.testing.assert_allclose(params[name], theta, rtol=1e-5, atol=1e-6)


def test_it_is_the_adamw_of_pytorch():
    torch = pytest.importorskip("torch", reason="the comparison needs PyTorch")
    theirs = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in _start().items()}
    groups = [
        {"params": [theirs["kernel"]], "weight_decay": 0.1},
        {"params": [theirs["bias"]], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.999), eps=1e-6)
    for step in range(5):
        for name, gradient in _gradients(step).items():
            theirs[name].grad = torch.tensor(gradient, dtype=torch.float32)
        reference.step()
    params, _ = _run(5)
    for name, value in params.items():
        np.testing.assert_allclose(value, theirs[name].detach().numpy(), rtol=1e-5, atol=1e-6)


def google_s_rule(params, gradients, rates):
    """AdamWeightDecayOptimizer of Google's BERT and BigBird code, step by step in float64."""
    params = {name: value.astype(np.float64) for name, value in params.items()}
    m = {name: np.zeros_like(value) for name, value in params.items()}
    v = {name: np.zeros_like(value) for name, value in params.items()}
    for step, rate in enumerate(rates):
        for name, gradient in gradients(step).items():
            m[name] = 0.9 * m[name] + 0.1 * gradient
            v[name] = 0.999 * v[name] + 0.001 * gradient**2
            length = m[name] / (np.sqrt(v[name]) + 1e-6)
            if not any(part in name for part in ("LayerNorm", "layer_norm", "bias")):
                length = length + 0.01 * params[name]
            params[name] = params[name] - rate * length
    return params


def test_google_s_rule_and_schedule_train_as_its_code_does():
    """200 steps: warm-up, peak, decay to zero; to 2e-6 of the weights of the reference."""
    section = tiny_config(
        **{
            "training.update_rule": "google",
            "training.schedule": "google",
            "training.num_train_steps": 200,
            "training.warmup_steps": 40,
            "training.learning_rate": 1e-3,
        }
    ).training
    names = (
        "bert/encoder/layer_0/output/dense/kernel", "bert/encoder/layer_0/output/dense/bias",
        "bert/encoder/layer_0/output/LayerNorm/gamma", "cls/predictions/transform/gamma",
    )  # fmt: skip
    random = np.random.default_rng(1)
    start = {name: random.standard_normal((6, 5)).astype(np.float32) for name in names}

    def gradients(step):
        random = np.random.default_rng(1000 + step)
        sizes = 10.0 ** random.uniform(-4, 1, len(names))  # as the sizes of real ones differ
        return {
            name: (size * random.standard_normal((6, 5))).astype(np.float32)
            for name, size in zip(names, sizes, strict=True)
        }

    params = {name: tf.constant(value) for name, value in start.items()}
    slots = initial_slots(params)
    decayed = {name: name.endswith("kernel") for name in names}
    for step in range(200):
        at = tf.constant(step)
        params, slots = optimizer.update(
            section, params, slots, {n: tf.constant(g) for n, g in gradients(step).items()},
            decayed=decayed, global_step=at, learning_rate=learning_rate(section, at),
            scale=tf.constant(1.0), keep=tf.constant(True),
        )  # fmt: skip
    rates = [1e-3 * (s / 40 if s < 40 else 1 - s / 200) for s in range(200)]
    expected = google_s_rule(start, gradients, rates)
    for name, value in params.items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-6, atol=2e-6)
        assert np.abs(value - start[name]).max() > 0.05


def test_how_much_longer_google_s_updates_are():
    """As `optimizer` says: the ratio of the two rules for the same gradient at every step."""
    lengths = {}
    for rule in ("adamw", "google"):
        section = tiny_config(
            **{"training.update_rule": rule, "training.weight_decay": 0.0}
        ).training
        params = {"kernel": tf.zeros([1])}
        slots, moved = initial_slots(params), []
        for step in range(1000):
            new, slots = optimizer.update(
                section, params, slots, {"kernel": tf.ones([1])}, decayed={"kernel": True},
                global_step=tf.constant(step), learning_rate=tf.constant(1.0),
                scale=tf.constant(1.0), keep=tf.constant(True),
            )  # fmt: skip
            moved.append(abs(float(new["kernel"][0])))
        lengths[rule] = np.array(moved)
    ratio = lengths["google"] / lengths["adamw"]
    assert ratio.argmax() + 1 == 12
    np.testing.assert_allclose(ratio[[0, 11, 999]], [3.162, 6.569, 1.258], rtol=1e-3)


def test_a_step_not_kept_changes_nothing():
    before, slots_before = _run(2)
    after, slots_after = _run(3, keep=lambda step: step < 2)
    tf.nest.map_structure(
        np.testing.assert_array_equal, (before, slots_before), (after, slots_after)
    )


def test_global_norm_and_clipping():
    gradients = {"a": tf.constant([3.0, 0.0]), "b": tf.constant([[4.0]])}
    norm = optimizer.global_norm(gradients)
    assert float(norm) == pytest.approx(5.0)
    assert float(optimizer.clip_factor(norm, 1.0)) == pytest.approx(0.2)
    assert float(optimizer.clip_factor(norm, 10.0)) == 1.0
    assert float(optimizer.clip_factor(norm, 0.0)) == 1.0


def _curve(steps=100, beyond=0, **training):
    sets = {"num_train_steps": steps, "learning_rate": 0.5, "warmup_steps": 10, **training}
    section = tiny_config(**{f"training.{key}": value for key, value in sets.items()}).training
    return np.array([float(learning_rate(section, step)) for step in range(steps + beyond)])


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_warm_up_rises_in_equal_steps_to_the_peak(schedule):
    curve = _curve(schedule=schedule)
    np.testing.assert_allclose(curve[:10], 0.05 * np.arange(1, 11), rtol=1e-6)
    assert curve.max() == pytest.approx(0.5)


def test_linear_falls_to_zero_at_the_last_step():
    curve = _curve(beyond=5, schedule="linear")
    np.testing.assert_allclose(curve[10:100], 0.5 * (100 - np.arange(10, 100)) / 90, rtol=1e-5)
    assert not curve[100:].any()


def test_google_s_is_that_of_its_code():
    """Its warm-up starts at zero; its line starts at the peak, at step 0."""
    curve = _curve(beyond=3, schedule="google")
    np.testing.assert_allclose(curve[:10], 0.5 * np.arange(10) / 10, rtol=1e-6)
    np.testing.assert_allclose(curve[10:100], 0.5 * (1 - np.arange(10, 100) / 100), rtol=1e-5)
    assert not curve[100:].any()


def test_cosine_follows_half_a_cosine():
    curve = _curve(beyond=5, schedule="cosine")
    progress = (np.arange(10, 100) - 10) / 90
    np.testing.assert_allclose(curve[10:100], 0.25 * (1 + np.cos(np.pi * progress)), atol=1e-6)
    assert not curve[100:].any()


def test_wsd_stays_at_the_peak_then_decays():
    curve = _curve(beyond=5, schedule="wsd", decay_fraction=0.2)
    np.testing.assert_allclose(curve[10:80], 0.5, rtol=1e-6)
    np.testing.assert_allclose(curve[80:100], 0.5 * np.arange(20, 0, -1) / 20, rtol=1e-5)
    assert not curve[100:].any()


def test_wsd_is_the_same_whatever_the_length_until_it_decays():
    short = _curve(steps=50, schedule="wsd", decay_fraction=0.2)
    long = _curve(steps=100, schedule="wsd", decay_fraction=0.2)
    np.testing.assert_array_equal(short[:40], long[:40])


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "google"])
@pytest.mark.parametrize("warmup", [0, 1, 200])
def test_odd_lengths_are_finite(schedule, warmup):
    decay = {"decay_fraction": 0.0} if schedule == "wsd" else {}
    curve = _curve(steps=3, schedule=schedule, warmup_steps=warmup, **decay)
    assert np.isfinite(curve).all() and (curve[1:] > 0).all() and (curve <= 0.5).all()
    assert curve[0] > 0 or (schedule == "google" and warmup)
