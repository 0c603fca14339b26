"""The progress line and its rates, with the clock passed in."""

from __future__ import annotations

import io

import pytest

from bigbird_ja.train.progress import Pace, TrainProgress, peak_flops


def make(peak: float | None = None, start: int = 0, before: float = 0.0) -> tuple:
    now = [100.0]
    pace = Pace(1000, 4000.0, 8, 1e12, peak)
    stream = io.StringIO()
    return TrainProgress(pace, start, before, stream, lambda: now[0]), now, stream


def metrics(step: int, rate: float) -> dict[str, float]:
    return {"step": step, "loss": 2.5, "masked_lm_accuracy": 0.25, "tokens_per_second": rate}


def test_rate_and_eta_follow_the_clock() -> None:
    progress, now, _ = make()
    now[0] += 10.0
    assert progress.measure(20) == pytest.approx(8000.0)
    assert progress.eta_seconds(20) == pytest.approx(490.0)
    now[0] += 5.0
    progress.restart_clock(20)  # an evaluation is no part of the rate
    now[0] += 10.0
    assert progress.measure(40) == pytest.approx(8000.0)


def test_the_line_says_all_that_was_promised() -> None:
    progress, now, stream = make(peak=50e12)
    now[0] += 10.0
    progress.show(metrics(20, progress.measure(20)))
    line = stream.getvalue()
    for part in (
        "step 20 of 1,000", "2.0%", "loss 2.5000", "accuracy 25.0%", "1,000 tokens/s/core",
        "8,000 tokens/s", "MFU 4.0%", "ETA 8 min 10 s", "trained 10 s",
    ):  # fmt: skip
        assert part in line


def test_train_time_goes_on_over_restarts() -> None:
    progress, now, _ = make(start=500, before=3600.0)
    now[0] += 30.0
    progress.begin()  # imports and tracing do not count
    now[0] += 60.0
    assert progress.train_seconds() == pytest.approx(3660.0)
    assert progress.measure(500) == 0.0


def test_lines_in_a_log_are_spaced_but_the_last_is_always_there() -> None:
    progress, now, stream = make()
    for step in range(10, 110, 10):
        now[0] += 0.5
        progress.show(metrics(step, progress.measure(step)), force=step == 100)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert 3 <= len(lines) <= 5 and "step 100 " in lines[-1]


def test_peaks_are_known_by_the_machines_own_names() -> None:
    assert peak_flops("v3-8") == 61.5e12
    assert peak_flops("v5litepod-8") == 197e12
    assert peak_flops(None) is None and peak_flops("gpu") is None
