"""What the fakes of both services share: an HTTP door on loopback, machines that are processes.

A machine is `bash` running its start-up script in a process group of its own; preemption is
SIGTERM, a grace, SIGKILL. The door also is the metadata server of the machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "token-of-the-vm"
Answer = tuple[int, Any]
REFUSALS = {
    "permission": (403, "PERMISSION_DENIED", "Permission denied on the resource"),
    "disabled": (403, "PERMISSION_DENIED", "The API has not been used before or it is disabled."),
    "quota_call": (429, "RESOURCE_EXHAUSTED", "Quota limit 'X' has been exceeded. Limit: 0"),
    "rate": (429, "RESOURCE_EXHAUSTED", "Quota exceeded for limit 'Queries per minute'"),
    "unavailable": (503, "UNAVAILABLE", "The service is currently unavailable."),
    "internal_call": (500, "INTERNAL", "Internal error."),
    "bad_request": (400, "INVALID_ARGUMENT", "Invalid value for field 'machineType'"),
}


class Service:
    """The door and the processes.

    Args:
        work_dir: each machine gets a folder in it, as its disk and for its output.
        environ: environment of the machines' processes; None: the scripts are not run.
        keep_disk: all machines share one folder, as if the image had the package installed.
    """

    def __init__(
        self, work_dir: str, environ: dict[str, str] | None = None, keep_disk: bool = False
    ) -> None:
        self.work_dir, self._environ, self._keep_disk = work_dir, environ, keep_disk
        self._lock = threading.RLock()
        self._counter = 0
        self.processes: list[subprocess.Popen[bytes]] = []
        self.script: list[str] = []  # answers to creations, in order; then all succeed
        self.delete_script: list[str] = []
        self.list_script: list[str] = []
        self.requests: list[str] = []
        self.most_at_once = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _door(self))
        self.address = f"127.0.0.1:{self._http.server_address[1]}"
        self.url = f"http://{self.address}"

    def __enter__(self) -> Any:
        work = lambda: self._http.serve_forever(0.02)  # noqa: E731
        threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            kill(process, 0.0)
        self._http.shutdown()
        self._http.server_close()

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """One request to the service."""
        raise NotImplementedError

    def answer_machine(self, method: str, path: str) -> Answer | None:
        """What a machine, which shows its token, asks for; None: as anybody."""
        return None

    def refusal(self, script: list[str]) -> Answer | None:
        """The script's next answer where it is a refusal."""
        if not script or script[0] not in REFUSALS:
            return None
        code, status, message = REFUSALS[script.pop(0)]
        return code, error(code, message, status)

    def boot(
        self, script: str, environ: dict[str, str] | None = None, disk_name: str = "disk"
    ) -> subprocess.Popen[bytes] | None:
        """A machine's process."""
        if self._environ is None:
            return None
        self._counter += 1
        directory = os.path.join(self.work_dir, f"vm-{self._counter}")
        os.makedirs(directory)
        with open(f"{directory}/startup-script", "w", encoding="utf-8") as file:
            file.write(script)
        disk = os.path.join(self.work_dir if self._keep_disk else directory, disk_name)
        folders = {"BIGBIRD_JA_VM_DIR": disk, "BIGBIRD_JA_VM_RUN_DIR": directory}
        with open(f"{directory}/console.log", "wb") as output:
            process = subprocess.Popen(
                ["bash", f"{directory}/startup-script"],
                env={**self._environ, **(environ or {}), **folders},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def later(self, work: Callable[[], None]) -> None:
        """Does something in the background."""
        threading.Thread(target=work, daemon=True).start()


def error(code: int, message: str, status: str = "") -> dict[str, Any]:
    """The body of a refusal."""
    details = {"code": code, "message": message, "errors": [{"message": message}]}
    return {"error": {**details, **({"status": status} if status else {})}}


def kill(process: subprocess.Popen[bytes] | None, grace: float) -> None:
    """Ends a process group that a fake started."""
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


def _door(service: Service) -> type[BaseHTTPRequestHandler]:
    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if re.fullmatch("/computeMetadata/.*/token", self.path):
                is_asked_well = self.headers.get("Metadata-Flavor") == "Google"
                return self._send(200 if is_asked_well else 403, {"access_token": TOKEN})
            return self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_DELETE(self) -> None:
            self._serve()

        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            token = self.headers.get("Authorization")
            answer = None
            if token is not None:
                is_known = token == f"Bearer {TOKEN}"
                answer = service.answer_machine(self.command, self.path) if is_known else (401, {})
            self._send(*(answer or service.answer(self.command, self.path, body)))

        def _send(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Door
