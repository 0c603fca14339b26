"""The Cloud TPU API by our client against the fake service, and what its answers mean."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from google.auth.exceptions import RefreshError, TransportError

from bigbird_ja.launch import rest, services
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.services import Operation, Presence, TpuNodes, TpuSpec
from bigbird_ja.process.errors import BadInput
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

ZONE = "us-central1-b"
NODE = TpuSpec("run-1", "v3-8", "tpu-vm-tf-2.15.0-se", "id-1")
QUEUED = replace(NODE, queued=True)


@pytest.fixture
def fake(tmp_path: object) -> Iterator[FakeTpu]:
    with FakeTpu(str(tmp_path)) as server:
        yield server


@pytest.fixture
def tpus(fake: FakeTpu) -> TpuNodes:
    return support.nodes(fake)


def finished(tpus: TpuNodes, name: str) -> Operation:
    support.wait_until(lambda: tpus.operation(name).done, 10)
    return tpus.operation(name)


@pytest.mark.parametrize("spec", [NODE, QUEUED], ids=["node", "queued"])
def test_life_of_a_tpu(fake: FakeTpu, tpus: TpuNodes, spec: TpuSpec) -> None:
    operation = finished(tpus, tpus.create(spec, ZONE, 3, {"startup-script": "true"}, 3600.0))
    assert operation.fault is None
    (tpu,) = tpus.list(ZONE)
    assert (tpu.presence, tpu.is_queued) == (Presence.READY, spec.queued)
    assert (tpu.run, tpu.attempt, tpu.zone) == ("run-1", 3, ZONE)
    assert tpu.created == pytest.approx(time.time(), abs=60)
    assert tpus.list("europe-west4-a") == []
    assert [t.name for t in tpus.list("-")] == ["run-1"]
    assert ZONE in tpus.zones()
    fake.preempt("run-1")
    (dead,) = tpus.list(ZONE)
    assert dead.presence is Presence.GONE
    finished(tpus, tpus.delete(dead))
    assert tpus.list(ZONE) == []
    assert fake.node_names() == fake.queued_names() == []


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


def test_slices_of_v5e_are_nodes() -> None:
    spec = TpuSpec("run-1", "v5e-16", services.image("v5e-16"))
    assert spec.runtime_version == services.V5E_RUNTIME_VERSION
    assert services.creation("p", spec, ZONE, 1, {})["acceleratorType"] == "v5litepod-16"


@pytest.mark.parametrize(
    ("word", "kind"), [("stockout", Kind.STOCKOUT), ("internal", Kind.INTERNAL)]
)
def test_failed_operations(fake: FakeTpu, tpus: TpuNodes, word: str, kind: Kind) -> None:
    fake.script.append(word)
    operation = finished(tpus, tpus.create(NODE, ZONE, 1, {}, 3600.0))
    assert operation.fault is not None and operation.fault.kind is kind


def test_unavailable_is_retried_and_a_lost_reply_shows_as_existing(
    fake: FakeTpu, tpus: TpuNodes
) -> None:
    fake.script += ["unavailable", "unavailable"]
    tpus.create(NODE, ZONE, 1, {}, 3600.0)
    assert fake.requests.count("POST nodes") == 3
    fake.script.append("reply_lost")
    with pytest.raises(ServiceFault) as caught:
        tpus.create(replace(NODE, name="run-2"), ZONE, 1, {}, 3600.0)
    assert caught.value.kind is Kind.EXISTS
    assert len(fake.node_names()) == 2


def test_a_service_that_stays_away_ends_in_bounded_time(fake: FakeTpu, tpus: TpuNodes) -> None:
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
            ended.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as server:
        support.in_background(serve)
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        start = time.monotonic()
        try:
            with pytest.raises(ServiceFault) as caught:
                TpuNodes("p", support.rest(base, 0.3, 0.01)).list(ZONE)
        finally:
            ended.set()
    assert caught.value.kind is Kind.UNAVAILABLE and time.monotonic() - start < 10


def test_waiting_and_failed_queues(fake: FakeTpu, tpus: TpuNodes) -> None:
    fake.script.append("queued_waiting")
    tpus.create(QUEUED, ZONE, 1, {}, 3600.0)
    (tpu,) = tpus.list(ZONE)
    assert tpu.presence is Presence.WAITING
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
def test_every_state_is_ready_on_its_way_or_dead(
    fake: FakeTpu, tpus: TpuNodes, states: str, presence: Presence
) -> None:
    tpus.create(NODE, ZONE, 1, {}, 3600.0)
    for state in states.split():
        fake.preempt("run-1", state=state)
        (tpu,) = tpus.list(ZONE)
        assert tpu.presence is presence


def test_a_zone_that_does_not_answer_hides_nothing_else(fake: FakeTpu, tpus: TpuNodes) -> None:
    tpus.create(NODE, ZONE, 1, {}, 3600.0)
    fake.unreachable.append("projects/p/locations/asia-east1-c")
    with pytest.raises(ServiceFault, match="no answer from asia-east1-c") as caught:
        tpus.list("-")
    assert [tpu.name for tpu in caught.value.listed] == ["run-1"]


def test_forgotten_operation(tpus: TpuNodes) -> None:
    with pytest.raises(ServiceFault) as caught:
        tpus.operation("operations/none")
    assert caught.value.kind is Kind.NOT_FOUND


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
        (409, {"message": "x"}, Kind.EXISTS),
        (409, {"message": "x", "status": "ABORTED"}, Kind.UNAVAILABLE),
        (412, {"message": "x"}, Kind.BAD_REQUEST),
        (401, {"message": "x"}, Kind.PERMISSION),
        (504, {}, Kind.UNAVAILABLE),
        (418, None, Kind.INTERNAL),
    ],
)
def test_what_a_refusal_means(status: int, body: object, kind: Kind) -> None:
    fault = rest.fault_of_answer(status, json.loads(json.dumps({"error": body})))
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
