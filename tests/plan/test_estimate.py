"""Rates, hours and costs of `plan`, compared with manual sums and a simulated supervisor."""

import random

import pytest

from bigbird_ja.accelerators import measured
from bigbird_ja.accelerators.chips import find
from bigbird_ja.accelerators.prices import load_prices
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.state import Ending
from bigbird_ja.launch.supervise import supervise
from bigbird_ja.model.flops import count_model_flops
from bigbird_ja.plan import estimate
from bigbird_ja.plan.estimate import MachineRate, Plan
from bigbird_ja.preflight.results import PreflightResult, StepResult
from bigbird_ja.settings.values import replace_settings
from testkit.configs import fitted, with_data
from testkit.simulated_cloud import SimulatedCloud, TrainerModel

BASE = with_data(fitted("base-4096"))
PRICES = load_prices()


def step(chip, milliseconds, **figures):
    """Return a result of `preflight` whose interval extends from half to twice the step time."""
    rate = {"tokens_per_second_per_core": 8192 / milliseconds * 1e3}
    times = {"step_ms": milliseconds, "step_ms_range": (milliseconds / 2, 2 * milliseconds)}
    shape = {"chip": chip, "fits": True, "seq_length": 4096, "batch_per_core": 2}
    return StepResult(**shape | times | rate | {"basis": "machine code"} | figures)


def estimate_rate(name, results=None, run=BASE):
    return estimate.estimate_rate(find(name), Plan(*run, results or PreflightResult()))


def test_rates_come_from_preflight_where_it_was_run():
    results = PreflightResult(chips=[step("v3", 819.2)])
    compiled = MachineRate(80_000.0, 2.0, 0.5, "preflight, one chip, machine code", True)
    assert estimate_rate("v3-8", results) == compiled
    assumed = estimate_rate("v2-8", results)
    assert assumed.source == "share of the peak of a compiled bigbird"
    # Manual sum: v2-8 has 8 x 22.5 TFLOP/s, and a sequence of BERT-base takes about 2.5 TFLOP.
    share = measured.SHARES["bigbird"]["v2"]
    seconds = 16 * 2.50e12 / (8 * 22.5e12 * share) + measured.HOST_SECONDS
    assert assumed.tokens_per_second == pytest.approx(16 * 4096 / seconds, rel=0.05)


def test_each_architecture_has_its_own_share_of_the_peak():
    modern, machine = with_data(fitted("modernbert-8192")), find("v5e-8")
    seconds = (
        estimate.count_tokens_per_step(*modern)
        / estimate_rate("v5e-8", run=modern).tokens_per_second
    )
    flops = count_model_flops(*modern, 1) * modern[0].training.global_batch_size
    reached = flops / machine.peak_flops / (seconds - measured.HOST_SECONDS)
    assert reached == pytest.approx(measured.SHARES["modernbert"]["v5e"])


def test_a_narrow_model_reaches_less_and_its_interval_contains_the_count_of_preflight():
    names = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
    sets = [f"model.{key}={value}" for key, value in names.items()]
    narrow = with_data(fitted("base-4096", sets))
    wide, thin = estimate_rate("v5e-8"), estimate_rate("v5e-8", run=narrow)
    flops = [count_model_flops(*run, 1) for run in (BASE, narrow)]
    reached = [
        rate.tokens_per_second * each for rate, each in zip((wide, thin), flops, strict=True)
    ]
    assert reached[1] < 0.75 * reached[0]


def test_no_step_is_shorter_than_the_host_takes_to_start_it():
    tiny = with_data(fitted("tiny-cpu"))
    most = estimate.count_tokens_per_step(*tiny) / measured.HOST_SECONDS
    assert 0.5 * most < estimate_rate("v6e-8", run=tiny).tokens_per_second < most


def test_a_whole_slice_goes_before_one_chip_and_gets_a_row():
    chips = [step(chip, 819.2) for chip in ("v5e", "v3")]
    slices = [
        step("v5e", 900, topology="v5e:2x4", tokens_per_second=70_000.0),
        step("v5e", 900, topology="v5e:4x4", tokens_per_second=150_000.0),
        StepResult(chip="v3", topology="v3:2x2", fits=False, seq_length=4096, batch_per_core=2),
    ]
    results = PreflightResult(chips=chips, topologies=slices)
    made = estimate.make_rows(Plan(*BASE, results), PRICES)
    by_name = {(row.accelerator, row.pricing): row for row in made}
    assert by_name["v5e-8", "spot"].tokens_per_second == 70_000
    assert by_name["v5e-8", "spot"].rate_source == "preflight v5e:2x4, machine code"
    large = by_name["v5e-16", "on_demand"]
    assert large.tokens_per_second == 150_000 and "4 hosts" in large.note
    # The most expensive zone determines the price.
    assert large.usd_per_hour == pytest.approx(16 * 1.416)
    assert by_name["v3-8", "spot"].fits is False
    assert "does not fit" in by_name["v3-8", "spot"].note
    assert by_name["v5e-1", "Colab"].tokens_per_second == 10_000  # No slice result has this size.
    # Two free machines, and spot and on-demand rows of seven usual machines and v5e-16.
    assert len(made) == 2 + 2 * 8
    assert estimate.find_cheapest([by_name["v3-8", "spot"], large]) == large


def test_rows_hold_their_arithmetic():
    made = estimate.make_rows(Plan(*BASE), PRICES)
    costs = [row.cost_usd for row in made if row.cost_usd is not None]
    assert costs == sorted(costs) and len(costs) == 14
    for row in made:
        assert (row.cost_usd is None) == ("no price is known" in row.note)
        assert row.hours is not None and row.hours > row.training_hours
        if row.usd_per_hour is None or row.pricing in PRICES.free:
            continue
        assert row.cost_usd == pytest.approx(row.hours * row.usd_per_hour)
        assert row.cost_usd_range == tuple(
            pytest.approx(row.cost_usd * share, rel=0.03) for share in measured.UNCOMPILED_INTERVAL
        )
        assert row.preemptions == (
            0 if row.pricing == "on_demand" else pytest.approx(row.hours / 4)
        )


def test_a_batch_that_a_machine_does_not_divide_is_noted_and_never_the_cheapest():
    made = estimate.make_rows(Plan(*BASE), PRICES, ("v5e-32",))
    assert {row.accelerator for row in made} == {"v5e-32"}
    assert not made[0].divides and estimate.find_cheapest(made) is None
    assert "a batch of 16 is not divisible by 32" in made[0].note


def test_a_row_has_the_zones_that_launch_tries_and_a_free_machine_is_never_the_cheapest():
    made = estimate.make_rows(Plan(*BASE), PRICES)
    by_name = {(row.accelerator, row.pricing): row for row in made}
    row = by_name["v6e-8", "spot"]
    assert row.zones == PRICES.choose_zones(find("v6e-8"), "spot") and row.zone == row.zones[0]
    assert row.usd_per_hour == PRICES.get_hourly_price(find("v6e-8"), "spot", row.zones)
    assert estimate.find_cheapest(made) == by_name["v5e-8", "spot"]
    near = estimate.make_rows(Plan(*BASE), PRICES, ("v5e-8",), "europe-west4")
    assert {row.zone for row in near} == {"europe-west4-b"}


@pytest.mark.parametrize("pricing", ["spot", "on_demand"])
def test_affordable_steps_cost_the_budget(pricing):
    """Compute the steps that a budget buys, and check that they cost the budget."""
    run = Plan(*BASE)
    rows = estimate.make_rows(run, PRICES, ("v5e-8",))
    (row,) = [row for row in rows if row.pricing == pricing]
    share = estimate.compute_affordable_share(run, row, 50.0)
    steps = round(share * run.config.training.num_train_steps)
    longer = replace_settings(run.config, {"training.num_train_steps": steps})
    again = estimate.make_rows(Plan(longer, run.data), PRICES, ("v5e-8",))
    (cost,) = [row.cost_usd for row in again if row.pricing == pricing]
    assert cost == pytest.approx(50.0, rel=1e-4)
    assert estimate.compute_affordable_share(run, row, 0.01) == 0.0


def test_the_hours_of_other_rates_of_preemptions_are_those_of_the_spot_row():
    run = Plan(*BASE)
    rows = {row.pricing: row for row in estimate.make_rows(run, PRICES, ("v5e-8",))}
    hours = estimate.list_hours_by_preemptions(
        run, rows["spot"], (0.1, run.preemptions_per_hour, 99.0)
    )
    assert hours["0.25"] == rows["spot"].hours > hours["0.1"] and hours["99"] is None
    assert estimate.list_hours_by_preemptions(run, rows["on_demand"], (0.1,)) == {}


# --- hours, compared with a simulated run ---

DAYS = 60
INTERVAL = 600.0  # seconds between checkpoints
RATE = 0.25  # preemptions per hour


def useful_share(seed):
    """Simulate 60 days of training with one preemption every four hours on average.

    Returns:
        Fraction of the rented time that was spent on steps that no preemption undid.
    """
    trainer = TrainerModel(
        DAYS * 86_400 * 2, 2.0, INTERVAL, estimate.SAVE_SECONDS, estimate.RESTART_SECONDS
    )
    lifetimes = random.Random(seed)
    cloud = SimulatedCloud(trainer, lambda _: lifetimes.expovariate(RATE / 3600), fast=True)
    where = {"zones": ("zone-a", "zone-b"), "max_seconds": 365 * 86_400}
    record = LaunchedRun("gs://b", "simulated", "id-1", target_step=trainer.target_step, **where)
    state = supervise(record, cloud.io())
    assert state.ending is Ending.FINISHED and not cloud.nodes
    assert 250 < state.preemptions < 500
    return cloud.useful_seconds / cloud.rented_seconds


def test_the_simulated_supervisor_agrees_with_the_plan():
    time = estimate.estimate_run_time(DAYS * 24.0, INTERVAL, RATE)
    share = sum(map(useful_share, (1, 2, 3))) / 3
    assert share == pytest.approx(DAYS * 24.0 / time.rented_hours, abs=0.01)
