"""The search for the largest batch, and batches by config."""

from __future__ import annotations

from typing import Any

import pytest

from bigbird_ja.preflight import estimate, targets
from bigbird_ja.settings.resolve import complete_config, resolve_config
from bigbird_ja.settings.schema import Config


class Memory:
    """A step whose peak grows by `per_sequence`; notes which batches are tried."""

    def __init__(self, limit: float, base: float, per_sequence: float, knows: bool = True) -> None:
        self.limit, self.base, self.per_sequence, self.knows = limit, base, per_sequence, knows
        self.tried: list[int] = []

    def __call__(self, batch: int) -> dict[str, Any]:
        assert batch not in self.tried
        self.tried.append(batch)
        peak = self.base + self.per_sequence * batch
        result = {"batch_per_core": batch, "fits": peak <= self.limit}
        known = peak if result["fits"] or self.knows else None
        return result | {"hbm_limit_bytes": self.limit, "hbm_peak_bytes": known}


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("first", [2, 64])
@pytest.mark.parametrize(("limit", "base", "slope"), [(100, 10, 9), (100, 99, 9), (500, 1, 1.5)])
def test_the_largest_batch(limit, base, slope, first, knows) -> None:
    memory = Memory(limit, base, slope, knows)
    expected = int((limit - base) / slope)
    assert estimate.largest_batch(memory, memory(first)) == expected


def test_few_compilations_where_memory_is_linear_and_an_end_where_everything_fits() -> None:
    memory = Memory(7480, 2000, 400)
    assert estimate.largest_batch(memory, memory(2)) == 13
    assert len(memory.tried) <= 4
    memory = Memory(1e12, 1, 1)
    assert estimate.largest_batch(memory, memory(2)) == 1024


def _config(*sets: str) -> Config:
    return complete_config(resolve_config(None, sets)[0])


def test_batch_per_core() -> None:
    config = _config("training.global_batch_size=64", "training.gradient_accumulation_steps=2")
    assert estimate.batch_per_core(config, targets.of_chip("v3")) == 4  # by tpu.num_cores=8
    (large,) = targets.of_topologies(["v5e:4x8"], lambda places: [32] * len(places))
    assert estimate.batch_per_core(config, large) == 1
