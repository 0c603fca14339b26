"""The learning rate at every step."""

from __future__ import annotations

import numpy as np
import pytest

from bigbird_ja.train.schedule import learning_rate
from tests.model.tiny import tiny_config


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
