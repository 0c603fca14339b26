"""Notices that are printed before a run starts."""

import os

import pytest

from bigbird_ja.train.engines import devices
from bigbird_ja.train.engines.choose import Choice
from bigbird_ja.train.notices import make_cpu_warning
from testkit.configs import fitted, with_data


def test_cpu_warning_is_for_long_runs_without_an_accelerator(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(devices, "has_gpu", lambda: False)
    cpu, base = Choice("estimator", "", False, 1, "CPU or GPU"), with_data(fitted("base-4096"))
    warning = make_cpu_warning(*base, cpu)
    # A training step of base-4096 needs about 2.5 TFLOP per sequence. The warning assumes that two
    # CPU cores reach 100 GFLOP/s.
    training = base[0].training
    days = training.num_train_steps * training.global_batch_size * 2.5e12 / 100e9 / 86_400
    said = float(warning.partition("about ")[2].partition(" d")[0].replace(",", ""))
    assert said == pytest.approx(days, rel=0.05) and "`bigbird-ja plan`" in warning
    assert make_cpu_warning(*with_data(fitted("tiny-cpu")), cpu) is None
    assert make_cpu_warning(*base, Choice("estimator", "", True, 8, "TPU")) is None
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    assert make_cpu_warning(*base, cpu) is None
