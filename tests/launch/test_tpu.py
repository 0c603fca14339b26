"""The real google-cloud-tpu client against the fake service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
import pytest
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError

from bigbird_ja.launch import tpu as tpu_lib
from bigbird_ja.launch import tpu_service
from bigbird_ja.launch.services import Kind, ServiceFault, advice, fault_of_exception, fault_of_status
from bigbird_ja.launch.tpu import GcpTpus
from bigbird_ja.launch.services import Operation, Presence, Tpu, TpuSpec
from bigbird_ja.process.errors import BadInput
from testkit.fakes.tpu import FakeTpu, QueueState, State

ZONE = "us-central1-b"
NODE = TpuSpec("run-1", "v3-8", "tpu-vm-tf-2.15.0-se")
QUEUED = TpuSpec("run-1", "v3-8", "tpu-vm-tf-2.15.0-se", queued=True)


@pytest.fixture
def fake(tmp_path: object) -> Iterator[FakeTpu]:
    with FakeTpu(str(tmp_path)) as server:
        yield server


@pytest.fixture
def tpus(fake: FakeTpu) -> GcpTpus:
    return GcpTpus("p", tpu_lib.emulator_client(fake.address), call_seconds=5.0, retry_seconds=2.0)


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def finished(tpus: GcpTpus, name: str) -> Operation:
    wait_for(lambda: tpus.operation(name).done)
    return tpus.operation(name)


@pytest.mark.parametrize("spec", [NODE, QUEUED], ids=["node", "queued"])
def test_life_of_a_tpu(fake: FakeTpu, tpus: GcpTpus, spec: TpuSpec) -> None:
    operation = finished(tpus, tpus.create(spec, ZONE, 3, {"startup-script": "true"}, 3600.0))
    assert operation.fault is None
    (tpu,) = tpus.list(ZONE)
    assert tpu.presence is Presence.READY
    assert (tpu.run, tpu.attempt, tpu.zone) == ("run-1", 3, ZONE)
    assert (tpu.has_node, tpu.has_queued) == (True, spec.queued)
    assert tpu.created > 1e9
    assert tpus.list("europe-west4-a") == []
    assert [t.name for t in tpus.list("-")] == ["run-1"]

    fake.preempt("run-1")
    (dead,) = tpus.list(ZONE)
    assert dead.presence is Presence.GONE

    finished(tpus, tpus.delete(dead))
    assert tpus.list(ZONE) == []
    assert fake.node_names() == fake.queued_names() == []


def test_requests_say_what_is_rented() -> None:
    spot = tpu_lib.create_request("p", NODE, ZONE, 1, {"startup-script": "x"})
    assert spot.node.scheduling_config.spot and not spot.node.scheduling_config.preemptible
    assert spot.node.metadata == {"startup-script": "x"}
    assert spot.node.labels[tpu_service.RUN_LABEL] == "run-1"
    preemptible = TpuSpec("r", "v2-8", "i", "preemptible", service_account="a@b", network="n")
    request = tpu_lib.create_request("p", preemptible, ZONE, 1, {})
    assert request.node.scheduling_config.preemptible
    assert request.node.service_account.email == "a@b"
    assert request.node.network_config.network == "n"
    on_demand = tpu_lib.create_request("p", TpuSpec("r", "v2-8", "i", "on_demand"), ZONE, 1, {})
    assert not on_demand.node.scheduling_config.spot
    queued = tpu_lib.create_request("p", QUEUED, ZONE, 1, {}).queued_resource
    assert "spot" in queued and "guaranteed" not in queued
    assert queued.tpu.node_spec[0].node_id == "run-1"


@pytest.mark.parametrize(
    ("word", "kind"), [("stockout", Kind.STOCKOUT), ("internal", Kind.INTERNAL)]
)
def test_failed_operations(fake: FakeTpu, tpus: GcpTpus, word: str, kind: Kind) -> None:
    fake.script.append(word)
    operation = finished(tpus, tpus.create(NODE, ZONE, 1, {}, 3600.0))
    assert operation.fault is not None and operation.fault.kind is kind


@pytest.mark.parametrize(("word", "kind"), [("quota", Kind.QUOTA), ("permission", Kind.PERMISSION)])
def test_refused_calls(fake: FakeTpu, tpus: GcpTpus, word: str, kind: Kind) -> None:
    fake.script.append(word)
    with pytest.raises(ServiceFault) as caught:
        tpus.create(NODE, ZONE, 1, {}, 3600.0)
    assert caught.value.kind is kind


def test_unavailable_is_retried_and_a_lost_reply_shows_as_existing(
    fake: FakeTpu, tpus: GcpTpus
) -> None:
    fake.script += ["unavailable", "unavailable"]
    tpus.create(NODE, ZONE, 1, {}, 3600.0)
    assert fake.requests.count("CreateNode") == 3
    other = TpuSpec("run-2", "v3-8", "i")
    fake.script.append("reply_lost")
    with pytest.raises(ServiceFault) as caught:
        tpus.create(other, ZONE, 1, {}, 3600.0)
    assert caught.value.kind is Kind.EXISTS
    assert len(fake.node_names()) == 2


def test_service_that_stays_away_ends_in_bounded_time(fake: FakeTpu, tpus: GcpTpus) -> None:
    fake.list_script += ["unavailable"] * 1000
    with pytest.raises(ServiceFault) as caught:
        tpus.list(ZONE)
    assert caught.value.kind is Kind.UNAVAILABLE


def test_hung_server_does_not_hang_the_caller() -> None:
    """No method has a timeout of its own: ours must reach the wire."""
    release = threading.Event()

    class Hung(grpc.GenericRpcHandler):
        def tpu_service(self, details: object) -> object:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: release.wait(20))

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Hung(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = tpu_lib.emulator_client(f"127.0.0.1:{port}")
    try:
        with pytest.raises(ServiceFault) as caught:
            GcpTpus("p", client, call_seconds=0.3, retry_seconds=0.3).list(ZONE)
        assert caught.value.kind is Kind.UNAVAILABLE
    finally:
        release.set()
        server.stop(0)


def test_waiting_and_failed_queues(fake: FakeTpu, tpus: GcpTpus) -> None:
    fake.script.append("queued_waiting")
    tpus.create(QUEUED, ZONE, 1, {}, 3600.0)
    (tpu,) = tpus.list(ZONE)
    assert tpu.presence is Presence.WAITING
    (name,) = fake.queued_names()
    queued = fake._queued[name]
    queued.state.state = QueueState.FAILED
    queued.state.failed_data.error = {"code": 8, "message": "There is no more capacity in the zone"}
    (tpu,) = tpus.list(ZONE)
    assert tpu.presence is Presence.GONE
    assert tpu.fault is not None and tpu.fault.kind is Kind.STOCKOUT
    finished(tpus, tpus.delete(tpu))
    assert fake.queued_names() == []


@pytest.mark.parametrize("state", [s for s in State if s.name != "STATE_UNSPECIFIED"])
def test_every_state_is_ready_on_its_way_or_dead(
    fake: FakeTpu, tpus: GcpTpus, state: State
) -> None:
    tpus.create(NODE, ZONE, 1, {}, 3600.0)
    fake.preempt("run-1", state=state)
    (tpu,) = tpus.list(ZONE)
    pending = {"CREATING", "STARTING", "RESTARTING", "REPAIRING", "REIMAGING"}
    expected = {"READY": Presence.READY, "DELETING": Presence.DELETING}.get(
        state.name, Presence.PENDING if state.name in pending else Presence.GONE
    )
    assert tpu.presence is expected


def test_forgotten_operation(tpus: GcpTpus) -> None:
    with pytest.raises(ServiceFault) as caught:
        tpus.operation("operations/none")
    assert caught.value.kind is Kind.NOT_FOUND


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.ResourceExhausted("Quota limit 'X' has been exceeded"), Kind.QUOTA),
        (exceptions.TooManyRequests("There is no more capacity in the zone"), Kind.STOCKOUT),
        (exceptions.AlreadyExists("x"), Kind.EXISTS),
        (exceptions.Conflict("x"), Kind.EXISTS),
        (exceptions.FailedPrecondition("x"), Kind.BAD_REQUEST),
        (exceptions.InvalidArgument("x"), Kind.BAD_REQUEST),
        (exceptions.Forbidden("x"), Kind.PERMISSION),
        (exceptions.Unauthenticated("x"), Kind.PERMISSION),
        (exceptions.DeadlineExceeded("x"), Kind.UNAVAILABLE),
        (exceptions.InternalServerError("x"), Kind.INTERNAL),
        (TimeoutError("x"), Kind.UNAVAILABLE),
        (DefaultCredentialsError("x"), Kind.PERMISSION),
    ],
)
def test_exceptions_of_both_transports(error: Exception, kind: Kind) -> None:
    assert fault_of_exception(error).kind is kind


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (8, "Quota 'TPUV3s' exhausted. Limit 0", "Quotas page"),
        (
            7,
            "Cloud TPU API has not been used in project 1 before or it is disabled",
            "gcloud services",
        ),
        (7, "The caller does not have permission actAs on service account x", "serviceAccountUser"),
        (16, "credentials: reauthentication needed", "application-default login"),
        (7, "Permission 'tpu.nodes.create' denied", "roles/tpu.admin"),
        (3, "unknown accelerator", "--runtime_version"),
    ],
)
def test_advice_says_what_to_do(code: int, message: str, words: str) -> None:
    fault = fault_of_status(code, message)
    text = advice(fault, "my-project", ZONE, "v3-8")
    assert words in text
    assert message in text
    assert "\n" not in text


def test_open_channels_stay_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tpu_lib.EMULATOR_VARIABLE, "tpu.example.com:443")
    with pytest.raises(BadInput, match="this machine"):
        tpu_lib.connect("p")


def test_labels_that_are_not_ours() -> None:
    tpu = Tpu(
        "x", ZONE, Presence.READY, "READY", True, False, labels={tpu_service.ATTEMPT_LABEL: "?"}
    )
    assert (tpu.run, tpu.attempt) == ("x", 0)
