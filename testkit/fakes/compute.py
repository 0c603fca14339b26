"""Compute Engine's REST API on loopback, as far as `launch` uses it: VMs that are real processes.

The service keeps the promise that leases rest on: at the end of `maxRunDuration` it deletes the VM
itself. Error texts: assumed.
"""

from __future__ import annotations

import datetime
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from testkit.fakes.compute_slices import Slices
from testkit.fakes.machines import Answer, Service, error, kill

ZONES = ("us-central1-a", "us-central1-b", "us-east5-b")
ERRORS = {
    "stockout": ("ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources."),
    "quota": ("QUOTA_EXCEEDED", "Quota 'TPU_LITE_PODSLICE_V5' exceeded. Limit: 0.0 in region."),
    "internal": ("INTERNAL_ERROR", "Internal error."),
}


@dataclass
class Instance:
    """A VM and the process that stands for it."""

    resource: dict[str, Any]
    born: float = field(default_factory=time.monotonic)
    process: subprocess.Popen[bytes] | None = None


class FakeCompute(Service):
    """The service; see `Service`.

    Args:
        hurry: how many times faster than the clock a `maxRunDuration` runs out.
    """

    def __init__(
        self,
        work_dir: str,
        environ: dict[str, str] | None = None,
        keep_disk: bool = False,
        hurry: float = 1.0,
    ) -> None:
        super().__init__(work_dir, environ, keep_disk)
        self._hurry = hurry
        self._vms: dict[tuple[str, str], Instance] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._ending = threading.Event()
        self.created: list[dict[str, Any]] = []  # what was asked for
        self.coordinator_port = _free_port()
        self.slices = Slices(
            f"{self.url}/compute/v1/projects/p", self._operation, self._later, self._boot_host,
            self._stop, lambda key: key in self._vms, error,
        )  # fmt: skip

    def __enter__(self) -> FakeCompute:
        super().__enter__()
        self.later(self._end_leases)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        super().__exit__(*exception)

    # --- what tests do and ask ---------------------------------------------------------------

    def node_names(self) -> list[str]:
        """zone/name of all VMs and groups."""
        with self._lock:
            return sorted("/".join(key) for key in {*self._vms, *self.slices.groups})

    def hosts(self, name: str) -> list[str]:
        """Names of a slice's hosts that are there, by their place in it."""
        (group,) = [group for key, group in self.slices.groups.items() if key[1] == name]
        return [host for _, host in group.hosts if host]

    def is_ready(self, name: str) -> bool:
        with self._lock:
            groups = [group for key, group in self.slices.groups.items() if key[1] == name]
            wanted = {name, *(host for group in groups for _, host in group.hosts)}
            found = [vm for key, vm in self._vms.items() if key[1] in wanted]
            running = sum(vm.resource["status"] == "RUNNING" for vm in found)
            return running >= max([1, *(len(group.hosts) for group in groups)])

    def preempt(self, name: str, grace: float = 0.0) -> None:
        """Takes a VM away: TERM, a grace, KILL, and deletes it, as its termination action says."""
        with self._lock:
            (key,) = [key for key in self._vms if key[1] == name]
            vm = self._vms[key]
        vm.resource["status"] = "STOPPING"
        kill(vm.process, grace)
        self._forget(key, vm)

    def _forget(self, key: tuple[str, str], vm: Instance) -> None:
        """It is gone; another of its name stays."""
        with self._lock:
            if self._vms.get(key) is vm:
                del self._vms[key]

    def _end_leases(self) -> None:
        while not self._ending.wait(0.05):
            self.slices.fill()
            with self._lock:
                over = [key for key, vm in self._vms.items() if self._is_over(vm)]
                dead = [self._vms.pop(key) for key in over]
            for vm in dead:
                kill(vm.process, 0.0)

    def _is_over(self, vm: Instance) -> bool:
        scheduling = vm.resource["scheduling"]
        if "terminationTime" in scheduling:
            ends = datetime.datetime.fromisoformat(scheduling["terminationTime"]).timestamp()
            return time.time() >= ends
        most = float(scheduling["maxRunDuration"]["seconds"])
        return (time.monotonic() - vm.born) * self._hurry >= most

    # --- the API -----------------------------------------------------------------------------

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """One request."""
        parts = path.partition("?")[0].strip("/").split("/")[3:]  # after compute/v1/projects
        self.requests.append(f"{method} {'/'.join(parts[1:])}")
        match parts[1:]:
            case ["zones"]:
                return 200, {"items": [{"name": zone} for zone in ZONES]}
            case ["aggregated", "instances"]:
                return self._list(None)
            case ["zones", zone, "instances"] if method == "POST":
                return self._create(zone, body)
            case ["zones", zone, "instances"]:
                return self._list(zone)
            case ["zones", zone, "instances", name] if method == "DELETE":
                return self._delete(zone, name)
            case ["zones", zone, "instances", name]:
                vm = self._vms.get((zone, name))
                return (200, vm.resource) if vm else (404, error(404, f"{name} was not found"))
            case ["zones" | "regions", _, "operations", name] | ["global", "operations", name]:
                found = self._operations.get(name)
                return (200, found) if found else (404, error(404, f"{name} was not found"))
        answer = self.refusal(self.list_script) if method == "GET" else None
        answer = answer or self.slices.answer(method, parts[1:], body)
        return answer or (404, error(404, f"{method} {path} is not served here"))

    def _list(self, zone: str | None) -> Answer:
        refusal = self.refusal(self.list_script)
        if refusal:
            return refusal
        with self._lock:
            found = [vm.resource for key, vm in self._vms.items() if zone in (None, key[0])]
        if zone is not None:
            return 200, {"items": found}
        scopes: dict[str, Any] = {}
        for one in found:
            scope = one["zone"].split("/", 6)[-1]
            scopes.setdefault(scope, {"instances": []})["instances"].append(one)
        return 200, {"items": scopes}

    def _create(self, zone: str, resource: dict[str, Any]) -> Answer:
        refusal = self.refusal(self.script)
        if refusal:
            return refusal
        word = self.script.pop(0) if self.script else "ok"
        key = (zone, resource["name"])
        with self._lock:
            if key in self._vms:
                return 409, error(409, f"The resource {resource['name']} already exists")
            if word in ERRORS:
                return 200, self._operation(*ERRORS[word])
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
            base = f"{self.url}/compute/v1/projects/p"
            resource |= {
                "status": "STAGING" if word == "stuck" else "RUNNING",
                "creationTimestamp": now, "zone": f"{base}/zones/{zone}",
            }  # fmt: skip
            vm = self._vms[key] = Instance(resource)
            self.created.append(resource)
            self.most_at_once = max(self.most_at_once, len(self._vms))
            if word != "stuck":
                vm.process = self.boot(_script(vm))
        if word == "reply_lost":
            return 503, error(503, "the reply was lost")
        return 200, self._operation()

    def _boot_host(
        self, zone: str, name: str, properties: dict[str, Any], number: int, count: int
    ) -> None:
        """A host of a slice, which finds the others by what its environment says."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        vm = Instance({
            **properties, "name": name, "status": "RUNNING", "creationTimestamp": now,
            "zone": f"{self.url}/compute/v1/projects/p/zones/{zone}",
        })  # fmt: skip
        vm.resource["machineType"] = f"zones/{zone}/machineTypes/{properties['machineType']}"
        place = {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{self.coordinator_port}",
            "JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(number),
        }  # fmt: skip
        with self._lock:
            self._vms[(zone, name)] = vm
            vm.process = self.boot(_script(vm), place, f"disk{number}")

    def _delete(self, zone: str, name: str) -> Answer:
        refusal = self.refusal(self.delete_script)
        if refusal:
            return refusal
        with self._lock:
            vm = self._vms.get((zone, name))
            if vm is None:
                return 404, error(404, f"The resource {name} was not found")
            vm.resource["status"] = "STOPPING"
        return 200, self._later(lambda: self._stop([(zone, name)]))

    def _stop(self, keys: list[tuple[str, str]]) -> None:
        """Ends VMs, and forgets them."""
        for key in keys:
            vm = self._vms.get(key)
            if vm is not None:
                vm.resource["status"] = "STOPPING"
                kill(vm.process, 0.2)
                self._forget(key, vm)

    def _later(self, work: Callable[[], None]) -> dict[str, Any]:
        """An operation that is over when its work is."""
        operation = self._operation(done=False)

        def finish() -> None:
            work()
            operation["status"] = "DONE"

        self.later(finish)
        return operation

    def _operation(self, code: str = "", message: str = "", done: bool = True) -> dict[str, Any]:
        self._counter += 1
        name = f"operation-{self._counter}"
        found: dict[str, Any] = {"name": name, "status": "DONE" if done else "RUNNING"}
        if code:
            found["error"] = {"errors": [{"code": code, "message": message}]}
        self._operations[name] = found
        return found


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _script(vm: Instance) -> str:
    items = {item["key"]: item["value"] for item in vm.resource["metadata"]["items"]}
    return str(items.get("startup-script", ""))
