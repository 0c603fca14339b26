"""The devices that are found."""

import os

import pytest

from bigbird_ja.train.engines import devices
from testkit.machines import PretendedMachine

jax = pytest.importorskip("jax")


def test_sums_on_a_gpu_come_in_one_order(monkeypatch):
    machine = PretendedMachine(monkeypatch, {"jax": "99", "jax_cuda12_plugin": "99"}, ())
    machine.files = devices.GPU_FILES
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    assert devices.prepare(use_tpu=False) == "cuda"
    flags = os.environ["XLA_FLAGS"]
    assert flags.startswith("--xla_dump_to=x ") and "--xla_gpu_deterministic_ops=true" in flags
