"""What `launch` and `doctor` learn from the services' own lists before anything is created."""

import pytest

from bigbird_ja.accelerators.chips import find
from bigbird_ja.launch import offers
from bigbird_ja.launch.rest import Kind, ServiceFault
from tests.launch import support


def test_zones_that_lack_the_type_or_its_image_are_left_out_with_a_line(settle, fake_tpu):
    fake_tpu.types["us-central1-a"].remove("v5litepod-8")
    fake_tpu.images["us-west4-a"].remove("v2-alpha-tpuv5-lite")
    zones = ["us-central1-a", "us-west4-a", "us-east1-d", "us-nowhere1-x"]
    run, notes, _ = settle("v5litepod-8", [fake_tpu], zones=zones)
    assert run.zones == ("us-east1-d",)  # not in the table: the service knows better
    assert (run.service, run.runtime_version) == ("tpu", "v2-alpha-tpuv5-lite")
    assert notes == [
        "us-central1-a is left out: the Cloud TPU API does not offer v5litepod-8",
        "us-west4-a is left out: no image v2-alpha-tpuv5-lite",
        "us-nowhere1-x is left out: the Cloud TPU API does not offer v5litepod-8",
        "warning: no spot price for v5litepod-8 in us-east1-d: add it in a file for --price_file:"
        " costs are not counted",
    ]
    # Where the usual zones lack it, others of the table are taken, at their price.
    fake_tpu.types["europe-west4-b"] = ["v5litepod-8"]
    fake_tpu.images["europe-west4-b"] = ["v2-alpha-tpuv5-lite"]
    run, _, _ = settle("v5litepod-8", [fake_tpu])
    assert run.zones == ("europe-west4-b",)
    assert run.usd_per_hour == support.TABLE.per_hour(find("v5e-8"), "spot", ["europe-west4-b"])


@pytest.mark.parametrize("answer", ["permission", "internal_call", "unavailable"])
@pytest.mark.parametrize("kind", ["locations", "acceleratorTypes", "runtimeVersions"])
def test_a_list_that_cannot_be_read_leaves_the_table_in_force(
    settle, fake_tpu, kind, answer, monkeypatch
):
    monkeypatch.setattr(offers, "RETRY_SECONDS", 0.1)
    fake_tpu.unread[kind] = answer
    run, notes, _ = settle("v3-8", [fake_tpu], zones=["us-central1-a", "us-east1-d"])
    assert notes[0].startswith("not all lists of the Cloud TPU API can be read (")
    assert "2026" in notes[0] and "us-central1-a" in run.zones
    # Zones are asked one by one all the same; a service that is away is asked for no more.
    assert ("us-east1-d" in run.zones) == (kind != "acceleratorTypes" and answer != "unavailable")


def test_an_answer_of_another_form_is_a_passing_fault(settle, fake_tpu, monkeypatch):
    listed = {"locations": [{"locationId": 7}], "acceleratorTypes": 7}
    monkeypatch.setattr(fake_tpu, "offer", lambda *more: (200, listed))
    run, notes, _ = settle("v3-8", [fake_tpu])
    assert "an answer of another form: projects/p/locations: locations" in notes[0]
    assert run.zones == support.TABLE.usual_zones(find("v3-8"), "spot")
    with pytest.raises(ServiceFault) as caught:
        monkeypatch.setattr(fake_tpu, "answer", lambda *more: (200, {"nodes": [{"name": "x"}]}))
        support.client(fake_tpu).list()
    assert caught.value.is_passing


def test_the_table_of_a_project(serve, fake_tpu, fake_compute):
    serve(fake_tpu, fake_compute)
    fake_tpu.types["us-west4-a"].remove("v5litepod-8")
    rows, faults = offers.make_rows("p", support.TABLE)
    by_name = {(row["accelerator_type"], row["service"]): row for row in rows}
    assert faults == [] and {*by_name} >= {("v6e-8", "compute"), ("v6e-8", "tpu"), ("v2-8", "tpu")}
    zones = by_name["v5litepod-8", "tpu"]["zones"]
    assert zones["us-west4-a"] == "the Cloud TPU API does not offer v5litepod-8"
    assert zones["us-central1-a"] == zones["us-east1-d"] == ""
    assert by_name["v5p-8", "compute"]["quota"] == "PREEMPTIBLE_TPU_PODSLICE_V5P 4 of 8"


def test_what_cannot_be_read_is_not_called_missing(serve, fake_tpu, fake_compute):
    serve(fake_tpu, fake_compute)
    for unread in (fake_compute.unread, fake_tpu.unread):
        unread |= dict.fromkeys(("images", "locations", "machineTypes"), "permission")
    rows, faults = offers.make_rows("p", support.TABLE)
    zones = {one["accelerator_type"]: one["zones"] for one in rows if one["service"] == "compute"}
    assert {fault.kind for fault in faults} == {Kind.PERMISSION}
    assert zones["v7x-8"]["us-central1-c"] == zones["v6e-8"]["us-east1-d"] == ""
