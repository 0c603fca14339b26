"""The record of a run: flags, names, and the service that offers the machine."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from bigbird_ja.accelerators.chips import find
from bigbird_ja.errors import BadInput
from bigbird_ja.launch import prepare
from bigbird_ja.launch.advice import TRC
from bigbird_ja.launch.launched_run import LaunchedRun, Machine
from bigbird_ja.launch.prepare import check_name, find_bucket_region, list_region_warnings
from bigbird_ja.launch.state import Phase
from tests.launch import support


def offers(kind="v6e-8", bucket="/none", zones=(), **changes):
    request = SimpleNamespace(
        **{"service": "auto", "queued": False, "dry_run": False, "price_per_hour": None},
        **{"runtime_version": None, "zones": zones},
    )
    vars(request).update(changes)
    run = support.vm_of("run-1", "id-1", kind)
    return prepare.offer(replace(run, bucket=bucket), request, support.TABLE, "")


def test_compute_engine_is_preferred_and_bills():
    (run, rental, warnings), (later, _, _) = offers()
    assert (run.service, later.service) == ("compute", "tpu")
    assert run.zones == support.TABLE.choose_zones(find("v6e-8"), "spot")
    assert {*run.zones} <= {*rental.zones} and warnings == [TRC]
    assert run.usd_per_hour == support.TABLE.get_hourly_price(find("v6e-8"), "spot", run.zones)
    assert later.runtime_version == "v2-alpha-tpuv6e"
    assert [one.service for one, _, _ in offers(service="tpu")] == ["tpu"]
    assert len([*offers(runtime_version="of-one-service")]) == 1


def test_zones_of_the_user_are_taken_as_they_are():
    ((run, _, warnings),) = offers("v5e-8", zones=["us-east1-d"])
    assert run.zones == ("us-east1-d",)  # A zone that is not in the price table is accepted.
    assert "no spot price for v5litepod-8 in us-east1-d" in warnings[0]


def test_a_grant_has_hours_and_no_dollars():
    (run, *_), _ = offers(price_per_hour=0)
    assert run.usd_per_hour == 0
    (run, *_), _ = offers(price_per_hour=3.5)
    assert run.usd_per_hour == 3.5


def test_a_run_with_a_machine_continues_at_its_service(tmp_path):
    machine = Machine.of(support.vm_of("run-1", kind="v6e-8"))  # rented by the Cloud TPU API
    support.make_run(str(tmp_path), "run-1", attempt=1, phase=Phase.RUNNING, machine=machine)
    assert [run.service for run, _, _ in offers(bucket=str(tmp_path))] == ["tpu", "compute"]


@pytest.mark.parametrize(
    ("state", "has"),
    [
        ({}, False),
        ({"phase": Phase.RUNNING, "attempt": 1}, True),
        ({"phase": Phase.ENDED, "attempt": 1}, False),
        ({"phase": Phase.ENDED, "attempt": 1, "billing": True}, True),
    ],
)
def test_a_run_that_may_have_a_machine_keeps_its_service(state, has, tmp_path):
    run = support.make_run(str(tmp_path), "run-1", **state)
    assert prepare.find_machine(run) == (Machine.of(run) if has else None)


def test_zones_of_another_region_than_the_buckets_are_warned_of(bucket, fake_gcs):
    far = LaunchedRun(bucket, "a", zones=("us-central1-b", "europe-west4-a", "europe-west4-b"))
    (text,) = list_region_warnings(far, find_bucket_region(bucket))
    assert f"{bucket} is in us-central1, but zones are in europe-west4: " in text
    assert list_region_warnings(replace(far, zones=("us-central1-b",)), "us-central1") == []
    assert list_region_warnings(replace(far, bucket="/disk"), find_bucket_region("/disk")) == []
    fake_gcs.fault("/b/b-", "status", code=403, times=-1)
    (text,) = list_region_warnings(far, find_bucket_region(bucket))
    assert f"the region of {bucket} is unknown, " in text


def test_names_of_runs_are_checked():
    assert check_name("x" * 40) == "x" * 40
    for name in ("", "A", "1a", "a_b", "a-", "é", "x" * 41, "a/b", "../a"):
        with pytest.raises(BadInput):
            check_name(name)
