"""Compute Engine's REST API on loopback, as far as `launch` uses it: VMs that are real processes.

A VM is `bash` running its start-up script, as in `testkit.fakes.tpu`. The service keeps the promise
that leases rest on: at the end of `maxRunDuration` it deletes the VM itself. Error texts: assumed.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _door(self))
        self.address = f"127.0.0.1:{self._http.server_address[1]}"
        self.url = f"http://{self.address}"

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
        """zone/name of all VMs."""
        with self._lock:
            return sorted("/".join(key) for key in self._vms)

    def is_ready(self, name: str) -> bool:
        with self._lock:
            found = [vm for key, vm in self._vms.items() if key[1] == name]
            return any(vm.resource["status"] == "RUNNING" for vm in found)

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
            with self._lock:
                over = [key for key, vm in self._vms.items() if self._is_over(vm)]
                dead = [self._vms.pop(key) for key in over]
            for vm in dead:
                _kill(vm.process, 0.0)

    def _is_over(self, vm: Instance) -> bool:
        most = float(vm.resource["scheduling"]["maxRunDuration"]["seconds"])
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
            case ["zones", _, "operations", name]:
                found = self._operations.get(name)
                return (200, found) if found else (404, _error(404, f"{name} was not found"))
        return 404, _error(404, f"{method} {path} is not served here")

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
                return 200, self._operation(zone, *ERRORS[word])
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
        return 200, self._operation(zone)

    def _boot(self, vm: Instance) -> None:
        if self._environ is None:
            return
        self._counter += 1
        directory = os.path.join(self._work_dir, f"vm-{self._counter}")
        os.makedirs(directory)
        items = {item["key"]: item["value"] for item in vm.resource["metadata"]["items"]}
        with open(f"{directory}/startup-script", "w", encoding="utf-8") as file:
            file.write(items["startup-script"])
        disk = os.path.join(self._work_dir if self._keep_disk else directory, "disk")
        with open(f"{directory}/console.log", "wb") as output:
            vm.process = subprocess.Popen(
                ["bash", f"{directory}/startup-script"],
                env={
                    **self._environ,
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
        operation = self._operation(zone, done=False)

        def finish() -> None:
            _kill(vm.process, 0.2)
            self._forget((zone, name), vm)
            operation["status"] = "DONE"

        threading.Thread(target=finish, daemon=True).start()
        return 200, operation

    def _operation(
        self, zone: str, code: str = "", message: str = "", done: bool = True
    ) -> dict[str, Any]:
        self._counter += 1
        name = f"operation-{self._counter}"
        found: dict[str, Any] = {"name": name, "status": "DONE" if done else "RUNNING"}
        if code:
            found["error"] = {"errors": [{"code": code, "message": message}]}
        self._operations[name] = found
        return found


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
