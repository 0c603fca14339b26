"""The search for the largest batch, batches by config, figures on paper."""

from __future__ import annotations

from typing import Any

import pytest

from bigbird_ja.accelerators.chips import CHIPS, chip
from bigbird_ja.preflight import estimate, printout
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.resolve import complete_config, resolve_config
from bigbird_ja.settings.schema import Config


class Memory:
    """A step whose peak grows by `per_sequence`; counts what it is asked."""

    def __init__(self, limit: float, base: float, per_sequence: float, knows: bool = True) -> None:
        self.limit, self.base, self.per_sequence, self.knows = limit, base, per_sequence, knows
        self.asked: list[int] = []

    def __call__(self, batch: int) -> dict[str, Any]:
        assert batch not in self.asked
        self.asked.append(batch)
        peak = self.base + self.per_sequence * batch
        fits = peak <= self.limit
        return {
            "batch_per_core": batch, "fits": fits, "hbm_limit_bytes": self.limit,
            "hbm_peak_bytes": peak if fits or self.knows else None,
        }  # fmt: skip


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("first", [1, 2, 10, 64])
@pytest.mark.parametrize(("limit", "base", "slope"), [(100, 10, 9), (100, 99, 9), (500, 1, 1.5)])
def test_the_largest_batch(
    limit: float, base: float, slope: float, first: int, knows: bool
) -> None:
    memory = Memory(limit, base, slope, knows)
    expected = int((limit - base) / slope)
    assert estimate.largest_batch(memory, memory(first)) == expected


def test_few_compilations_where_memory_is_linear() -> None:
    memory = Memory(7480, 2000, 400)
    assert estimate.largest_batch(memory, memory(2)) == 13
    assert len(memory.asked) <= 4


def test_the_search_ends_where_everything_fits() -> None:
    memory = Memory(1e12, 1, 1)
    assert estimate.largest_batch(memory, memory(2)) == 1024


def _config(*sets: str) -> Config:
    return complete_config(resolve_config(None, sets)[0])


def test_batch_per_core() -> None:
    assert estimate.batch_per_core(_config("training.global_batch_size=16")) == 2
    both = _config("training.global_batch_size=64", "training.gradient_accumulation_steps=4")
    assert estimate.batch_per_core(both) == 2
    with pytest.raises(BadInput, match="does not divide"):
        estimate.batch_per_core(_config("training.global_batch_size=12"))


def test_batch_per_device_of_a_slice() -> None:
    config = _config("training.global_batch_size=64", "training.gradient_accumulation_steps=2")
    assert estimate.batch_per_core(config, 32) == 1
    with pytest.raises(BadInput, match="does not divide by 64 devices x "):
        estimate.batch_per_core(config, 64)


def test_an_all_reduce_on_paper() -> None:
    seconds = printout.all_reduce_seconds(110_000_000, 8, CHIPS["v3"])
    assert seconds == pytest.approx(2 * 7 / 8 * 440e6 / CHIPS["v3"].link_bytes_per_second)


def test_an_unknown_chip_names_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'v5e'"):
        chip("v5ee")
    assert all(name == known.name for name, known in CHIPS.items())
