"""Where a compiler refuses the kernels that `auto` had chosen, the run goes on XLA's way."""

import pytest

from bigbird_ja.model import kernels
from testkit.configs import fitted, with_data

pytest.importorskip("jax")

from bigbird_ja.train.engines import pjrt
from bigbird_ja.train.engines.devices import Devices
from bigbird_ja.train.engines.pjrt import PjrtEngine


def test_auto_continues_without_them(monkeypatch, capsys):
    """For a v5e whose compiler takes XLA's way only."""
    monkeypatch.setattr(kernels, "_version", lambda package: (99, 0))
    monkeypatch.setattr(Devices, "chip", "v5e")
    for name in ("Mesh", "NamedSharding"):  # asking jax for devices would look for a TPU
        monkeypatch.setattr(pjrt, name, lambda *_: None)

    def compile_(engine):
        if engine._step_config.model.attention_implementation == "kernel":
            raise RuntimeError("INTERNAL: Mosaic failed to compile TPU kernel")
        return "the step"

    monkeypatch.setattr(PjrtEngine, "_compile", compile_)
    run = with_data(fitted("base-4096", ["training.global_batch_size=1"]))
    engine = PjrtEngine(*run, dict, lambda *_: None, Devices("tpu", (object(),)))  # type: ignore[arg-type,return-value]
    assert engine._step_config.model.attention_implementation == "kernel"
    assert engine._compile_with_fallback() == "the step"  # type: ignore[comparison-overlap]
    said = "model.attention_implementation=auto: xla, as this compiler refuses"
    assert said in capsys.readouterr().err
