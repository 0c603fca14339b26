"""Rates, hours and money; expected hours against the supervisor of `launch` in virtual time."""

import random

import pytest

from bigbird_ja.accelerators import measured
from bigbird_ja.accelerators.chips import find
from bigbird_ja.accelerators.prices import load_prices
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.state import Ending
from bigbird_ja.launch.supervise import supervise
from bigbird_ja.model.flops import model_flops
from bigbird_ja.plan import estimate
from bigbird_ja.plan.estimate import MachineRate, Plan, Results
from bigbird_ja.settings.values import replace_settings
from testkit.configs import fitted, with_data
from testkit.simulated_cloud import SimulatedCloud, TrainerModel

BASE = with_data(fitted("base-4096"))
PRICES = load_prices()


def rate_of(name, results=None, run=BASE):
    return estimate.rate_of(find(name), Plan(*run, results or Results([])))


def test_rates_come_from_preflight_where_it_was_run():
    results = Results([{"chip": "v3", "tokens_per_second_per_core": 10_000.0, "fits": True}])
    compiled = MachineRate(80_000.0, "preflight, one chip, priced cycles", True)
    assert rate_of("v3-8", results) == compiled
    assumed = rate_of("v2-8", results)
    assert assumed.source == "MFU 34%, priced cycles"
    # By hand: 2-8 has 8 x 22.5 TFLOP/s; a BERT-base sequence takes some 2.5 TFLOP.
    by_hand = 8 * 22.5e12 * 0.34 * 4096 / 2.50e12
    assert assumed.tokens_per_second == pytest.approx(by_hand, rel=0.05)


@pytest.mark.parametrize(
    ("coverage", "factor", "basis"),
    [(0.98, 1.8, "0.9 x machine code"), (0.6, 1, "priced cycles"), (None, 1, "priced cycles")],
)
def test_rates_are_by_machine_code_where_nearly_all_of_it_was_counted(coverage, factor, basis):
    """Take 0.9 of it; priced cycles charge too much for fast memory."""
    keys = ("tokens_per_second", "priced_cycles", "code_cycles", "code_coverage")
    entry = dict(zip(keys, (80e3, 150e6, coverage and 75e6, coverage), strict=True))
    rate = rate_of("v5e-8", Results([], [entry | {"topology": "v5e:2x4"}]))
    assert rate == MachineRate(pytest.approx(80e3 * factor), f"preflight v5e:2x4, {basis}", True)


def test_each_architecture_has_its_own_share_of_the_peak():
    """Take 0.9 of the rate by machine code."""
    modern, machine = with_data(fitted("modernbert-8192")), find("v5e-8")
    rate = rate_of("v5e-8", run=modern).tokens_per_second
    reached = rate * model_flops(*modern, 1) / 8192 / machine.peak_flops
    assert reached == pytest.approx(0.9 * measured.CODE_MFU["modernbert"]["v5e"])
    assert reached < 0.9 * measured.CODE_MFU["bigbird"]["v5e"]
    assert rate_of("v5e-8").source == "MFU 57%, 0.9 x machine code"


def test_no_step_is_shorter_than_a_host_takes_to_start_it():
    tiny = with_data(fitted("tiny-cpu"))
    most = estimate.tokens_per_step(*tiny) / 0.005
    assert rate_of("v6e-8", run=tiny) == MachineRate(most, "5 ms a step, assumed")


def test_a_whole_slice_goes_before_one_chip_and_gets_a_row():
    chips = [
        {"chip": chip, "tokens_per_second_per_core": 10_000.0, "fits": True}
        for chip in ("v5e", "v3")
    ]
    slices = [
        {"topology": "v5e:2x4", "tokens_per_second": 70_000.0, "fits": True},
        {"topology": "v5e:4x4", "tokens_per_second": 150_000.0, "fits": True},
        {"topology": "v3:2x2", "tokens_per_second": None, "fits": False},
    ]
    made = estimate.make_rows([Plan(*BASE, Results(chips, slices))], PRICES)
    by_name = {(row.accelerator, row.pricing): row for row in made}
    assert by_name["v5e-8", "spot"].tokens_per_second == 70_000
    assert by_name["v5e-8", "spot"].rate_source == "preflight v5e:2x4, priced cycles"
    large = by_name["v5e-16", "on_demand"]
    assert large.tokens_per_second == 150_000 and "4 hosts" in large.note
    assert large.usd_per_hour == pytest.approx(16 * 1.416)  # the dearest of the zones
    assert by_name["v3-8", "spot"].fits is False
    assert "does not fit" in by_name["v3-8", "spot"].note
    assert by_name["v5e-1", "Colab"].tokens_per_second == 10_000  # no slice of its size
    assert len(made) == 2 + 2 * 8  # lent ones, seven usual ones and v5e-16; no row twice
    assert estimate.cheapest([by_name["v3-8", "spot"], large]) == large


def test_rows_hold_their_arithmetic():
    made = estimate.make_rows([Plan(*BASE)], PRICES)
    costs = [row.cost_usd for row in made if row.cost_usd is not None]
    assert costs == sorted(costs) and len(costs) == 14
    for row in made:
        assert (row.cost_usd is None) == ("no price is known" in row.note)
        assert row.hours is not None and row.hours > row.training_hours
        if row.usd_per_hour is None or row.pricing in PRICES.free:
            continue
        assert row.cost_usd == pytest.approx(row.hours * row.usd_per_hour)
        assert row.cost_usd_range == tuple(
            pytest.approx(row.cost_usd * measured.REACHED / share, rel=0.02)
            for share in reversed(measured.REACHED_RANGE)
        )
        assert row.preemptions == (
            0 if row.pricing == "on_demand" else pytest.approx(row.hours / 4)
        )


def test_a_batch_that_a_machine_does_not_divide_is_noted_and_never_the_cheapest():
    made = estimate.make_rows([Plan(*BASE)], PRICES, ("v5e-32",))
    assert {row.accelerator for row in made} == {"v5e-32"}
    assert not made[0].divides and estimate.cheapest(made) is None
    assert "a batch of 16 does not divide by 32" in made[0].note


def test_a_row_has_the_zones_that_launch_tries_and_a_free_machine_is_never_the_cheapest():
    made = estimate.make_rows([Plan(*BASE)], PRICES)
    by_name = {(row.accelerator, row.pricing): row for row in made}
    row = by_name["v6e-8", "spot"]
    assert row.zones == PRICES.usual_zones(find("v6e-8"), "spot") and row.zone == row.zones[0]
    assert row.usd_per_hour == PRICES.per_hour(find("v6e-8"), "spot", row.zones)
    assert estimate.cheapest(made) == by_name["v5e-8", "spot"]
    near = estimate.make_rows([Plan(*BASE)], PRICES, ("v5e-8",), "europe-west4")
    assert {row.zone for row in near} == {"europe-west4-b"}


@pytest.mark.parametrize("pricing", ["spot", "on_demand"])
def test_affordable_steps_cost_the_budget(pricing):
    """Plan the affordable steps: their cost is the budget."""
    run = Plan(*BASE)
    rows = estimate.make_rows([run], PRICES, ("v5e-8",))
    (row,) = [row for row in rows if row.pricing == pricing]
    share = estimate.affordable_share(run, row, 50.0)
    steps = round(share * run.config.training.num_train_steps)
    longer = replace_settings(run.config, {"training.num_train_steps": steps})
    again = estimate.make_rows([Plan(longer, run.data)], PRICES, ("v5e-8",))
    (cost,) = [row.cost_usd for row in again if row.pricing == pricing]
    assert cost == pytest.approx(50.0, rel=1e-4)
    assert estimate.affordable_share(run, row, 0.01) == 0.0


# --- the hours ---

DAYS = 60
INTERVAL, RATE = 600.0, 0.25  # of checkpoints, and of preemptions an hour


def useful_share(seed):
    """Simulate 60 days of training with one preemption in four hours; return the useful share."""
    trainer = TrainerModel(
        DAYS * 86_400 * 2, 2.0, INTERVAL, estimate.SAVE_SECONDS, estimate.RESTART_SECONDS
    )
    lifetimes = random.Random(seed)
    cloud = SimulatedCloud(trainer, lambda _: lifetimes.expovariate(RATE / 3600), fast=True)
    where = {"zones": ("zone-a", "zone-b"), "max_seconds": 365 * 86_400}
    record = LaunchedRun("gs://b", "simulated", "id-1", target_step=trainer.target_step, **where)
    state = supervise(record, cloud.world())
    assert state.ending is Ending.FINISHED and not cloud.nodes
    assert 250 < state.preemptions < 500
    return cloud.useful_seconds / cloud.rented_seconds


def test_the_simulated_supervisor_agrees_with_the_plan():
    time = estimate.run_time(DAYS * 24.0, INTERVAL, RATE)
    share = sum(map(useful_share, (1, 2, 3))) / 3
    assert share == pytest.approx(DAYS * 24.0 / time.rented_hours, abs=0.01)
