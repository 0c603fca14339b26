"""The Cloud TPU API on loopback, by REST: nodes and queued resources that are real processes.

Texts of stock-out and quota errors are those that people have reported of the real service;
ALREADY_EXISTS and NOT_FOUND texts are assumed.
"""

from __future__ import annotations

import datetime
import subprocess
from dataclasses import dataclass
from typing import Any

from testkit.fakes.machines import Answer, Service, error, kill

STOCKOUT = (
    'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU'
    " Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x0123456789abcdef]"
)
QUOTA = (
    "Quota limit 'TPUV3sPreemptiblePodPerProjectPerRegionForTPUAPI' has been exceeded."
    " Limit: 0 in region, zone {zone}."
)
ZONES = ("us-central1-a", "us-central1-b", "europe-west4-a", "asia-east1-c")


@dataclass
class Machine:
    """A node and the process that stands for its VM."""

    node: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None


class FakeTpu(Service):
    """The service; see `Service`."""

    def __init__(
        self, work_dir: str, environ: dict[str, str] | None = None, keep_disk: bool = False
    ) -> None:
        super().__init__(work_dir, environ, keep_disk)
        self._machines: dict[str, Machine] = {}
        self.queued: dict[str, dict[str, Any]] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self.unreachable: list[str] = []  # locations that a listing leaves out
        self.http_script: list[int] = []  # statuses for what machines ask of themselves
        self.created: list[str] = []

    # --- what tests do and ask ---------------------------------------------------------------

    def node_names(self) -> list[str]:
        """Full names of all nodes, dead ones too."""
        with self._lock:
            return sorted(self._machines)

    def queued_names(self) -> list[str]:
        with self._lock:
            return sorted(self.queued)

    def machine(self, node_id: str) -> Machine | None:
        """The newest machine of this id, in whatever zone."""
        with self._lock:
            machines = [m for name, m in self._machines.items() if name.endswith(f"/{node_id}")]
            return machines[-1] if machines else None

    def is_ready(self, node_id: str) -> bool:
        machine = self.machine(node_id)
        return machine is not None and machine.node["state"] == "READY"

    def preempt(self, node_id: str, grace: float = 0.0, state: str = "PREEMPTED") -> None:
        """Takes a machine away: TERM, a grace, KILL; it stays listed."""
        machine = self.machine(node_id)
        assert machine is not None
        kill(machine.process, grace)
        with self._lock:
            machine.node["state"] = state
            queued = self.queued.get(_queue_of(machine.node["name"]))
            if queued is not None:
                queued["state"] = {"state": "SUSPENDED"}

    # --- the API -----------------------------------------------------------------------------

    def answer(self, method: str, path: str, body: Any) -> Answer:
        path, _, query = path.removeprefix("/v2/").partition("?")
        parts = path.split("/")
        self.requests.append(f"{method} {parts[-1] if method == 'POST' else parts[-2]}")
        with self._lock:
            match method, parts:
                case "GET", ["operations", _]:
                    known = self._operations.get(path)
                    return (200, known) if known else _not_found(path)
                case "GET", ["projects", _, "locations"]:
                    return 200, {"locations": [{"locationId": zone} for zone in ZONES]}
                case "GET", [*_, "nodes"]:
                    nodes = [m.node for n, m in self._machines.items() if _inside(n, path)]
                    listing = {"nodes": nodes, "unreachable": self.unreachable}
                    return self.refusal(self.list_script) or (200, listing)
                case "GET", [*_, "queuedResources"]:
                    queues = [queue for name, queue in self.queued.items() if _inside(name, path)]
                    return 200, {"queuedResources": queues}
                case "GET", [*_, "nodes", _]:
                    machine = self._machines.get(path)
                    return (200, machine.node) if machine else _not_found(path)
                case "GET", [*_, "queuedResources", _]:
                    queued = self.queued.get(path)
                    return (200, queued) if queued else _not_found(path)
                case "POST", [*_, "nodes"]:
                    return self._create(f"{path}/{query.partition('=')[2]}", body, None)
                case "POST", [*_, "queuedResources"]:
                    return self._create_queued(f"{path}/{query.partition('=')[2]}", body)
                case "DELETE", [*_, "nodes", _]:
                    return self._delete(path, "")
                case "DELETE", [*_, "queuedResources", _]:
                    node = path.replace("/queuedResources/", "/nodes/")
                    if node in self._machines and "force=true" not in query:
                        return 400, error(400, "the queued resource has nodes")
                    return self._delete(node, path)
        return _not_found(path)

    def answer_machine(self, method: str, path: str) -> Answer | None:
        self.requests.append(f"machine {method}")
        return (self.http_script.pop(0), {}) if self.http_script else None

    def _create_queued(self, name: str, body: dict[str, Any]) -> Answer:
        if name in self.queued:
            return 409, error(409, f"{name} already exists", "ALREADY_EXISTS")
        spec = body["tpu"]["nodeSpec"][0]
        queued = {**body, "name": name, "createTime": _now(), "state": {"state": "ACTIVE"}}
        return self._create(f"{spec['parent']}/nodes/{spec['nodeId']}", spec["node"], queued)

    def _create(self, name: str, node: dict[str, Any], queued: dict[str, Any] | None) -> Answer:
        refused = self.refusal(self.script)
        if refused:
            return refused
        word, zone = self.script.pop(0) if self.script else "ok", name.split("/")[3]
        if word == "quota":
            return 429, error(429, QUOTA.format(zone=zone), "RESOURCE_EXHAUSTED")
        if name in self._machines:
            return 409, error(409, f"{name} already exists", "ALREADY_EXISTS")
        if word == "stockout":
            return self._operation(error={"code": 8, "message": STOCKOUT.format(zone=zone)})
        if word == "internal":
            return self._operation(error={"code": 13, "message": "an internal error occurred"})
        if queued is not None:
            self.queued[queued["name"]] = queued
        if word == "queued_waiting" and queued is not None:
            queued["state"] = {"state": "WAITING_FOR_RESOURCES"}
            return self._operation()
        state = "CREATING" if word == "stuck" else "READY"
        machine = Machine({**node, "name": name, "createTime": _now(), "state": state})
        self._machines[name] = machine
        self.created.append(name)
        self.most_at_once = max(self.most_at_once, len(self._machines))
        if word != "stuck":
            script = node["metadata"].get("startup-script", "")
            machine.process = self.boot(script)
        if word == "reply_lost":
            return 503, error(503, "the reply was lost")
        return self._operation(done=word != "stuck")

    def _delete(self, node: str, queued: str) -> Answer:
        refused = self.refusal(self.delete_script)
        if refused:
            return refused
        if (queued or node) not in {*self._machines, *self.queued}:
            return _not_found(queued or node)
        machine = self._machines.get(node)
        if machine is not None:
            machine.node["state"] = "DELETING"
        status, operation = self._operation(done=False)

        def finish() -> None:
            kill(machine.process if machine else None, 0.2)
            with self._lock:
                self._machines.pop(node, None)
                self.queued.pop(queued, None)
                operation["done"] = True

        self.later(finish)
        return status, operation

    def _operation(self, done: bool = True, **values: Any) -> Answer:
        self._counter += 1
        operation = {"name": f"operations/{self._counter}", "done": done, **values}
        self._operations[operation["name"]] = operation
        return 200, operation


def _inside(name: str, listing: str) -> bool:
    parent, _, kind = listing.rpartition("/")
    if parent.endswith("/locations/-"):
        return name.startswith(parent[:-1]) and f"/{kind}/" in name
    return name.startswith(f"{listing}/")


def _queue_of(node: str) -> str:
    return node.replace("/nodes/", "/queuedResources/")


def _not_found(name: str) -> Answer:
    return 404, error(404, f"{name} was not found", "NOT_FOUND")


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")
