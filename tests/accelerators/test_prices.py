"""The table of prices: content, dates, zones, and changes by a user's file."""

import datetime

import pytest

from bigbird_ja.accelerators.chips import CHIPS, find
from bigbird_ja.accelerators.prices import USUAL_ZONES, load_prices
from bigbird_ja.errors import BadInput

TABLE = load_prices()


def test_the_built_in_table_has_every_chip_and_makes_sense():
    assert {*TABLE.chips, "v7x"} == set(TABLE.rentals) == set(CHIPS)
    for chip in CHIPS:
        for zone, offer in TABLE.list_offers(chip).items():
            assert zone.count("-") == 2, zone
            if offer.on_demand is not None and offer.spot is not None:
                assert 0.1 < offer.spot < offer.on_demand < 5, (chip, zone)


@pytest.mark.parametrize(
    ("name", "pricing", "zones", "price"),
    [
        ("v5litepod-8", "spot", ("us-central1-a", "us-west1-c"), 8 * 0.24493),
        # The more expensive zone determines the price.
        ("v5e-8", "spot", ("us-central1-a", "europe-west4-a"), 8 * 0.44498),
        ("v5p-8", "on_demand", ("us-east5-a",), 4 * 4.20),
        ("v4-16", "spot", ("us-central2-b",), 8 * 0.9215),
    ],
)
def test_a_machine_is_priced_by_its_chips(name, pricing, zones, price):
    assert TABLE.get_hourly_price(find(name), pricing, zones) == pytest.approx(price)


@pytest.mark.parametrize(
    ("name", "zones"),
    [
        ("v7x-8", ("us-central1-c",)),
        ("v3-32", ("us-central1-a",)),
        ("v3-8", ("us-central1-a", "us-east1-d")),
    ],
)
def test_an_unknown_price_is_refused(name, zones):
    with pytest.raises(BadInput, match=r"no spot price for .*`price_file`"):
        TABLE.get_hourly_price(find(name), "spot", zones)


def test_usual_zones_are_offered_near_the_bucket_and_cheap():
    """Leave out us-central1-a and us-west1-c, which have a price for v6e but do not offer it.

    us-east5 is left out because its price is twice the price of the chosen zones.
    """
    zones = ("us-central1-b", "us-east1-d")
    assert TABLE.choose_zones(find("v6e-8"), "spot") == zones
    assert TABLE.choose_zones(find("v6e-8"), "spot", near="asia-northeast1") == (
        "asia-northeast1-b",
    )
    assert TABLE.choose_zones(find("v6e-8"), "spot", near="europe-west1") == ("europe-west4-a",)
    assert TABLE.choose_zones(find("v6e-8"), "spot", near="us-east1")[0] == "us-east1-d"
    assert TABLE.choose_zones(find("v3-8"), "spot") == ("us-central1-a", "us-central1-b")
    assert TABLE.choose_zones(find("v3-8"), "spot", near="asia-east1") == (
        *("us-central1-a", "us-central1-b", "europe-west4-a"),
    )
    assert len(TABLE.choose_zones(find("v5e-8"), "on_demand")) == USUAL_ZONES
    assert TABLE.choose_zones(find("v4-8"), "spot") == ("us-central2-b",)
    # Slices of several hosts are offered in fewer zones than slices of one host.
    assert TABLE.choose_zones(find("v3-32"), "spot") == ("europe-west4-a",)


@pytest.mark.parametrize(
    ("name", "services"),
    [("v3-8", "tpu"), ("v5e-8", "tpu"), ("v5e-32", "tpu"), ("v6e-32", "tpu")]
    + [("v5p-8", "compute tpu"), ("v6e-8", "compute tpu"), ("v7x-8", "compute"), ("v7x-64", "")],
)
def test_each_chip_is_rented_by_the_documented_service(name, services):
    found = TABLE.list_rentals(find(name))
    assert [one.service for one in found] == services.split()
    assert all(one.documented_by.startswith("tpu/docs/") for one in found)


def test_each_row_of_rentals_names_dated_pages():
    for chip in CHIPS:
        for row in TABLE.rentals[chip]:
            assert row.as_of >= datetime.date(2026, 11, 26)
            assert row.zones_by.startswith("tpu/docs/")


def test_a_price_file_overrides_parts_of_the_table(tmp_path):
    path = tmp_path / "p.yaml"
    new = "{zones: [us-new9-a], on_demand: 1.0, spot: 0.5}"
    path.write_text(f"as_of: 2026-11-02\nchips: {{v3: [{{spot: 0.25}}], v6e: [{new}]}}")
    table = load_prices(str(path))
    assert table.get_hourly_price(find("v3-8"), "spot", tuple(TABLE.list_offers("v3"))) == 1.0
    assert table.get_hourly_price(find("v6e-8"), "spot", ["us-new9-a"]) == 4.0
    assert table.list_zones(find("v2-8"), "spot") == TABLE.list_zones(find("v2-8"), "spot")
    # The date of the price file applies only to the rows of this file.
    assert table.find_oldest_date(find("v3-8"), ["us-central1-a"]) == datetime.date(2026, 11, 2)
    assert table.find_oldest_date(find("v2-8"), ["us-central1-b"]) == TABLE.as_of == table.as_of
    assert table.find_oldest_date(find("v6e-8"), ["us-new9-a", "us-central1-b"]) == TABLE.as_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chips: {}", "as_of"),
        ("as_of: 2026-01-02\ngpus: {A100: {spot: 1}}", "unknown field `gpus`"),
        ("as_of: 2026-01-02\nchips: {v3: [{spto: 1}]}", "unknown field `spto`"),
        ("as_of: 2026-01-02\nchips: {v3: [{spot: -1}]}", "spot: Expected `float` >= 0"),
        ("as_of: 2026-01-02\nchips: {v9: [{spot: 1}]}", "chips.v9 must be one of v2, v3"),
        ("as_of: 2026-01-02\nrentals: {v9: []}", "rentals.v9 must be one of v2, v3"),
        (
            "{as_of: 2026-01-02, rentals: {v3: [{service: tpu, image: i, zones: [z], zones_by: x,"
            " documented_by: y}]}}",
            "as_of",
        ),
        ("as_of: 2026-01-02\nfree: {me: {machine: v5e-7}}", "free.me.machine: 'v5e-7'"),
    ],
)
def test_bad_price_files_are_refused(tmp_path, text, words):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        load_prices(str(path))
