"""Compute Engine's REST API on loopback, as far as `launch` uses it: VMs that are real processes.

A VM is `bash` running its start-up script, as in `testkit.fakes.tpu`. The service keeps the promise
that leases rest on: at the end of `maxRunDuration` it deletes the VM itself. Error texts: assumed.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from testkit.fakes.compute_slices import Slices
from testkit.fakes.tpu import TOKEN, JsonDoor, _kill

ZONES = ("us-central1-a", "us-central1-b", "us-east5-b")
ERRORS = {
    "stockout": ("ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources."),
    "quota": ("QUOTA_EXCEEDED", "Quota 'TPU_LITE_PODSLICE_V5' exceeded. Limit: 0.0 in region."),
    "internal": ("INTERNAL_ERROR", "Internal error."),
}
REFUSALS = {
    "permission": (403, "Required 'compute.instances.create' permission"),
    "unavailable": (503, "The service is currently unavailable."),
    "internal_call": (500, "Internal error."),
    "rate": (429, "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute'"),
    "bad_request": (400, "Invalid value for field 'resource.machineType'"),
}


@dataclass
class Instance:
    """A VM and the process that stands for it."""

    resource: dict[str, Any]
    born: float = field(default_factory=time.monotonic)
    process: subprocess.Popen[bytes] | None = None


class FakeCompute:
    """The service.

    Args:
        work_dir: each VM gets a folder in it.
        environ: environment of the VMs' processes; None: the scripts are not run.
        keep_disk: all VMs share one folder, as if the image had the package installed.
        hurry: how many times faster than the clock a `maxRunDuration` runs out.
    """

    def __init__(
        self,
        work_dir: str,
        environ: dict[str, str] | None = None,
        keep_disk: bool = False,
        hurry: float = 1.0,
    ) -> None:
        self._work_dir, self._environ, self._keep_disk = work_dir, environ, keep_disk
        self._hurry, self._counter = hurry, 0
        self._lock = threading.RLock()
        self._vms: dict[tuple[str, str], Instance] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._ending = threading.Event()
        self.script: list[str] = []  # answers to creations, in order; then all succeed
        self.delete_script: list[str] = []
        self.list_script: list[str] = []
        self.requests: list[str] = []
        self.created: list[dict[str, Any]] = []  # what was asked for
        self.most_at_once = 0
        self.coordinator_port = _free_port()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _door(self))
        self.address = f"127.0.0.1:{self._http.server_address[1]}"
        self.url = f"http://{self.address}"
        self.slices = Slices(
            f"{self.url}/compute/v1/projects/p", self._operation, self._later, self._boot_host,
            self._stop, lambda key: key in self._vms, _error,
        )  # fmt: skip

    def __enter__(self) -> FakeCompute:
        for work in (lambda: self._http.serve_forever(0.02), self._end_leases):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for vm in list(self._vms.values()):
            _kill(vm.process, 0.0)
        self._http.shutdown()
        self._http.server_close()

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
        _kill(vm.process, grace)
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
                _kill(vm.process, 0.0)

    def _is_over(self, vm: Instance) -> bool:
        scheduling = vm.resource["scheduling"]
        if "terminationTime" in scheduling:
            ends = datetime.datetime.fromisoformat(scheduling["terminationTime"]).timestamp()
            return time.time() >= ends
        most = float(scheduling["maxRunDuration"]["seconds"])
        return (time.monotonic() - vm.born) * self._hurry >= most

    # --- the API -----------------------------------------------------------------------------

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
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
            case ["zones" | "regions", _, "operations", name] | ["global", "operations", name]:
                found = self._operations.get(name)
                return (200, found) if found else (404, _error(404, f"{name} was not found"))
        answer = self._refusal(self.list_script) if method == "GET" else None
        answer = answer or self.slices.answer(method, parts[1:], body)
        return answer or (404, _error(404, f"{method} {path} is not served here"))

    def _list(self, zone: str | None) -> tuple[int, Any]:
        refusal = self._refusal(self.list_script)
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

    def _refusal(self, script: list[str]) -> tuple[int, Any] | None:
        word = script[0] if script else "ok"
        if word not in REFUSALS:
            return None
        script.pop(0)
        code, message = REFUSALS[word]
        return code, _error(code, message)

    def _create(self, zone: str, resource: dict[str, Any]) -> tuple[int, Any]:
        refusal = self._refusal(self.script)
        if refusal:
            return refusal
        word = self.script.pop(0) if self.script else "ok"
        key = (zone, resource["name"])
        with self._lock:
            if key in self._vms:
                return 409, _error(409, f"The resource {resource['name']} already exists")
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
                self._boot(vm)
        if word == "reply_lost":
            return 503, _error(503, "the reply was lost")
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
            self._boot(vm, place)

    def _boot(self, vm: Instance, more: dict[str, str] | None = None) -> None:
        if self._environ is None:
            return
        self._counter += 1
        directory = os.path.join(self._work_dir, f"vm-{self._counter}")
        os.makedirs(directory)
        items = {item["key"]: item["value"] for item in vm.resource["metadata"]["items"]}
        with open(f"{directory}/startup-script", "w", encoding="utf-8") as file:
            file.write(items["startup-script"])
        place = (more or {}).get("JAX_PROCESS_ID", "")
        disk = os.path.join(self._work_dir if self._keep_disk else directory, f"disk{place}")
        with open(f"{directory}/console.log", "wb") as output:
            vm.process = subprocess.Popen(
                ["bash", f"{directory}/startup-script"],
                env={
                    **self._environ,
                    **(more or {}),
                    "BIGBIRD_JA_VM_DIR": disk,
                    "BIGBIRD_JA_VM_RUN_DIR": directory,
                },
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def _delete(self, zone: str, name: str) -> tuple[int, Any]:
        refusal = self._refusal(self.delete_script)
        if refusal:
            return refusal
        with self._lock:
            vm = self._vms.get((zone, name))
            if vm is None:
                return 404, _error(404, f"The resource {name} was not found")
            vm.resource["status"] = "STOPPING"
        return 200, self._later(lambda: self._stop([(zone, name)]))

    def _stop(self, keys: list[tuple[str, str]]) -> None:
        """Ends VMs, and forgets them."""
        for key in keys:
            vm = self._vms.get(key)
            if vm is not None:
                vm.resource["status"] = "STOPPING"
                _kill(vm.process, 0.2)
                self._forget(key, vm)

    def _later(self, work: Callable[[], None]) -> dict[str, Any]:
        """An operation that is over when its work is."""
        operation = self._operation(done=False)

        def finish() -> None:
            work()
            operation["status"] = "DONE"

        threading.Thread(target=finish, daemon=True).start()
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


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "errors": [{"message": message}]}}


def _door(fake: FakeCompute) -> type[BaseHTTPRequestHandler]:
    class Door(JsonDoor, BaseHTTPRequestHandler):
        """The service, and the metadata server of its VMs."""

        def do_GET(self) -> None:
            if re.fullmatch("/computeMetadata/.*/token", self.path):
                return self.answer(200, {"access_token": TOKEN})
            return self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_DELETE(self) -> None:
            self._serve()

        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            self.answer(*fake.answer(self.command, self.path, body))

    return Door
