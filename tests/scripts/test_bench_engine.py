"""What `make bench-engine` makes of a run's log."""

from __future__ import annotations

import pytest

from scripts import bench_engine


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_step_takes_as_long_however_many_are_told_at_once(at_once: int) -> None:
    """2 s per step; the first ones, which are not measured, take longer."""
    ends = [30.0, 40.0, 50.0, *(60.0 + 2 * step for step in range(9))]
    metrics = [
        {"step": number + 1, "time": ends[number + (-number - 1) % at_once]}
        for number in range(len(ends))
    ]
    assert bench_engine.seconds_per_step(metrics) == pytest.approx(2.0)
