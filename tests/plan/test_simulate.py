"""The simulation: the real supervisor in virtual time, against arithmetic."""

from __future__ import annotations

import random

import pytest

from bigbird_ja.launch import simulate
from bigbird_ja.launch.simulated_cloud import TrainerModel
from bigbird_ja.plan import cost
from bigbird_ja.plan.cost import Overheads

MONTH = TrainerModel(target_step=30 * 86_400 * 2, steps_per_second=2.0)


@pytest.mark.parametrize("model", simulate.MODELS)
def test_months_finish_and_leave_nothing(model: str) -> None:
    outcome = simulate.simulate(model, 4.0, MONTH, seed=1)
    assert outcome.finished
    assert outcome.left_over == 0
    assert outcome.days > 30
    assert 100 < outcome.preemptions < 300
    assert 0.8 < outcome.wall_share < outcome.useful_share < 1.0


def test_seeds_decide() -> None:
    first = simulate.simulate("bursty", 4.0, MONTH, seed=1)
    assert simulate.simulate("bursty", 4.0, MONTH, seed=1) == first
    assert simulate.simulate("bursty", 4.0, MONTH, seed=2) != first


def test_exponential_simulation_agrees_with_the_plan() -> None:
    """Two ways to the same figure: formula and simulated supervisor."""
    points = simulate.sweep("exponential", 4.0, 60, [10.0], [1, 2, 3], 15.0, 360.0)
    time = cost.run_time(60 * 24.0, Overheads(0.25, 600.0, 15.0, 360.0), preemptible=True)
    assert points[0].share == pytest.approx(time.useful_share, abs=0.01)


def test_best_interval_is_near_youngs() -> None:
    minutes = [1.0, 3.0, 10.0, 30.0, 120.0]
    points = simulate.sweep("exponential", 4.0, 20, minutes, [1, 2], 15.0, 360.0)
    assert simulate.best(points).interval_minutes == 10.0
    assert cost.best_interval(Overheads(0.25, save_seconds=15.0)) == pytest.approx(657, abs=1)


def test_both_models_have_the_stated_mean() -> None:
    for model, tolerance in (("exponential", 0.05), ("bursty", 0.2)):
        lifetime, _ = simulate._FACTORIES[model](4.0, random.Random(7))
        now, count = 0.0, 0
        while now < 700 * 24 * 3600.0:
            now += lifetime(now)
            count += 1
        assert now / count / 3600 == pytest.approx(4.0, rel=tolerance), model
