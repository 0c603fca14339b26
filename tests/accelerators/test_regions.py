"""Bucket and TPU in different regions: said, with its price."""

from __future__ import annotations

import pytest

from bigbird_ja.accelerators import prices as prices_lib
from bigbird_ja.accelerators import regions
from testkit.fakes.gcs_process import FakeGcs

PRICES = prices_lib.load()


@pytest.mark.parametrize("location", ["US-CENTRAL1", "us-central1"])
def test_one_region_is_silent(location: str) -> None:
    assert regions.mismatch("gs://b", location, "us-central1-b", PRICES) is None


@pytest.mark.parametrize(
    ("location", "price"), [("us-east1", 0.02), ("US", 0.02), ("europe-west4", 0.08)]
)
def test_a_mismatch_has_its_price(location: str, price: float) -> None:
    said = regions.mismatch("gs://b/data", location, "us-central1-b", PRICES, 50 * 10**9)
    assert said is not None and said.startswith(f"gs://b/data is in {location.lower()}")
    assert f"{price:.2f} USD per GB" in said and f"{50 * price:.2f} USD per pass" in said


def test_the_bucket_is_asked(bucket: str, fake_gcs: FakeGcs) -> None:
    assert regions.warning_for(f"{bucket}/data", "us-central1-b", PRICES) is None
    said = regions.warning_for(f"{bucket}/data", "europe-west4-a", PRICES)
    assert said is not None and "us-central1" in said
    for zone, path in ((None, bucket), ("us-east1-b", "/disk"), ("us-east1-b", "gs://no-such/x")):
        assert regions.warning_for(path, zone, PRICES) is None
    paths = [f"{bucket}/data", f"{bucket}/run", "/disk"]
    assert regions.warnings_for(paths, "europe-west4-a", PRICES) == [said]
    fake_gcs.fault("/b/b-", "status", code=403, times=-1)
    assert regions.warning_for(bucket, "europe-west4-a", PRICES) is None
