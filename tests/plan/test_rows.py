"""Rates, hours and money."""

import math
from types import SimpleNamespace

import pytest

from bigbird_ja import accelerators
from bigbird_ja.accelerators import prices
from bigbird_ja.model.params import model_flops
from bigbird_ja.plan import hours
from bigbird_ja.plan import rows as plan
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings import requested_data
from testkit.configs import fitted, with_data

CONFIG = fitted("base-4096")


def run_of(steps=10_000, config=CONFIG, **more):
    data = requested_data(config)
    more = {"overheads": hours.Overheads(), "epoch": plan.estimated_data(data), **more}
    return plan.Plan(config, data, steps, prices=prices.load(), **more)


def test_tokens_and_steps():
    data = plan.DataFacts(1600, 1e9, None)
    assert hours.tokens_per_step(*with_data(CONFIG)) == 16 * 4096
    assert plan.steps_for(*with_data(CONFIG), None, None, data) == CONFIG.training.num_train_steps
    assert plan.steps_for(*with_data(CONFIG), 1e9, None, data) == math.ceil(1e9 / 65536)
    assert plan.steps_for(*with_data(CONFIG), None, 3, data) == 300
    with pytest.raises(BadInput):
        plan.steps_for(*with_data(CONFIG), None, 3, plan.DataFacts(None, 0, None))


def test_rates_come_from_preflight_where_it_was_run():
    chips = [{"chip": "v3", "tokens_per_second_per_core": 10_000.0, "fits": True}]
    figures = hours.Figures(chips)

    def rate(name, mfu=None):
        return hours.rate_of(accelerators.find(name), *with_data(CONFIG), figures, mfu)

    assert rate("v3-8") == hours.Rate(80_000.0, "preflight, one chip, priced cycles", True)
    assert rate("v2-8").source == "MFU 34%, priced cycles"
    assert rate("v2-8", 0.2).source == "MFU 20%, assumed"
    # By hand: 2-8 has 8 x 22.5 TFLOP/s; a BERT-base sequence takes some 2.5 TFLOP.
    assert rate("v2-8").tokens_per_second == pytest.approx(
        8 * 22.5e12 * 0.34 * 4096 / 2.50e12, rel=0.05
    )
    assert rate("v2-8", 0.17).tokens_per_second == pytest.approx(rate("v2-8").tokens_per_second / 2)


@pytest.mark.parametrize(
    ("coverage", "factor", "basis"),
    [(0.98, 1.2, "0.6 x machine code"), (0.6, 1, "priced cycles"), (None, 1, "priced cycles")],
)
def test_rates_are_by_machine_code_where_nearly_all_of_it_was_counted(coverage, factor, basis):
    """Of which 0.6 is taken; priced cycles charge too much for fast memory."""
    keys = ("tokens_per_second", "priced_cycles", "code_cycles", "code_coverage")
    entry = dict(zip(keys, (80e3, 150e6, coverage and 75e6, coverage), strict=True))
    whole = entry | {"topology": "v5e:2x4", "chip": "v5e"}
    rate = hours.rate_of(
        accelerators.find("v5e-8"), *with_data(CONFIG), hours.Figures((), [whole]), None
    )
    expected = pytest.approx(80e3 * factor)
    assert rate == hours.Rate(expected, f"preflight v5e:2x4, {basis}", True)


def test_tables_rates_are_by_machine_code_too():
    """v5e's 63 % are counted by machine code."""
    rate = hours.rate_of(accelerators.find("v5e-8"), *with_data(CONFIG), hours.Figures(), None)
    assert rate.source == "MFU 38%, 0.6 x machine code"
    whole = hours.rate_of(accelerators.find("v5e-8"), *with_data(CONFIG), hours.Figures(), 0.63)
    assert whole.tokens_per_second == pytest.approx(rate.tokens_per_second / 0.6)


def test_each_architecture_has_its_own_share_of_the_peak():
    modern = fitted("modernbert-8192")
    machine = accelerators.find("v5e-8")
    rate = hours.rate_of(machine, *with_data(modern), hours.Figures(), None)
    reached = (
        rate.tokens_per_second * model_flops(*with_data(modern), 1) / 8192 / machine.peak_flops
    )
    assert reached == pytest.approx(0.6 * accelerators.CODE_MFU["modernbert"]["v5e"])
    assert reached < 0.6 * accelerators.CODE_MFU["bigbird"]["v5e"]


def test_no_step_is_shorter_than_a_host_takes_to_start_it():
    tiny = fitted("tiny-cpu")
    rate = hours.rate_of(accelerators.find("v6e-8"), *with_data(tiny), hours.Figures(), None)
    assert rate == hours.Rate(
        hours.tokens_per_step(*with_data(tiny)) / 0.005, "5 ms a step, assumed"
    )


def test_a_whole_slice_goes_before_one_chip_and_gets_a_row():
    chips = [{"chip": "v5e", "tokens_per_second_per_core": 10_000.0, "fits": True}]
    slices = [
        {"topology": "v5e:2x4", "chip": "v5e", "tokens_per_second": 70_000.0, "fits": True},
        {"topology": "v5e:4x4", "chip": "v5e", "tokens_per_second": 150_000.0, "fits": True},
        {"topology": "v3:2x2", "chip": "v3", "tokens_per_second": None, "fits": False},
    ]
    rows = plan.make_rows(run_of(figures=hours.Figures(chips, slices)))
    by_name = {(row.accelerator, row.pricing): row for row in rows}
    assert by_name["v5e-8", "spot"].tokens_per_second == 70_000
    assert by_name["v5e-8", "spot"].rate_source == "preflight v5e:2x4, priced cycles"
    assert by_name["v5e-1", "Colab"].tokens_per_second == 10_000  # no slice of its size
    large = by_name["v5e-16", "on_demand"]
    assert large.tokens_per_second == 150_000 and "4 hosts" in large.note
    assert large.usd_per_hour == pytest.approx(16 * 1.20)
    assert by_name["v3-8", "spot"].fits is False and not by_name["v3-8", "spot"].runs
    assert "does not fit" in by_name["v3-8", "spot"].note
    assert len(rows) == 2 + 2 * 8  # lent ones, seven usual ones and v5e-16; no row twice


def test_rows_hold_their_arithmetic():
    rows = plan.make_rows(run_of())
    costs = [row.cost_usd for row in rows if row.cost_usd is not None]
    assert costs == sorted(costs) and len(costs) == 14
    for row in rows:
        assert (row.cost_usd is None) == ("no price is known" in row.note)
        assert row.hours is not None and row.hours > row.training_hours
        if row.usd_per_hour is None or row.pricing in prices.load().free:
            continue
        assert row.compute_usd == pytest.approx(row.hours * row.usd_per_hour)
        assert row.cost_usd == pytest.approx(row.compute_usd + row.storage_usd + row.egress_usd)
        assert row.preemptions == (
            0 if row.pricing == "on_demand" else pytest.approx(row.hours / 4)
        )


def test_a_batch_that_a_machine_does_not_divide_is_noted():
    rows = plan.make_rows(run_of(), ("v5e-32",))
    assert {row.accelerator for row in rows} == {"v5e-32"}
    assert not rows[0].divides and not rows[0].runs
    assert "a batch of 16 does not divide by 32" in rows[0].note


def test_a_row_has_the_zone_of_its_price_beside_the_bucket_where_there_is_one():
    cheapest = {(r.accelerator, r.pricing): r for r in plan.make_rows(run_of())}
    assert cheapest["v6e-8", "spot"].zone == "asia-southeast1-b"
    assert cheapest["v6e-8", "on_demand"].zone == "us-central1-b"
    there = plan.make_rows(run_of(zones=("europe-west4-a",)))
    rented = {(r.accelerator, r.zone) for r in there if r.pricing in prices.PRICINGS}
    assert rented == {(name, "europe-west4-a") for name in ("v2-8", "v3-8", "v5e-8", "v6e-8")}
    beside = plan.make_rows(run_of(bucket_region="europe-west4"))
    zones = {row.accelerator: row.zone for row in beside if row.pricing == "spot"}
    assert zones["v6e-8"] == zones["v3-8"] == "europe-west4-a"
    assert zones["v4-8"] == "us-central2-b"  # the only one
    assert [row.egress_usd == 0 for row in beside if row.accelerator == "v5p-8"] == [True, True]


def test_egress_is_paid_per_epoch_and_only_between_regions():
    shards = [SimpleNamespace(records=600, bytes=2e9), SimpleNamespace(records=1000, bytes=3e9)]
    data = plan.manifest_data(SimpleNamespace(train_shards=shards))
    for zone, usd in (("us-central1-b", 0), ("us-central1-a", 0), ("europe-west4-a", 10 * 0.08)):
        run = run_of(200, epoch=data, bucket_region="us-central1", zones=(zone,))
        rows = plan.make_rows(run, ("v2-8", "v5e-8"))
        assert [row.egress_usd for row in rows] == [pytest.approx(usd)] * len(rows)


def test_a_run_that_never_ends_has_no_price():
    rows = plan.make_rows(run_of(overheads=hours.Overheads(preemptions_per_hour=20)))
    spot = [row for row in rows if row.pricing == "spot"]
    assert {(row.cost_usd, row.hours, row.runs) for row in spot} == {(None, None, False)}
    assert rows[-1].cost_usd is None  # they come last
