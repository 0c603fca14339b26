"""Both services by our clients against the fakes, and what the answers of a service mean."""

import socket
import threading
import time
from dataclasses import replace
from unittest import mock

import msgspec
import pytest
from google.auth.exceptions import RefreshError

from bigbird_ja.launch import (
    ATTEMPT_LABEL,
    ID_LABEL,
    RUN_DIR_KEY,
    RUN_LABEL,
    Presence,
    backends,
    rest,
    tpu_api,
)
from bigbird_ja.launch.advice import advise
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.tpu_api import TpuNodes
from bigbird_ja.process.errors import BadInput
from testkit.fakes.compute import FakeCompute
from testkit.fakes.service import in_background
from testkit.fakes.tpu import FakeTpu
from tests.launch import support
from tests.launch.support import finished

ZONE = "us-central1-b"
NODE = support.vm_of("run-1", "id-1", runtime_version="tpu-vm-tf-2.15.0-se")
QUEUED = replace(NODE, queued=True)
VM = replace(NODE, accelerator_type="v6e-8", service="compute")
METADATA = {"startup-script": "true", RUN_DIR_KEY: "gs://b/run-1"}


@pytest.fixture
def tpus(fake_tpu):
    return support.client(fake_tpu)


# --- what both services promise -------------------------------------------------------------------

KINDS = pytest.mark.parametrize(
    ("kind", "run"),
    [(FakeTpu, NODE), (FakeTpu, QUEUED), (FakeCompute, VM)],
    ids=["node", "queued", "vm"],
)


@KINDS
def test_life_of_a_machine_of_which_only_what_was_listed_is_deleted(tmp_path, kind, run):
    with kind(str(tmp_path)) as fake:
        service = support.client(fake)
        assert finished(service, service.create(run, ZONE, 3, METADATA, 3600.0)).fault is None
        support.wait_until(lambda: service.list(ZONE)[0].presence is Presence.READY, 10)
        (tpu,) = service.list("-")
        assert (tpu.name, tpu.zone) == ("run-1", ZONE)
        assert (tpu.run, tpu.run_id, tpu.attempt) == ("run-1", "id-1", 3)
        assert (tpu.accelerator_type, tpu.run_dir) == (run.accelerator_type, "gs://b/run-1")
        assert tpu.is_queued == (tpu.state == "ACTIVE/READY") == (run is QUEUED)
        assert tpu.created == pytest.approx(time.time(), abs=60)
        assert service.list("us-central1-a") == []
        with pytest.raises(ServiceFault) as caught:  # as where the reply to a creation was lost
            service.create(run, ZONE, 3, METADATA, 3600.0)
        assert caught.value.kind is Kind.EXISTS and len(service.list(ZONE)) == 1
        # Another run's machine, or another creation of its own, may have the name by now.
        of_another = replace(tpu, labels={**tpu.labels, ID_LABEL: "id-2"})
        of_a_copy = replace(tpu, run_dir="gs://b/run-2")
        for expected in (of_another, of_a_copy, replace(tpu, created=tpu.created - 60)):
            with pytest.raises(ServiceFault) as caught:
                service.delete(expected)
            assert caught.value.kind is Kind.NOT_FOUND and fake.node_names()
        assert (
            backends.delete_all({tpu.service: service}, [tpu], 20, time.monotonic, time.sleep) == []
        )
        assert service.list("-") == [] and fake.node_names() == []


@KINDS
def test_a_failed_creation(tmp_path, kind, run):
    with kind(str(tmp_path)) as fake:
        service = support.client(fake)
        for word, expected in (("stockout", Kind.STOCKOUT), ("internal", Kind.INTERNAL)):
            fake.script.append(word)
            fault = finished(service, service.create(run, ZONE, 1, {}, 3600.0)).fault
            assert fault is not None and fault.kind is expected
            assert fake.node_names() == []


# --- the Cloud TPU API ----------------------------------------------------------------------------


def test_requests_state_what_is_rented():
    """Whole: with another key a node is on demand, and nobody says so."""
    labels = {RUN_LABEL: "run-1", ID_LABEL: "id-1", ATTEMPT_LABEL: "3", "managed-by": "bigbird-ja"}
    body = {
        "acceleratorType": "v3-8",
        "runtimeVersion": "tpu-vm-tf-2.15.0-se",
        "labels": labels,
        "metadata": {"a": "b"},
        "networkConfig": {"network": "", "subnetwork": "", "enableExternalIps": True},
    }
    spot = {**body, "schedulingConfig": {"spot": True}}
    assert tpu_api.creation(NODE, ZONE, 3, {"a": "b"}, 1.0) == spot
    for run, kind in ((QUEUED, "spot"), (replace(QUEUED, pricing="on_demand"), "guaranteed")):
        node = {"parent": f"projects/p/locations/{ZONE}", "nodeId": "run-1", "node": body}
        asked = tpu_api.creation(run, ZONE, 3, {"a": "b"}, 1.0)
        assert asked == {"tpu": {"nodeSpec": [node]}, kind: {}}
    other = replace(NODE, pricing="on_demand", service_account="a@b", network="n")
    node = tpu_api.creation(other, ZONE, 1, {}, 1.0)
    assert "schedulingConfig" not in node
    assert (node["serviceAccount"]["email"], node["networkConfig"]["network"]) == ("a@b", "n")
    addresses = tpu_api.delete_addresses("", QUEUED, "z")  # which the watcher deletes
    assert [address.partition("/locations/z/")[2] for address in addresses] == [
        "queuedResources/run-1?force=true",
        "nodes/run-1",  # for the case that only this is allowed
    ]
    v5e = support.vm_of("run-1", kind="v5e-16")
    assert tpu_api.creation(v5e, ZONE, 1, {}, 1.0)["acceleratorType"] == "v5litepod-16"


def test_a_call_is_retried_while_the_service_is_unavailable(fake_tpu, tpus):
    fake_tpu.script += ["unavailable", "unavailable"]
    tpus.create(NODE, ZONE, 1, {}, 3600.0)
    assert fake_tpu.requests.count("POST nodes") == 3
    fake_tpu.script.append("reply_lost")
    with pytest.raises(ServiceFault) as caught:
        tpus.create(replace(NODE, name="run-2"), ZONE, 1, {}, 3600.0)
    assert caught.value.kind is Kind.EXISTS
    fake_tpu.list_script += ["unavailable"] * 1000
    with pytest.raises(ServiceFault) as caught:
        tpus.list(ZONE)
    assert caught.value.kind is Kind.UNAVAILABLE


@pytest.mark.parametrize("answers", [False, True], ids=["hangs", "drips"])
def test_a_server_that_hangs_does_not_hang_the_caller(answers):
    ended = threading.Event()

    def serve():
        connection, _ = server.accept()
        with connection:
            if answers:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            ended.wait()

    with socket.create_server(("127.0.0.1", 0)) as server:
        in_background(serve)
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        try:
            with pytest.raises(ServiceFault) as caught:
                TpuNodes("p", support.rest(base, 0.3, 0.01)).list(ZONE)
        finally:
            ended.set()
    assert caught.value.kind is Kind.UNAVAILABLE


def test_every_state_of_a_queue(fake_tpu, tpus):
    fake_tpu.script.append("queued_waiting")
    tpus.create(QUEUED, ZONE, 1, {}, 3600.0)
    (queued,) = fake_tpu.queued.values()
    for states, presence in (
        ("WAITING_FOR_RESOURCES ACCEPTED CREATING", Presence.WAITING),
        ("PROVISIONING", Presence.PENDING),
        ("DELETING", Presence.DELETING),
        # ACTIVE, and its node is not there any more.
        ("ACTIVE SUSPENDING SUSPENDED WHAT_IS_NEW", Presence.GONE),
    ):
        for state in states.split():
            queued["state"] = {"state": state}
            assert [tpu.presence for tpu in tpus.list(ZONE)] == [presence], state
    error = {"code": 8, "message": "Limit: 0 of the Quota in the zone"}  # it is the code that tells
    queued["state"] = {"state": "FAILED", "failedData": {"error": error}}
    (tpu,) = tpus.list(ZONE)
    assert tpu.presence is Presence.GONE
    assert tpu.fault is not None and tpu.fault.kind is Kind.QUOTA
    finished(tpus, tpus.delete(tpu))
    assert fake_tpu.queued_names() == []


def test_a_queue_is_listed_before_its_nodes(fake_tpu, tpus):
    """Else one that becomes ACTIVE between the two lists would show no node, as if it were lost."""
    tpus.list(ZONE)
    order = [one for one in fake_tpu.paths if one.endswith(("/queuedResources", "/nodes"))]
    assert [one.rpartition("/")[2] for one in order] == ["queuedResources", "nodes"]


def test_what_the_service_leaves_out_is_empty():
    """As its JSON does with every field that has its default."""
    place = f"projects/p/locations/{ZONE}"

    class Bare:
        def find(self, path, kind):
            failed = {"state": {"state": "FAILED"}} if "Resources" in path else {}
            return msgspec.convert({"name": path, **failed}, kind)

        def call(self, verb, name, kind):
            error = {"code": 8, "message": "Quota"} if name == "o" else {"a": 1}
            return msgspec.convert({"done": True, "error": error}, kind)

    service = TpuNodes("p", Bare())  # type: ignore[arg-type]
    tpu = service.find(ZONE, "n")
    assert (tpu.presence, tpu.attempt, tpu.owner) == (Presence.GONE, 0, "no label")
    assert (tpu.resource, tpu.fault.kind) == (f"{place}/queuedResources/n", Kind.INTERNAL)
    kinds = [service.operation(name).fault.kind for name in "on"]
    assert kinds == [Kind.QUOTA, Kind.INTERNAL]


def test_every_state_is_ready_pending_or_dead(fake_tpu, tpus):
    tpus.create(NODE, ZONE, 1, {}, 3600.0)
    for states, presence in (
        ("READY", Presence.READY),
        ("DELETING", Presence.DELETING),
        ("CREATING STARTING RESTARTING REPAIRING REIMAGING", Presence.PENDING),
        ("STOPPED STOPPING PREEMPTED TERMINATED", Presence.GONE),
        ("HIDING HIDDEN UNHIDING UNKNOWN WHAT_IS_NEW", Presence.GONE),
    ):
        for state in states.split():
            fake_tpu.preempt("run-1", state=state)
            assert [tpu.presence for tpu in tpus.list(ZONE)] == [presence], state


def test_a_zone_that_does_not_answer_hides_nothing_else(fake_tpu, tpus):
    tpus.create(NODE, ZONE, 1, {}, 3600.0)
    fake_tpu.unreachable.append("projects/p/locations/asia-east1-c")
    with pytest.raises(ServiceFault, match="no answer from asia-east1-c") as caught:
        tpus.list("-")
    assert [tpu.name for tpu in caught.value.listed] == ["run-1"]


# --- what answers mean ----------------------------------------------------------------------------


def test_credentials_that_are_refused():
    session = mock.Mock()
    session.request.side_effect = RefreshError("x")
    with pytest.raises(ServiceFault) as caught:
        rest.Rest("http://127.0.0.1", session).call("GET", "x", rest.Answer)
    text = advise(caught.value, NODE, ZONE)
    assert "application-default login" in text


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, {"message": "Quota limit 'X' has been exceeded"}, Kind.QUOTA),
        (429, {"message": "There is no more capacity in the zone"}, Kind.STOCKOUT),
        (404, {"message": "operations/none was not found"}, Kind.NOT_FOUND),
        (409, {"message": "x"}, Kind.EXISTS),
        (409, {"message": "x", "status": "ABORTED"}, Kind.UNAVAILABLE),
        (412, {"message": "x"}, Kind.BAD_REQUEST),
        (401, {"message": "x"}, Kind.PERMISSION),
        (504, {}, Kind.UNAVAILABLE),
        (418, None, Kind.INTERNAL),
    ],
)
def test_what_a_refusal_means(status, body, kind):
    fault = rest.fault_of_answer(status, {"error": body})
    assert fault.kind is kind and fault.message


def test_advice_has_what_to_do():
    message = "The caller does not have permission actAs on service account x"
    text = advise(rest.fault_of_status(7, message), NODE, ZONE)
    assert "serviceAccountUser" in text and message in text and "\n" not in text


def test_an_open_connection_stays_on_this_machine(monkeypatch):
    monkeypatch.setenv(tpu_api.EMULATOR_VARIABLE, "tpu.example.com:443")
    with pytest.raises(BadInput, match="this machine"):
        tpu_api.connect("p")
