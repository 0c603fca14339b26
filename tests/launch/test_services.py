"""Both services by our clients against the fakes, and what the answers of a service mean."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from google.auth.exceptions import RefreshError, TransportError

from bigbird_ja.launch import rest, services
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.services import ID_LABEL, RUN_DIR_KEY, Presence, TpuNodes, Tpus, TpuSpec
from bigbird_ja.process.errors import BadInput
from testkit.fakes.compute import FakeCompute
from testkit.fakes.tpu import FakeTpu
from tests.launch import support
from tests.launch.support import finished

ZONE = "us-central1-b"
NODE = TpuSpec("run-1", "v3-8", "tpu-vm-tf-2.15.0-se", "id-1")
QUEUED = replace(NODE, queued=True)
VM = replace(NODE, accelerator_type="v5litepod-8")
SLICE = replace(NODE, accelerator_type="v6e-16")
METADATA = {"startup-script": "true", RUN_DIR_KEY: "gs://b/run-1"}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeTpu]:
    with FakeTpu(str(tmp_path)) as server:
        yield server


@pytest.fixture
def tpus(fake: FakeTpu) -> Tpus:
    return support.client(fake)


# --- what both services promise -------------------------------------------------------------------

KINDS = pytest.mark.parametrize(
    ("kind", "spec"),
    [(FakeTpu, NODE), (FakeTpu, QUEUED), (FakeCompute, VM), (FakeCompute, SLICE)],
    ids=["node", "queued", "vm", "slice"],
)


@KINDS
def test_life_of_a_machine(tmp_path: Path, kind: type[support.Fake], spec: TpuSpec) -> None:
    with kind(str(tmp_path)) as fake:
        service = support.client(fake)
        assert finished(service, service.create(spec, ZONE, 3, METADATA, 3600.0)).fault is None
        support.wait_until(lambda: service.list(ZONE)[0].presence is Presence.READY, 10)
        (tpu,) = service.list("-")
        assert (tpu.name, tpu.zone) == ("run-1", ZONE)
        assert (tpu.run, tpu.run_id, tpu.attempt) == ("run-1", "id-1", 3)
        assert (tpu.accelerator_type, tpu.run_dir) == (spec.accelerator_type, "gs://b/run-1")
        assert (tpu.is_queued, tpu.is_group) == (spec is QUEUED, spec is SLICE)
        assert tpu.created == pytest.approx(time.time(), abs=60)
        assert service.list("us-central1-a") == [] and ZONE in service.zones()
        with pytest.raises(ServiceFault) as caught:  # as where the reply to a creation was lost
            service.create(spec, ZONE, 3, METADATA, 3600.0)
        assert caught.value.kind is Kind.EXISTS and len(service.list(ZONE)) == 1
        support.delete_all(service, ZONE)
        assert service.list("-") == [] and fake.node_names() == []


@KINDS
def test_only_the_machine_that_was_listed_is_deleted(
    tmp_path: Path, kind: type[support.Fake], spec: TpuSpec
) -> None:
    """Another run's machine, or another creation of its own, may have the name by now."""
    with kind(str(tmp_path)) as fake:
        service = support.client(fake)
        service.create(spec, ZONE, 1, {}, 1e5)
        (tpu,) = service.list(ZONE)
        of_another = replace(tpu, labels={**tpu.labels, ID_LABEL: "id-2"})
        for expected in (of_another, replace(tpu, created=tpu.created - 60)):
            with pytest.raises(ServiceFault) as caught:
                service.delete(expected)
            assert caught.value.kind is Kind.NOT_FOUND
        assert fake.node_names()
        service.delete(tpu)


@pytest.mark.parametrize(
    ("kind", "spec", "word", "expected"),
    [
        (FakeTpu, NODE, "stockout", Kind.STOCKOUT),
        (FakeTpu, NODE, "internal", Kind.INTERNAL),
        (FakeCompute, VM, "stockout", Kind.STOCKOUT),
        (FakeCompute, VM, "quota", Kind.QUOTA),
        (FakeCompute, VM, "internal", Kind.INTERNAL),
    ],
)
def test_failed_creations(
    tmp_path: Path, kind: type[support.Fake], spec: TpuSpec, word: str, expected: Kind
) -> None:
    with kind(str(tmp_path)) as fake:
        service = support.client(fake)
        fake.script.append(word)
        fault = finished(service, service.create(spec, ZONE, 1, {}, 3600.0)).fault
        assert fault is not None and fault.kind is expected
        assert fake.node_names() == []


# --- the Cloud TPU API ----------------------------------------------------------------------------


def test_requests_state_what_is_rented() -> None:
    spot = services.creation("p", NODE, ZONE, 1, {"startup-script": "x"})
    assert spot["schedulingConfig"] == {"spot": True}
    assert spot["metadata"] == {"startup-script": "x"}
    assert spot["labels"][services.RUN_LABEL] == "run-1"
    other = TpuSpec("r", "v2-8", "i", pricing="on_demand", service_account="a@b", network="n")
    node = services.creation("p", other, ZONE, 1, {})
    assert "schedulingConfig" not in node
    assert (node["serviceAccount"]["email"], node["networkConfig"]["network"]) == ("a@b", "n")
    queued = services.creation("p", QUEUED, ZONE, 1, {})
    assert "spot" in queued and "guaranteed" not in queued
    assert queued["tpu"]["nodeSpec"][0]["nodeId"] == "run-1"
    v5e = TpuSpec("run-1", "v5e-16", services.image("v5e-16"))
    assert v5e.runtime_version == services.V5E_RUNTIME_VERSION
    assert services.creation("p", v5e, ZONE, 1, {})["acceleratorType"] == "v5litepod-16"


@pytest.mark.parametrize(
    ("spec", "path"),
    [(NODE, "nodes/run-1"), (QUEUED, "queuedResources/run-1?force=true")],
)
def test_the_address_of_a_deletion(spec: TpuSpec, path: str) -> None:
    address = services.delete_address("", "p", spec, "z")
    assert address == f"{services.API}/projects/p/locations/z/{path}"


def test_a_call_is_retried_while_the_service_is_unavailable(fake: FakeTpu, tpus: Tpus) -> None:
    fake.script += ["unavailable", "unavailable"]
    tpus.create(NODE, ZONE, 1, {}, 3600.0)
    assert fake.requests.count("POST nodes") == 3
    fake.script.append("reply_lost")
    with pytest.raises(ServiceFault) as caught:
        tpus.create(replace(NODE, name="run-2"), ZONE, 1, {}, 3600.0)
    assert caught.value.kind is Kind.EXISTS
    fake.list_script += ["unavailable"] * 1000
    with pytest.raises(ServiceFault) as caught:
        tpus.list(ZONE)
    assert caught.value.kind is Kind.UNAVAILABLE


@pytest.mark.parametrize("answers", [False, True], ids=["hangs", "drips"])
def test_a_server_that_hangs_does_not_hang_the_caller(answers: bool) -> None:
    ended = threading.Event()

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            if answers:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            ended.wait()

    with socket.create_server(("127.0.0.1", 0)) as server:
        support.in_background(serve)
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        try:
            with pytest.raises(ServiceFault) as caught:
                TpuNodes("p", support.rest(base, 0.3, 0.01)).list(ZONE)
        finally:
            ended.set()
    assert caught.value.kind is Kind.UNAVAILABLE


def test_waiting_and_failed_queues(fake: FakeTpu, tpus: Tpus) -> None:
    fake.script.append("queued_waiting")
    tpus.create(QUEUED, ZONE, 1, {}, 3600.0)
    assert [tpu.presence for tpu in tpus.list(ZONE)] == [Presence.WAITING]
    (queued,) = fake.queued.values()
    error = {"code": 8, "message": "There is no more capacity in the zone"}
    queued["state"] = {"state": "FAILED", "failedData": {"error": error}}
    (tpu,) = tpus.list(ZONE)
    assert tpu.presence is Presence.GONE
    assert tpu.fault is not None and tpu.fault.kind is Kind.STOCKOUT
    finished(tpus, tpus.delete(tpu))
    assert fake.queued_names() == []


@pytest.mark.parametrize(
    ("states", "presence"),
    [
        ("READY", Presence.READY),
        ("DELETING", Presence.DELETING),
        ("CREATING STARTING RESTARTING REPAIRING REIMAGING", Presence.PENDING),
        (
            "STOPPED STOPPING PREEMPTED TERMINATED HIDING HIDDEN UNHIDING UNKNOWN WHAT_IS_NEW",
            Presence.GONE,
        ),
    ],
)
def test_every_state_is_ready_pending_or_dead(
    fake: FakeTpu, tpus: Tpus, states: str, presence: Presence
) -> None:
    tpus.create(NODE, ZONE, 1, {}, 3600.0)
    for state in states.split():
        fake.preempt("run-1", state=state)
        (tpu,) = tpus.list(ZONE)
        assert tpu.presence is presence


def test_a_zone_that_does_not_answer_hides_nothing_else(fake: FakeTpu, tpus: Tpus) -> None:
    tpus.create(NODE, ZONE, 1, {}, 3600.0)
    fake.unreachable.append("projects/p/locations/asia-east1-c")
    with pytest.raises(ServiceFault, match="no answer from asia-east1-c") as caught:
        tpus.list("-")
    assert [tpu.name for tpu in caught.value.listed] == ["run-1"]


# --- what answers mean ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError("x"), Kind.UNAVAILABLE),
        (TransportError("x"), Kind.UNAVAILABLE),
        (RefreshError("x"), Kind.PERMISSION),
    ],
)
def test_a_request_that_fails_before_an_answer(error: Exception, kind: Kind) -> None:
    class Session:
        def request(self, *_: object, **__: object) -> None:
            raise error

    with pytest.raises(ServiceFault) as caught:
        rest.Rest("http://127.0.0.1", Session(), retry_seconds=0.01).call("GET", "x")
    assert caught.value.kind is kind


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
def test_what_a_refusal_means(status: int, body: object, kind: Kind) -> None:
    fault = rest.fault_of_answer(status, {"error": body})
    assert fault.kind is kind and fault.message


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (8, "Quota 'TPUV3s' exhausted. Limit 0", "Quotas page"),
        (7, "Cloud TPU API has not been used in project 1 before", "gcloud services"),
        (7, "The caller does not have permission actAs on service account x", "serviceAccountUser"),
        (16, "credentials: reauthentication needed", "application-default login"),
        (7, "Permission 'tpu.nodes.create' denied", "roles/tpu.admin"),
        (3, "unknown accelerator", "--runtime_version"),
    ],
)
def test_advice_has_what_to_do(code: int, message: str, words: str) -> None:
    text = rest.advice(rest.fault_of_status(code, message), "my-project", ZONE, "v3-8")
    assert words in text and message in text and "\n" not in text


def test_an_open_connection_stays_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(services.EMULATOR_VARIABLE, "tpu.example.com:443")
    with pytest.raises(BadInput, match="this machine"):
        services.connect("p")
