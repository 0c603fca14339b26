"""The package's client of the Cloud TPU API: requests, states of machines, and lists."""

from dataclasses import replace

import msgspec
import pytest

from bigbird_ja.launch import tpu_api
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import ATTEMPT_LABEL, ID_LABEL, RUN_LABEL, Presence
from tests.launch import support
from tests.launch.support import finished


def test_requests_state_the_rented_machine():
    """Compare whole requests. With a misspelled key, the service would rent an on-demand node."""
    labels = {RUN_LABEL: "run-1", ID_LABEL: "id-1", ATTEMPT_LABEL: "3", "managed-by": "bigbird-ja"}
    body = {
        "acceleratorType": "v3-8",
        "runtimeVersion": "tpu-vm-tf-2.15.0-se",
        "labels": labels,
        "metadata": {"a": "b"},
        "networkConfig": {"network": "", "subnetwork": "", "enableExternalIps": True},
    }
    spot = {**body, "schedulingConfig": {"spot": True}}
    assert tpu_api.make_request(support.NODE, support.ZONE, 3, {"a": "b"}, 1.0) == spot
    for run, kind in (
        (support.QUEUED, "spot"),
        (replace(support.QUEUED, pricing="on_demand"), "guaranteed"),
    ):
        node = {"parent": f"projects/p/locations/{support.ZONE}", "nodeId": "run-1", "node": body}
        asked = tpu_api.make_request(run, support.ZONE, 3, {"a": "b"}, 1.0)
        assert asked == {"tpu": {"nodeSpec": [node]}, kind: {}}
    other = replace(support.NODE, pricing="on_demand", service_account="a@b", network="n")
    node = tpu_api.make_request(other, support.ZONE, 1, {}, 1.0)
    assert "schedulingConfig" not in node
    assert (node["serviceAccount"]["email"], node["networkConfig"]["network"]) == ("a@b", "n")
    *_, address = tpu_api.delete_addresses("", support.QUEUED, "z")
    assert address.endswith("z/nodes/run-1"), "for a machine that may delete only its node"
    v5e = support.vm_of("run-1", kind="v5e-16")
    assert tpu_api.make_request(v5e, support.ZONE, 1, {}, 1.0)["acceleratorType"] == "v5litepod-16"


def test_every_state_of_a_queue(fake_tpu, tpus):
    fake_tpu.script.append("queued_waiting")
    tpus.create(support.QUEUED, support.ZONE, 1, {}, 3600.0)
    (queued,) = fake_tpu.queued.values()
    for states, presence in (
        (["WAITING_FOR_RESOURCES", "ACCEPTED", "CREATING"], Presence.WAITING),
        (["PROVISIONING"], Presence.PENDING),
        (["DELETING"], Presence.DELETING),
        # An ACTIVE queued resource is gone if its node has disappeared.
        (["ACTIVE", "SUSPENDING", "SUSPENDED", "WHAT_IS_NEW"], Presence.GONE),
    ):
        for state in states:
            queued["state"] = {"state": state}
            assert [tpu.presence for tpu in tpus.list()] == [presence], state
    # Errors with code 8 have several causes. The word "Quota" shows that this cause is the quota.
    error = {"code": 8, "message": "Limit: 0 of the Quota in the zone"}
    queued["state"] = {"state": "FAILED", "failedData": {"error": error}}
    (tpu,) = tpus.list()
    assert tpu.presence is Presence.GONE
    assert tpu.fault is not None and tpu.fault.kind is Kind.QUOTA
    finished(tpus, tpus.delete(tpu))
    assert fake_tpu.queued_names() == []


def test_a_queue_is_listed_before_its_nodes(fake_tpu, tpus):
    """List queued resources first and nodes second.

    In this order, a resource that becomes a node between the two requests is listed.
    """
    tpus.list()
    order = [one for one in fake_tpu.paths if one.endswith(("/queuedResources", "/nodes"))]
    assert [one.rpartition("/")[2] for one in order] == ["queuedResources", "nodes"]


def test_missing_fields_of_an_answer_have_their_defaults():
    """Read answers in which the service has left out the fields with default values."""
    place = f"projects/p/locations/{support.ZONE}"

    class Bare:
        def find(self, path, kind):
            failed = {"state": {"state": "FAILED"}} if "Resources" in path else {}
            return msgspec.convert({"name": path, **failed}, kind)

        def call(self, verb, name, kind):
            error = {"code": 8, "message": "Quota"} if name == "o" else {"a": 1}
            return msgspec.convert({"done": True, "error": error}, kind)

    service = tpu_api.Client("p", Bare())  # type: ignore[arg-type]
    tpu = service.find(support.ZONE, "n")
    assert (tpu.presence, tpu.attempt, tpu.owner) == (Presence.GONE, 0, "no label")
    assert (tpu.resource, tpu.fault.kind) == (f"{place}/queuedResources/n", Kind.INTERNAL)
    kinds = [service.get_operation(name).fault.kind for name in "on"]
    assert kinds == [Kind.QUOTA, Kind.INTERNAL]


def test_every_state_is_ready_pending_or_dead(fake_tpu, tpus):
    tpus.create(support.NODE, support.ZONE, 1, {}, 3600.0)
    for states, presence in (
        (["READY"], Presence.READY),
        (["DELETING"], Presence.DELETING),
        (["CREATING", "STARTING", "RESTARTING", "REPAIRING", "REIMAGING"], Presence.PENDING),
        (["STOPPED", "STOPPING", "PREEMPTED", "TERMINATED"], Presence.GONE),
        (["HIDING", "HIDDEN", "UNHIDING", "UNKNOWN", "WHAT_IS_NEW"], Presence.GONE),
    ):
        for state in states:
            fake_tpu.preempt("run-1", state=state)
            assert [tpu.presence for tpu in tpus.list()] == [presence], state


def test_a_zone_that_does_not_answer_hides_nothing_else(fake_tpu, tpus):
    tpus.create(support.NODE, support.ZONE, 1, {}, 3600.0)
    fake_tpu.unreachable.append("projects/p/locations/asia-east1-c")
    with pytest.raises(ServiceFault, match="no answer from asia-east1-c") as caught:
        tpus.list()
    assert [tpu.name for tpu in caught.value.listed] == ["run-1"]
