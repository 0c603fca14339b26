"""HTTP server and machine processes of the fake Compute Engine and of the fake Cloud TPU API.

A machine is a `bash` process that runs the startup script in a new process group. A preemption
sends SIGTERM, and SIGKILL some seconds later. The HTTP server is also the machines' metadata
server.
"""

import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "token-of-the-vm"
ZONES = (
    "us-central1-a",
    "us-central1-b",
    "us-central1-c",
    "us-central2-b",
    "us-east1-d",
    "us-east5-a",
    "us-west4-a",
    "europe-west4-a",
)
Answer = tuple[int, Any]
REFUSALS = {
    "permission": (403, "PERMISSION_DENIED", "Permission denied on the resource"),
    "disabled": (403, "PERMISSION_DENIED", "The API has not been used before or it is disabled."),
    "no_type": (400, "INVALID_ARGUMENT", "The accelerator type is not available in the zone."),
    "unavailable": (503, "UNAVAILABLE", "The service is currently unavailable."),
    "internal_call": (500, "INTERNAL", "Internal error."),
}


@dataclass
class FakeMachine:
    """Machine of a fake service: its description in the API, and its process."""

    resource: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None


class Service:
    """Base class of the fake services, with server, processes and operations.

    Args:
        work_dir: folder in which each machine gets a folder for its disk and its output.
        environ: environment of the machines' processes. If it is None, machines run no script.
        keep_disk: whether all machines share one disk, as if the image contained the package.
    """

    path: str  # Path of the API in the URL.
    # Prefix of an operation's name, its fields while it runs, and its fields when it is done.
    operation_prefix: str
    running: dict[str, Any]
    over: dict[str, Any]

    def __init__(self, work_dir, environ=None, keep_disk=False):
        self.work_dir, self._environ, self._keep_disk = work_dir, environ, keep_disk
        self._lock = threading.RLock()
        self._processes = []
        self._operations = {}
        self.created = []  # Requests to create machines.
        # Outcomes of the next creations, in order. All later creations succeed.
        self.script = []
        self.delete_script = []
        self.unread = ""  # key of REFUSALS with which all lookups of a machine are refused
        self.requests = []
        self.machines = {}  # all listed machines by full name, including preempted machines
        self.most_at_once = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _door(self))
        self.address = f"127.0.0.1:{self._http.server_address[1]}"
        self.url = f"http://{self.address}"
        self.api = f"{self.url}/{self.path}"

    def __enter__(self):
        in_background(lambda: self._http.serve_forever(0.02))
        return self

    def __exit__(self, *_):
        for process in self._processes:
            kill(process, 0.0)
        self._http.shutdown()
        self._http.server_close()

    def add(self, name, resource, process):
        """Add a machine that has booted."""
        self.machines[name] = FakeMachine(resource, process)
        self.most_at_once = max(self.most_at_once, len(self.machines))

    def node_names(self):
        """List the names of all machines."""
        with self._lock:
            return sorted(self.machines)

    def machine(self, name):
        """Return the newest machine with this name in any zone, or None."""
        with self._lock:
            named = [one for key, one in self.machines.items() if key.endswith(f"/{name}")]
            return named[-1] if named else None

    def answer(self, method, path, body):
        """Return the status and the JSON value of the answer to a request."""
        raise NotImplementedError

    def refusal(self, script):
        """Return the answer of the next outcome in `script` if this is a refusal, else None.

        `script` is a list of outcomes, which a test has prepared. A refusal is removed from it.
        """
        if not script or script[0] not in REFUSALS:
            return None
        code, status, message = REFUSALS[script.pop(0)]
        return code, error(code, message, status)

    def get_operation(self, work=None, **values):
        """Create an operation. It is done at once, or when `work` returns in a new thread."""
        name = f"{self.operation_prefix}{len(self._operations)}"
        operation = self._operations[name] = {"name": name, **self.over, **values}

        def finish(work):
            work()
            operation.update(self.over)

        if work is not None:
            operation.update(self.running)
            in_background(lambda: finish(work))
        return 200, operation

    def boot(self, script):
        """Start the process of a machine, which runs the startup script."""
        if self._environ is None:
            return None
        directory = os.path.join(self.work_dir, f"vm-{len(self._processes)}")
        os.makedirs(directory)
        Path(directory, "startup-script").write_text(script, "utf-8")
        disk = os.path.join(self.work_dir if self._keep_disk else directory, "disk")
        folders = {"BIGBIRD_JA_VM_DIR": disk, "BIGBIRD_JA_VM_RUN_DIR": directory}
        with open(f"{directory}/console.log", "wb") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            how = {"env": {**self._environ, **folders}, "start_new_session": True, **streams}
            process = subprocess.Popen(["bash", f"{directory}/startup-script"], **how)
        self._processes.append(process)
        return process


def in_background(work):
    """Call a function in a new thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def now():
    """Return the current time in the format of Google's APIs."""
    moment = datetime.datetime.now(datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def error(code, message, status=""):
    """Return the JSON value of an answer that reports an error."""
    details = {"code": code, "message": message, "errors": [{"message": message}]}
    return {"error": {**details, **({"status": status} if status else {})}}


def lookup(resource, name):
    """Return an answer with a resource, or with status 404 if the resource is None."""
    missing = (404, error(404, f"{name} was not found", "NOT_FOUND"))
    return missing if resource is None else (200, resource)


def kill(process, grace):
    """End a machine's process group: send SIGTERM, and SIGKILL after `grace` seconds."""
    if process is None:
        return
    with contextlib.suppress(ProcessLookupError):
        if grace > 0:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _door(service):
    class Door(BaseHTTPRequestHandler):
        def serve(self):
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, reply = self._answer(body)
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = serve  # noqa: N815

        def _answer(self, body):
            if re.fullmatch("/computeMetadata/.*/token", self.path):
                is_asked_well = self.headers.get("Metadata-Flavor") == "Google"
                return (200, {"access_token": TOKEN}) if is_asked_well else (403, {})
            # Only a machine sends a token. It got this token from the metadata server.
            if (token := self.headers.get("Authorization")) is not None:
                service.requests.append(f"machine {self.command}")
                if token != f"Bearer {TOKEN}":
                    return 401, {}
            return service.answer(self.command, self.path, body)

        def log_message(self, format, *args):
            pass

    return Door
