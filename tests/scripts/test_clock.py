"""Predictions for published programs, and the constants that are fitted to them."""

import json

import pytest

pytest.importorskip("jax", minversion="0.7", reason="the programs are written for jax 0.7")

import msgspec

from bigbird_ja.accelerators import measured
from scripts import clock
from testkit import ROOT


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def programs():
    return clock.load()


@pytest.fixture
def counts(programs):
    return clock.all_counts(programs)


@pytest.fixture
def steps(programs, counts):
    """Return the programs of train steps that have a published time and stored counts."""
    return [
        p for p in programs.values() if p.kind == "step" and p.published_ms and p.name in counts
    ]


def test_the_constants_are_those_of_the_fit(steps, counts):
    assert len(steps) >= 30
    assert pytest.approx(clock.fit(steps, counts), abs=0.03) == measured.REACHED
    low, high = clock.interval(steps, clock.judge(steps, counts))
    assert pytest.approx((low, high), abs=0.05) == measured.INTERVAL


def test_the_interval_covers_four_of_five_left_out_steps(steps, counts):
    ratios = clock.judge(steps, counts)
    assert sum(map(clock.is_inside, ratios)) >= 0.8 * len(steps) == 0.8 * len(ratios)


def test_a_left_out_source_does_not_change_its_own_prediction(steps, counts):
    """Multiply the published times of one source by 10, so that its ratios grow tenfold."""
    slower = [
        msgspec.structs.replace(p, measured_ms=10 * p.measured_ms) if p.group == "marin" else p
        for p in steps
    ]
    before, after = (clock.judge(given, counts) for given in (steps, slower))
    for p, one, other in zip(steps, before, after, strict=True):
        if p.group == "marin":
            assert other == pytest.approx(10 * one)


def test_the_page_has_the_tables_of_the_stored_counts(programs, counts):
    text = clock.PAGE.read_text("utf-8").partition(clock.BEGIN)[2].partition(clock.END)[0]
    assert text.splitlines() == clock.tables(programs, counts)


def test_every_prediction_of_the_second_set_repeats(programs, counts):
    """Repeat the predictions with the constants of the day on which they were made."""
    reached, interval = 1.1, (0.8, 1.4)
    entries = json.loads(clock.BLIND[2].read_text("utf-8"))
    assert len(entries) == 28
    for entry in entries:
        program = programs[entry["name"]]
        time = clock.predicted_ms(program, counts[program.name], reached)
        time *= entry["ratio_of_source"]
        # The stored ratio is rounded.
        assert entry["prediction_ms"] == pytest.approx(time, rel=5e-4)
        ends = [entry["prediction_ms"] * end for end in interval]
        assert entry["interval_ms"] == pytest.approx(ends, abs=2e-3) and entry["method"]


def test_work_of_a_step_by_hand(programs):
    program = programs["v6e-8 Llama 3.1 8B step"]
    weights = 32 * (2 * 4096 * 128 * (32 + 8) + 3 * 4096 * 14336) + 4096 * 128_256
    attention = 32 * 4 * 8192 / 2 * 4096
    by_hand = 3 * (2 * weights + attention) * 3 * 8192
    assert clock.flops(program) == pytest.approx(by_hand, rel=0.01)
