"""The comparison on a GPU, whose pieces run on a CPU too."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from bigbird_ja.train.engines import devices
from scripts import bench_gpu

TINY = [
    "model.hidden_size=32", "model.num_layers=1", "model.num_attention_heads=2",
    "model.intermediate_size=48", "model.block_size=16", "model.num_random_blocks=1",
    "model.vocab_size=200", "make_data.seq_length=256", "make_data.max_predictions_per_seq=20",
]  # fmt: skip


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "has_gpu", lambda: False)
    assert bench_gpu.main([]) == 0
    assert "nothing was measured" in capsys.readouterr().out


def test_the_best_batch_is_found() -> None:
    rates = {1: 10.0, 2: 15.0, 4: 18.0, 8: 17.0}
    asked: list[int] = []

    def measure(batch: int) -> dict[str, Any]:
        asked.append(batch)
        rate = rates.get(batch)
        return {"tokens_per_second": rate} if rate else {"error": "out of memory"}

    assert bench_gpu.best(measure, 64) == {"tokens_per_second": 18.0, "batch": 4}
    assert asked == [1, 2, 4, 8]
    assert bench_gpu.best(measure, 2) == {"tokens_per_second": 15.0, "batch": 2}
    del rates[4], rates[8]
    assert bench_gpu.best(measure, 64)["batch"] == 2
    rates.clear()
    assert bench_gpu.best(measure, 64) == {"error": "out of memory"}


@pytest.mark.nightly
@pytest.mark.parametrize("number", [0, 1, 3])
def test_each_way_trains(number: int) -> None:
    pytest.importorskip("jax" if number == 0 else "torch")
    pytest.importorskip("transformers")
    options = argparse.Namespace(
        way=number, batch=2, steps=1, config="tiny-cpu", device="cpu", set=TINY
    )
    assert bench_gpu._one(options)["tokens_per_second"] > 0
