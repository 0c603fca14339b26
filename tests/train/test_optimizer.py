"""AdamW against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.train import optimizer
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
        params, slots = optimizer.adamw(
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
