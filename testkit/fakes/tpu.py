"""A Cloud TPU API of our own on loopback: gRPC by generic handlers, nodes that are real processes.

The "TPU VM" is `bash` running the node's start-up script in a process group of its own; preemption
is SIGTERM, a grace, SIGKILL. A second, plain HTTP door serves what a VM itself asks: a token of its
service account, and its own deletion. Texts of stock-out and quota errors are those that people
have reported of the real service; ALREADY_EXISTS and NOT_FOUND texts are assumed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from google.cloud import tpu_v2
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2, timestamp_pb2
from google.rpc.status_pb2 import Status

State = tpu_v2.Node.State
QueueState = tpu_v2.QueuedResourceState.State

STOCKOUT = (
    'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU'
    " Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x0123456789abcdef]"
)
QUOTA = (
    "Quota limit 'TPUV3sPreemptiblePodPerProjectPerRegionForTPUAPI' has been exceeded."
    " Limit: 0 in region {region}, zone {zone}."
)
PERMISSION = "Permission 'tpu.nodes.create' denied on 'projects/{project}/locations/{zone}'"
ZONES = ("us-central1-a", "us-central1-b", "europe-west4-a", "asia-east1-c")
TOKEN = "token-of-the-vm"


@dataclasses.dataclass
class Machine:
    """A node and the process that stands for its VM."""

    node: Any
    process: subprocess.Popen[bytes] | None = None
    directory: str = ""


class FakeTpu:
    """The service.

    Args:
        work_dir: each node gets a folder in it, as its disk and for its output.
        environ: environment of the nodes' processes; None: the scripts are not run.
        keep_disk: all nodes share one folder, as if the image had the package installed.
    """

    def __init__(
        self, work_dir: str, environ: dict[str, str] | None = None, keep_disk: bool = False
    ) -> None:
        self._work_dir, self._environ, self._keep_disk = work_dir, environ, keep_disk
        self.work_dir = work_dir
        self._lock = threading.RLock()
        self._machines: dict[str, Machine] = {}
        self._queued: dict[str, Any] = {}
        self._operations: dict[str, Any] = {}
        self._counter = 0
        self.script: list[str] = []  # answers to creations, in order; then all succeed
        self.delete_script: list[str] = []
        self.list_script: list[str] = []
        self.unreachable: list[str] = []  # locations that a listing leaves out
        self.http_script: list[int] = []  # statuses for what machines ask of themselves
        self.requests: list[str] = []  # methods, in order
        self.created_names: list[str] = []
        self.most_at_once = 0
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        for version in ("v2", "v2alpha1"):
            self._server.add_generic_rpc_handlers(
                (
                    grpc.method_handlers_generic_handler(
                        f"google.cloud.tpu.{version}.Tpu", _table(self)
                    ),
                )
            )
        operations = {
            "GetOperation": grpc.unary_unary_rpc_method_handler(
                self._get_operation,
                operations_pb2.GetOperationRequest.FromString,
                operations_pb2.Operation.SerializeToString,
            )
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("google.longrunning.Operations", operations),)
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        locations = {
            "ListLocations": grpc.unary_unary_rpc_method_handler(
                self._list_locations,
                locations_pb2.ListLocationsRequest.FromString,
                locations_pb2.ListLocationsResponse.SerializeToString,
            )
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("google.cloud.location.Locations", locations),)
        )
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _door(self))
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> FakeTpu:
        self._server.start()
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for machine in list(self._machines.values()):
            _kill(machine.process, 0.0)
        self._http.shutdown()
        self._http.server_close()
        self._server.stop(0)

    # --- what tests do and ask ---------------------------------------------------------------

    def node_names(self) -> list[str]:
        """Full names of all nodes, dead ones too."""
        with self._lock:
            return sorted(self._machines)

    def queued_names(self) -> list[str]:
        with self._lock:
            return sorted(self._queued)

    def machine(self, node_id: str) -> Machine | None:
        """The newest machine of this id, in whatever zone."""
        with self._lock:
            found = [m for name, m in self._machines.items() if name.endswith(f"/{node_id}")]
            return found[-1] if found else None

    def is_ready(self, node_id: str) -> bool:
        machine = self.machine(node_id)
        return machine is not None and machine.node.state == State.READY

    def preempt(self, node_id: str, grace: float = 0.0, state: Any = State.PREEMPTED) -> None:
        """Takes a machine away: TERM, a grace, KILL; it stays listed."""
        machine = self.machine(node_id)
        assert machine is not None
        _kill(machine.process, grace)
        with self._lock:
            machine.node.state = state
            queued = self._queued.get(machine.node.name.replace("/nodes/", "/queuedResources/"))
            if queued is not None:
                queued.state.state = QueueState.SUSPENDED

    def output(self, node_id: str) -> str:
        """What a node's process printed."""
        machine = self.machine(node_id)
        if machine is None:
            return ""
        with open(os.path.join(machine.directory, "console.log"), encoding="utf-8") as file:
            return file.read()

    # --- nodes -------------------------------------------------------------------------------

    def create_node(self, request: Any, context: Any) -> Any:
        return self._create(request.parent, request.node_id, request.node, None, context)

    def create_queued(self, request: Any, context: Any) -> Any:
        spec = request.queued_resource.tpu.node_spec[0]
        name = f"{request.parent}/queuedResources/{request.queued_resource_id}"
        if name in self._queued:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{name} already exists")
        queued = request.queued_resource
        queued.name, queued.create_time = name, _now()
        queued.state = tpu_v2.QueuedResourceState(state=QueueState.ACTIVE)
        return self._create(spec.parent, spec.node_id, spec.node, queued, context)

    def _create(self, parent: str, node_id: str, node: Any, queued: Any, context: Any) -> Any:
        word = self.script.pop(0) if self.script else "ok"
        _, project, _, zone = parent.split("/")
        words = {"zone": zone, "region": zone.rpartition("-")[0], "project": project}
        if word == "permission":
            context.abort(grpc.StatusCode.PERMISSION_DENIED, PERMISSION.format(**words))
        if word == "quota":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, QUOTA.format(**words))
        if word == "unavailable":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the service is not available")
        name = f"{parent}/nodes/{node_id}"
        with self._lock:
            if name in self._machines:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{name} already exists")
            if word == "stockout":
                return self._operation(error=Status(code=8, message=STOCKOUT.format(**words)))
            if word == "internal":
                return self._operation(error=Status(code=13, message="an internal error occurred"))
            if word == "queued_waiting" and queued is not None:
                queued.state = tpu_v2.QueuedResourceState(state=QueueState.WAITING_FOR_RESOURCES)
                self._queued[queued.name] = queued
                return self._operation(response=tpu_v2.QueuedResource.pb(queued))
            node.name, node.create_time = name, _now()
            node.state = State.CREATING if word == "stuck" else State.READY
            machine = Machine(node)
            self._machines[name] = machine
            self.created_names.append(name)
            self.most_at_once = max(self.most_at_once, len(self._machines))
            if queued is not None:
                self._queued[queued.name] = queued
            if word != "stuck":
                self._boot(machine)
            if word == "reply_lost":
                context.abort(grpc.StatusCode.UNAVAILABLE, "the reply was lost")
            if word == "stuck":
                return self._operation(done=False)
            if queued is not None:
                return self._operation(response=tpu_v2.QueuedResource.pb(queued))
            return self._operation(response=tpu_v2.Node.pb(node))

    def _boot(self, machine: Machine) -> None:
        if self._environ is None:
            return
        self._counter += 1
        machine.directory = os.path.join(self._work_dir, f"vm-{self._counter}")
        os.makedirs(machine.directory)
        script = os.path.join(machine.directory, "startup-script")
        with open(script, "w", encoding="utf-8") as file:
            file.write(machine.node.metadata["startup-script"])
        disk = os.path.join(self._work_dir if self._keep_disk else machine.directory, "disk")
        with open(os.path.join(machine.directory, "console.log"), "wb") as output:
            machine.process = subprocess.Popen(
                ["bash", script],
                env={
                    **self._environ,
                    "BIGBIRD_JA_VM_DIR": disk,
                    "BIGBIRD_JA_VM_RUN_DIR": machine.directory,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def delete_node(self, request: Any, context: Any) -> Any:
        self._refuse_deletion(context)
        if request.name not in self._machines:
            context.abort(grpc.StatusCode.NOT_FOUND, f"{request.name} was not found")
        return self._delete(request.name, None)

    def delete_queued(self, request: Any, context: Any) -> Any:
        self._refuse_deletion(context)
        if request.name not in self._queued:
            context.abort(grpc.StatusCode.NOT_FOUND, f"{request.name} was not found")
        node = request.name.replace("/queuedResources/", "/nodes/")
        if node in self._machines and not request.force:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the queued resource has nodes")
        return self._delete(node, request.name)

    def _refuse_deletion(self, context: Any) -> None:
        word = self.delete_script.pop(0) if self.delete_script else "ok"
        if word == "permission":
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "Permission 'tpu.nodes.delete' denied")
        if word == "unavailable":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the service is not available")

    def _delete(self, node: str, queued: str | None) -> Any:
        machine = self._machines.get(node)
        if machine is not None:
            machine.node.state = State.DELETING
        operation = self._operation(done=False)

        def finish() -> None:
            if machine is not None:
                _kill(machine.process, 0.2)
            with self._lock:
                self._machines.pop(node, None)
                if queued is not None:
                    self._queued.pop(queued, None)
                operation.response.Pack(empty_pb2.Empty())
                operation.done = True

        threading.Thread(target=finish, daemon=True).start()
        return operation

    def delete_by_http(self, name: str) -> bool:
        """What a VM asks for itself."""
        with self._lock:
            node = name.replace("/queuedResources/", "/nodes/")
            if node not in self._machines:
                return False
            queued = name if "/queuedResources/" in name else None
            self.requests.append("HTTP DELETE")
            self._delete(node, queued)
            return True

    def list_nodes(self, request: Any, context: Any) -> Any:
        self._refuse_listing(context)
        with self._lock:
            nodes = [m.node for name, m in self._machines.items() if _inside(name, request.parent)]
            return tpu_v2.ListNodesResponse(nodes=nodes, unreachable=self.unreachable)

    def _list_locations(self, request: Any, context: Any) -> Any:
        names = [f"{request.name}/locations/{zone}" for zone in ZONES]
        found = [
            locations_pb2.Location(name=name, location_id=name.rsplit("/")[-1]) for name in names
        ]
        return locations_pb2.ListLocationsResponse(locations=found)

    def list_queued(self, request: Any, context: Any) -> Any:
        with self._lock:
            found = [q for name, q in self._queued.items() if _inside(name, request.parent)]
            return tpu_v2.ListQueuedResourcesResponse(queued_resources=found)

    def _refuse_listing(self, context: Any) -> None:
        word = self.list_script.pop(0) if self.list_script else "ok"
        if word == "unavailable":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the service is not available")
        if word == "disabled":
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                "Cloud TPU API has not been used in project 1 before or it is disabled.",
            )

    # --- operations --------------------------------------------------------------------------

    def _operation(self, response: Any = None, error: Any = None, done: bool = True) -> Any:
        self._counter += 1
        operation = operations_pb2.Operation(name=f"operations/{self._counter}")
        if response is not None:
            operation.response.Pack(response)
        if error is not None:
            operation.error.CopyFrom(error)
        operation.done = done
        self._operations[operation.name] = operation
        return operation

    def _get_operation(self, request: Any, context: Any) -> Any:
        with self._lock:
            if request.name not in self._operations:
                context.abort(grpc.StatusCode.NOT_FOUND, f"{request.name} was not found")
            return self._operations[request.name]


def _table(fake: FakeTpu) -> dict[str, Any]:
    operation = operations_pb2.Operation.SerializeToString
    methods = {
        "CreateNode": (fake.create_node, tpu_v2.CreateNodeRequest, operation),
        "DeleteNode": (fake.delete_node, tpu_v2.DeleteNodeRequest, operation),
        "ListNodes": (fake.list_nodes, tpu_v2.ListNodesRequest, tpu_v2.ListNodesResponse.serialize),
        "CreateQueuedResource": (
            fake.create_queued,
            tpu_v2.CreateQueuedResourceRequest,
            operation,
        ),
        "DeleteQueuedResource": (
            fake.delete_queued,
            tpu_v2.DeleteQueuedResourceRequest,
            operation,
        ),
        "ListQueuedResources": (
            fake.list_queued,
            tpu_v2.ListQueuedResourcesRequest,
            tpu_v2.ListQueuedResourcesResponse.serialize,
        ),
    }

    def logged(name: str, method: Any) -> Any:
        def call(request: Any, context: Any) -> Any:
            fake.requests.append(name)
            return method(request, context)

        return call

    return {
        name: grpc.unary_unary_rpc_method_handler(logged(name, method), kind.deserialize, answer)
        for name, (method, kind, answer) in methods.items()
    }


def _door(fake: FakeTpu) -> type[BaseHTTPRequestHandler]:
    class Door(JsonDoor):
        """The metadata server and the REST deletion, for the VM's own use."""

        def do_GET(self) -> None:
            known = self.path == "/computeMetadata/v1/instance/service-accounts/default/token"
            allowed = self.headers.get("Metadata-Flavor") == "Google"
            self.answer(200 if known and allowed else 404, {"access_token": TOKEN})

        def do_DELETE(self) -> None:
            if fake.http_script:
                return self.answer(fake.http_script.pop(0), {})
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.answer(401, {})
            name = self.path.removeprefix("/v2/").partition("?")[0]
            self.answer(200 if fake.delete_by_http(name) else 404, {})
            return None

    return Door


def _inside(name: str, parent: str) -> bool:
    if parent.endswith("/locations/-"):
        return name.startswith(parent[:-1])
    return name.startswith(f"{parent}/")


def _now() -> timestamp_pb2.Timestamp:
    stamp = timestamp_pb2.Timestamp()
    stamp.GetCurrentTime()
    return stamp


class JsonDoor(BaseHTTPRequestHandler):
    """Answers in JSON, and logs nothing."""

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _kill(process: subprocess.Popen[bytes] | None, grace: float) -> None:
    """Ends a process group that this fake started."""
    if process is None:
        return
    with contextlib.suppress(ProcessLookupError):
        if grace > 0:
            os.killpg(process.pid, signal.SIGTERM)
            until = time.monotonic() + grace
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
