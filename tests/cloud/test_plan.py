"""Prices, FLOPs, hours and money."""

from __future__ import annotations

import datetime
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigbird_ja import config as config_lib
from bigbird_ja.cloud import accelerators, cost, plan, prices
from bigbird_ja.cloud.cost import Overheads
from bigbird_ja.config import Config
from bigbird_ja.errors import BadInput


@pytest.fixture(scope="module")
def config() -> Config:
    found, _ = config_lib.resolve("configs/base-4096.yaml")
    return config_lib.without_data_set(found)


def write(path: str, text: str) -> str:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def test_built_in_prices_are_dated_and_say_their_age() -> None:
    table = prices.load()
    assert {"v2-8", "v3-8", "v4-8", "K80", "V100", "A100"} <= set(table.hourly)
    for name in table.hourly:
        assert 0 < table.per_hour(name, "spot") < table.per_hour(name, "on_demand")
        assert table.per_hour(name, "preemptible") == table.per_hour(name, "spot")
    later = table.as_of + datetime.timedelta(days=400)
    assert "400 days old: old, verify before renting" in table.describe_age(later)
    assert "old," not in table.describe_age(table.as_of)[:40]


def test_prices_can_be_overridden_in_part(tmp_path: object) -> None:
    text = "as_of: 2026-01-02\naccelerators:\n  v3-8: {on_demand: 10.0, spot: 1.0}\n"
    table = prices.load(write(f"{tmp_path}/p.yaml", text))
    assert table.per_hour("v3-8", "spot") == 1.0
    assert table.per_hour("v2-8", "spot") == prices.load().per_hour("v2-8", "spot")
    assert table.as_of == datetime.date(2026, 1, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accelerators: {}", "as_of"),
        ("as_of: 2026-01-02\nprice: 3", "unknown key 'price'"),
        ("as_of: 2026-01-02\nregoin: x", r"unknown key 'regoin' \(did you mean 'region'\?\)"),
        ("as_of: 2026-01-02\naccelerators: {v3-8: {spto: 1}}", "unknown key 'spto'"),
        ("as_of: 2026-01-02\naccelerators: {v3-8: {spot: cheap}}", "spot: expected a number"),
        ("as_of: 2026-01-02\naccelerators: {v3-8: {spot: -1}}", "spot: expected a number >= 0"),
        ("as_of: 2026-01-02\naccelerators: {v3-8: {spot: .nan}}", "not a finite number"),
        ("as_of: 2026-01-02\naccelerators: {v3-8: 4}", "expected an object"),
        ("as_of: 2026-13-02", "'2026-13-02' is no value of its kind"),
        ("as_of: 2026-01-02 10:00:00", "as_of: expected a date"),
        ("as_of: 2026-01-02\nas_of: 2026-01-03", "is written twice"),
        ("as_of: 2026-01-02\nregion: [1]", "region: expected text"),
        ("[1, 2]", "expected an object"),
        ("{a: ", "not YAML"),
    ],
)
def test_bad_price_files(tmp_path: object, text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        prices.load(write(f"{tmp_path}/p.yaml", text))


def test_egress_by_region() -> None:
    table = prices.load()
    assert table.egress_per_gb("us-central1", "us-central1-b") == 0
    assert table.egress_per_gb("us", "us-central1-b") == table.egress_per_gb_same_continent
    assert table.egress_per_gb("eu", "europe-west4-a") == table.egress_per_gb_same_continent
    assert table.egress_per_gb("asia-east1", "us-central1-b") == table.egress_per_gb_other_continent


def test_tokens_and_steps(config: Config) -> None:
    data = plan.DataFacts(1600, 1e9, None)
    assert cost.tokens_per_step(config) == 16 * 4096
    assert plan.steps_for(config, None, None, data) == config.training.num_train_steps
    assert plan.steps_for(config, 1e9, None, data) == math.ceil(1e9 / 65536)
    assert plan.steps_for(config, None, 3, data) == 300
    with pytest.raises(BadInput):
        plan.steps_for(config, None, 3, plan.DataFacts(None, 0, None))


def test_rates_come_from_preflight_where_it_was_run(config: Config) -> None:
    chips = [{"chip": "v3", "tokens_per_second_per_core": 10_000.0, "fits": True}]
    found = plan.rates(config, chips, None)
    assert found["v3-8"] == plan.Rate(80_000.0, "preflight")
    assert found["v2-8"].source == "assumed MFU 30%"
    # By hand: 2-8 has 8 x 22.5 TFLOP/s; a BERT-base sequence takes some 2.4 TFLOP.
    assert found["v2-8"].tokens_per_second == pytest.approx(
        8 * 22.5e12 * 0.3 * 4096 / 2.48e12, rel=0.05
    )
    assert plan.rates(config, [], 0.15)["v2-8"].tokens_per_second == pytest.approx(
        found["v2-8"].tokens_per_second / 2
    )


def test_rows_hold_their_arithmetic(config: Config) -> None:
    table, overheads = prices.load(), Overheads()
    data = plan.estimated_data(config)
    rows = plan.make_rows(config, 10_000, data, table, overheads)
    assert len(rows) == 12
    costs = [row.cost_usd for row in rows]
    assert costs == sorted(costs)  # type: ignore[type-var]
    for row in rows:
        assert row.hours is not None and row.hours > row.training_hours
        assert row.compute_usd == pytest.approx(row.hours * row.usd_per_hour)
        assert row.cost_usd == pytest.approx(row.compute_usd + row.storage_usd + row.egress_usd)
        assert row.preemptions == (
            0 if row.pricing == "on_demand" else pytest.approx(row.hours / 4)
        )


def test_egress_is_paid_per_epoch_and_only_between_regions(config: Config) -> None:
    table, data = prices.load(), plan.DataFacts(1600, 5e9, None)
    here = plan.make_rows(
        config, 200, data, table, Overheads(), bucket_region="us-central1", zone="us-central1-b"
    )
    there = plan.make_rows(
        config, 200, data, table, Overheads(), bucket_region="us-central1", zone="europe-west4-a"
    )
    assert {row.egress_usd for row in here} == {0.0}
    assert [row.egress_usd for row in there] == [pytest.approx(2 * 5 * 0.08)] * 12


@given(
    st.floats(0.1, 10_000),
    st.floats(0, 3),
    st.floats(60, 7200),
    st.floats(0, 60),
    st.floats(0, 1200),
)
def test_run_time_accounts_for_every_hour(
    hours: float, rate: float, interval: float, save: float, restart: float
) -> None:
    overheads = Overheads(rate, interval, save, restart)
    time = cost.run_time(hours, overheads, preemptible=True)
    if time.rented_hours is None:
        assert rate * ((interval + save) / 7200 + restart / 3600) >= 1
        return
    lost = time.preemptions * ((interval + save) / 2 + restart) / 3600  # type: ignore[operator]
    assert time.rented_hours == pytest.approx(
        hours * (1 + save / interval) + restart / 3600 + lost, rel=1e-6
    )
    assert cost.run_time(hours, overheads, preemptible=False).preemptions == 0


def test_run_that_never_ends_has_no_price(config: Config) -> None:
    rows = plan.make_rows(
        config, 1000, plan.estimated_data(config), prices.load(), Overheads(preemptions_per_hour=20)
    )
    spot = [row for row in rows if row.pricing == "spot"]
    assert {row.cost_usd for row in spot} == {None}
    assert rows[-1].cost_usd is None  # they come last


def test_manifest_counts_what_is_read() -> None:
    shards = [SimpleNamespace(records=10, bytes=100), SimpleNamespace(records=20, bytes=200)]
    data = plan.manifest_data(SimpleNamespace(train_shards=shards))
    assert (data.sequences, data.bytes, data.assumption) == (30, 300.0, None)


def test_images_and_zones() -> None:
    assert accelerators.runtime_version("v3-8") == "tpu-vm-tf-2.15.0-se"
    assert accelerators.runtime_version("v2-8") == "tpu-vm-tf-2.15.0-se"
    assert accelerators.default_zones("v3-8")
    assert accelerators.region_of("us-central1-b") == "us-central1"
    assert accelerators.check_rentable("v3-8") == []
