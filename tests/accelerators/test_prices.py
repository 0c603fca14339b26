"""The table of prices: form, age, zones, overrides."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from bigbird_ja.accelerators import hardware, prices
from bigbird_ja.accelerators.chips import CHIPS
from bigbird_ja.process.errors import BadInput


def write(folder: Path, text: str) -> str:
    (folder / "p.yaml").write_text(text, "utf-8")
    return str(folder / "p.yaml")


def test_the_built_in_table_has_every_chip_and_makes_sense() -> None:
    table = prices.load()
    assert set(table.chips) == set(CHIPS) and set(table.gpus) == set(hardware.GPUS)
    for chip, offers in table.chips.items():
        for zone, offer in offers.items():
            assert zone.count("-") == 2, zone
            if offer.on_demand is not None and offer.spot is not None:
                assert 0.1 < offer.spot < offer.on_demand < 5, (chip, zone)
    for name in table.gpus:
        assert 0 < table.per_hour(name, "spot") < table.per_hour(name, "on_demand")


@pytest.mark.parametrize(
    ("name", "pricing", "zones", "price"),
    [
        ("v5e-8", "spot", (), 8 * 0.24493),
        ("v5litepod-8", "preemptible", (), 8 * 0.24493),
        ("v5e-8", "spot", ("us-central1-a", "europe-west4-a"), 8 * 0.40453),  # the dearer
        ("v5e-32", "on_demand", ("us-central1-a",), 32 * 1.20),
        ("v5p-8", "on_demand", (), 4 * 4.20),
        ("v3-8", "spot", (), 4 * 0.51),
        ("v4-16", "spot", (), 8 * 0.9215),
        ("V100", "on_demand", (), 2.48 + 0.473),
    ],
)
def test_a_machine_is_priced_by_its_chips(
    name: str, pricing: str, zones: tuple[str, ...], price: float
) -> None:
    assert prices.load().per_hour(name, pricing, zones) == pytest.approx(price)


@pytest.mark.parametrize(
    ("name", "zones"),
    [("v7x-8", ()), ("v3-32", ()), ("v3-8", ("us-central1-a", "us-east1-d"))],
)
def test_a_price_that_is_not_known_is_not_made_up(name: str, zones: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match=r"no spot price for .*--prices"):
        prices.load().per_hour(name, "spot", zones)


def test_zones_are_those_of_the_table() -> None:
    table = prices.load()
    table.check_zone("us-central1-a", "v3-8")
    table.check_zone("us-central1-a")
    table.check_zone("us-central1-c", "v7x-8")  # offered, though its price is not known
    with pytest.raises(BadInput, match=r"'us-central9-z' \(did you mean .*v3-8 is not"):
        table.check_zone("us-central9-z", "v3-8")
    with pytest.raises(BadInput, match=r"v4-8 is not to be had there.*zones: us-central2-b;"):
        table.check_zone("us-central1-a", "v4-8")
    with pytest.raises(BadInput, match="no TPU is"):
        table.check_zone("us-central9-z")


def test_the_cheapest_zones_are_tried_first_and_those_of_one_continent() -> None:
    table = prices.load()
    assert table.by_zone("v6e-8", "spot")[0][0] == "asia-southeast1-b"
    assert table.usual_zones("v6e-8", "spot")[0] == "us-central1-b"
    central = tuple(f"us-central1-{letter}" for letter in "abf")
    assert table.usual_zones("v3-8", "spot") == (*central, "europe-west4-a")  # us-east1-d: no spot
    assert table.usual_zones("v5e-8", "spot")[0] == "us-central1-a"
    assert len(table.usual_zones("v5e-8", "on_demand")) == prices.USUAL_ZONES
    assert table.usual_zones("v4-8", "spot") == ("us-central2-b",)


def test_a_table_older_than_a_year_warns() -> None:
    table = prices.load()
    day = datetime.timedelta(days=1)
    assert "warning" not in table.describe_age(table.as_of + 365 * day)
    said = table.describe_age(table.as_of + 366 * day)
    assert said.startswith(f"prices of {table.as_of}, 366 days old, warning: more than a year")


def test_prices_can_be_overridden_in_part(tmp_path: Path) -> None:
    text = """
as_of: 2026-01-02
chips:
  v3: [{spot: 0.25}]
  v6e: [{zones: [us-new9-a], on_demand: 1.0, spot: 0.5}]
gpus: {A100: {spot: 1.5}}
"""
    table, usual = prices.load(write(tmp_path, text)), prices.load()
    assert table.per_hour("v3-8", "spot", tuple(usual.chips["v3"])) == 1.0  # in every zone
    assert table.per_hour("v6e-8", "spot", ["us-new9-a"]) == 4.0
    assert table.per_hour("v6e-8", "spot") == usual.per_hour("v6e-8", "spot")
    assert table.per_hour("v2-8", "spot") == usual.per_hour("v2-8", "spot")
    assert table.per_hour("A100", "spot") == 1.5
    assert table.as_of == datetime.date(2026, 1, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chips: {}", "as_of"),
        ("as_of: 2026-01-02\nprice: 3", "unknown key 'price'"),
        ("as_of: 2026-01-02\nsorce: x", r"unknown key 'sorce' \(did you mean 'source'\?\)"),
        ("as_of: 2026-01-02\naccelerators: {v3-8: {spot: 1}}", "unknown key 'accelerators'"),
        ("as_of: 2026-01-02\nchips: {v3: [{spto: 1}]}", "unknown key 'spto'"),
        ("as_of: 2026-01-02\nchips: {v3: [{spot: cheap}]}", "spot: expected a number"),
        ("as_of: 2026-01-02\nchips: {v3: [{spot: -1}]}", "spot: expected a number >= 0"),
        ("as_of: 2026-01-02\nchips: {v3: [{spot: .nan}]}", "not a finite number"),
        ("as_of: 2026-01-02\nchips: {v3: 4}", "expected a list"),
        ("as_of: 2026-01-02\nchips: {v9: [{spot: 1}]}", "chips.v9: one of v2, v3"),
        ("as_of: 2026-01-02\ngpus: {T4: {spot: 1}}", "gpus.T4: one of K80"),
        ("as_of: 2026-01-02\nfree: {me: {machine: v5e-7}}", "free.me.machine: 'v5e-7'"),
        ("as_of: 2026-13-02", "'2026-13-02' is no value of its kind"),
        ("as_of: 2026-01-02 10:00:00", "as_of: expected a date"),
        ("as_of: 2026-01-02\nas_of: 2026-01-03", "is written twice"),
        ("as_of: 2026-01-02\nsource: [1]", "source: expected text"),
        ("[1, 2]", "expected an object"),
        ("{a: ", "not YAML"),
    ],
)
def test_bad_price_files(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        prices.load(write(tmp_path, text))


def test_egress_by_region() -> None:
    table = prices.load()
    assert table.egress_per_gb("us-central1", "us-central1-b") == 0
    assert table.egress_per_gb("us", "us-central1-b") == table.egress_per_gb_same_continent
    assert table.egress_per_gb("eu", "europe-west4-a") == table.egress_per_gb_same_continent
    assert table.egress_per_gb("asia-east1", "us-central1-b") == table.egress_per_gb_other_continent
