"""The published programs, and the constants that are fitted to them."""

import json

import pytest

pytest.importorskip("jax", minversion="0.7", reason="the programs are written for jax 0.7")

from bigbird_ja.accelerators import measured
from scripts import clock
from testkit import ROOT


@pytest.fixture(scope="module")
def specs():
    return clock.load()


@pytest.fixture(scope="module")
def counts(specs):
    known = json.loads((ROOT / clock.CACHE).read_text("utf-8"))
    programs = {spec["name"]: spec for spec in specs}
    totals = {spec["name"]: clock.total(spec, programs, known) for spec in specs}
    return {name: total for name, total in totals.items() if total}


@pytest.fixture(scope="module")
def steps(specs, counts):
    """Return the whole steps with a published time and counts of the program itself."""
    return [
        spec
        for spec in specs
        if spec["kind"] == "step" and clock.published_ms(spec) and spec["name"] in counts
    ]


def test_the_constants_are_those_of_the_fit(steps, counts):
    assert len(steps) >= 30
    assert pytest.approx(clock.fit(steps, counts), abs=0.03) == measured.REACHED
    low, high = clock.interval(clock.judge(steps, counts))
    assert pytest.approx((low, high), abs=0.05) == measured.INTERVAL


def test_the_interval_covers_four_of_five_left_out_steps(steps, counts):
    low, high = measured.INTERVAL
    judged = clock.judge(steps, counts)
    assert sum(low <= one.ratio <= high for one in judged) >= 0.8 * len(judged)


def test_a_left_out_source_does_not_change_its_own_prediction(steps, counts):
    """Publish times ten times as long for one source: its predictions stay."""
    marin = [spec for spec in steps if spec["group"] == "marin"]
    slower = [
        spec | ({"measured_ms": 10 * spec["measured_ms"]} if spec in marin else {})
        for spec in steps
    ]
    before, after = (
        {one.spec["name"]: one.predicted for one in clock.judge(given, counts)}
        for given in (steps, slower)
    )
    for spec in marin:
        assert before[spec["name"]] == after[spec["name"]]


def test_every_program_without_a_time_is_predicted_with_an_interval():
    entries = json.loads((ROOT / clock.BLIND[2]).read_text("utf-8"))
    assert len(entries) == 28
    for entry in entries:
        low, high = entry["interval_ms"]
        assert low < entry["prediction_ms"] < high and entry["method"]


def test_work_of_a_step_by_hand(specs):
    (spec,) = [spec for spec in specs if spec["name"] == "v6e-8 Llama 3.1 8B step"]
    weights = 32 * (2 * 4096 * 128 * (32 + 8) + 3 * 4096 * 14336) + 4096 * 128_256
    attention = 32 * 4 * 8192 / 2 * 4096
    by_hand = 3 * (2 * weights + attention) * 3 * 8192
    assert clock.flops(spec) == pytest.approx(by_hand, rel=0.01)
