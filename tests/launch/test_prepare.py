"""The record of a run: flags, names, and the service that offers the machine."""

from dataclasses import replace

import pytest

from bigbird_ja.accelerators.chips import find
from bigbird_ja.errors import BadInput
from bigbird_ja.launch import prepare
from bigbird_ja.launch.advice import TRC
from bigbird_ja.launch.launched_run import LaunchedRun, Machine
from bigbird_ja.launch.prepare import bucket_region, check_name, region_warnings
from bigbird_ja.launch.state import Phase
from tests.launch import support


def test_zones_that_offer_the_machine_are_listed_if_none_is_left(settle, fake_tpu):
    for zone in ("us-central1-a", "us-west4-a"):
        fake_tpu.types[zone].remove("v5litepod-8")
    with pytest.raises(
        BadInput, match="zones that offer it: europe-west4-a, us-central1-b, us-c"
    ) as caught:
        settle("v5litepod-8", [fake_tpu], zones=["us-central1-a", "us-west4-a"])
    assert "\n" not in str(caught.value) and fake_tpu.created == []


def test_compute_engine_is_preferred_and_bills(settle, fake_tpu, fake_compute):
    fake_compute.types["us-east1-d"] = []
    run, notes, left = settle("v6e-8", [fake_tpu, fake_compute])
    assert (run.service, run.zones) == ("compute", ("us-central1-b",))
    assert run.usd_per_hour == support.TABLE.per_hour(find("v6e-8"), "spot", ["us-central1-b"])
    left_out = "us-east1-d is left out: Compute Engine does not offer ct6e-standard-8t"
    assert notes == [left_out, f"warning: {TRC}"] and fake_tpu.requests == []
    run, notes, _ = next(left)  # Compute Engine lacked quota
    assert run.service == "tpu" and "limited by the machine's own watcher" in notes[-1]
    assert [*left] == []


@pytest.mark.parametrize(
    ("kind", "lack", "words"),
    [
        ("v6e-8", {"types": {}}, "does not offer ct6e-standard-8t"),
        ("v6e-8", {"images": []}, "no image ubuntu-accelerator"),
        ("v6e-8", {"unread": {"machineTypes": "disabled"}}, "gcloud services enable compute"),
        (
            "v5p-8",
            {"quotas": [{"metric": "PREEMPTIBLE_TPU_PODSLICE_V5P", "limit": 0.0}]},
            "quota PREEMPTIBLE_TPU_PODSLICE_V5P is 0 in us-central1, and 4 chips",
        ),
    ],
    ids=["type", "image", "API off", "quota"],
)
def test_auto_falls_back_to_the_cloud_tpu_api(settle, fake_tpu, fake_compute, kind, lack, words):
    vars(fake_compute).update(lack)
    run, notes, left = settle(kind, [fake_tpu, fake_compute])
    assert (run.service, [*left]) == ("tpu", [])
    assert run.runtime_version == {"v6e-8": "v2-alpha-tpuv6e", "v5p-8": "v2-alpha-tpuv5"}[kind]
    assert words in notes[-1] and "limited by the machine's own watcher" in notes[-1]
    with pytest.raises(BadInput, match="--accelerator_type v") as caught:
        settle(kind, [fake_tpu, fake_compute], service="compute")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_resumed_run_is_not_blocked(settle, fake_tpu, tmp_path):
    support.make_run(str(tmp_path), "run-1")
    fake_tpu.types.clear()
    fake_tpu.types["us-east1-d"] = []
    run, notes, _ = settle("v3-8", [fake_tpu], zones=["us-central1-a"])
    assert run.zones == ("us-central1-a",) and "does not offer v3-8" in notes[-1]


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
    assert prepare.machine_of(run) == (Machine.of(run) if has else None)


def test_flex_start_has_zones_of_its_own(settle, fake_tpu):
    flags = {"pricing": "flex-start", "max_hours": 9.0}
    run, notes, _ = settle("v6e-8", [fake_tpu], zones=["us-central1-b", "us-east5-a"], **flags)
    assert run.zones == ("us-east5-a",) and "flex-start is documented for us-east5-a" in notes[0]
    with pytest.raises(BadInput, match="zones that offer it: us-west4-a"):
        settle("v5e-8", [fake_tpu], zones=["us-central1-b"], **flags)


def test_zones_of_another_region_than_the_buckets_are_warned_of(bucket, fake_gcs):
    far = LaunchedRun(bucket, "a", zones=("us-central1-b", "europe-west4-a", "europe-west4-b"))
    (text,) = region_warnings(far, bucket_region(bucket))
    assert f"{bucket} is in us-central1, zones are in europe-west4: " in text
    assert region_warnings(replace(far, zones=("us-central1-b",)), "us-central1") == []
    assert region_warnings(far, bucket_region("/disk")) == []
    fake_gcs.fault("/b/b-", "status", code=403, times=-1)
    assert bucket_region(bucket) == ""


def test_names_of_runs_are_checked():
    assert check_name("x" * 40) == "x" * 40
    for name in ("", "A", "1a", "a_b", "a-", "é", "x" * 41, "a/b", "../a"):
        with pytest.raises(BadInput):
            check_name(name)
