"""Request flex-start TPUs: queued, and deleted by the cloud at the end of their run time.

The public API and its client libraries have no field for it (2026), so `gcloud alpha` sends the
request; all else goes through the API as for any queued resource. Google's page "Request Cloud TPUs
using Flex-start" and `gcloud alpha compute tpus queued-resources create --help` (2026) describe it.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bigbird_ja.errors import BadInput
from bigbird_ja.launch import rest
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Json, Kind, ServiceFault

MAX_HOURS = 168.0
CALL_SECONDS = 120.0


def check(max_hours: float | None, needs_gcloud: bool) -> None:
    """Check the flags and tools that a flex-start run needs.

    Raises:
        BadInput: no --max_hours or more than a week, or no gcloud on this machine.
    """
    if max_hours is None or max_hours > MAX_HOURS:
        raise BadInput(
            f"--pricing flex-start: give --max_hours, at most {MAX_HOURS:g}: the cloud deletes the"
            " TPU then"
        )
    if needs_gcloud and not shutil.which("gcloud"):
        raise BadInput(
            "--pricing flex-start needs gcloud, which is not on this machine: install it"
            " (cloud.google.com/sdk/docs/install), then `gcloud components install alpha` and"
            " `gcloud auth login`"
        )


def arguments(run: LaunchedRun, zone: str, node: Json, limit: float) -> list[str]:
    """Return the command that requests a TPU.

    Args:
        run: record of the run.
        zone: zone of the request.
        node: request for the API; a file in the current folder has each value of its metadata.
        limit: maximum lifetime of the TPU, in seconds.
    """
    flags = {
        "node-id": run.name,
        "project": run.project,
        "zone": zone,
        "accelerator-type": node["acceleratorType"],
        "runtime-version": node["runtimeVersion"],
        "provisioning-model": "flex-start",
        "max-run-duration": f"{int(limit)}s",
        "labels": ",".join(f"{key}={value}" for key, value in node["labels"].items()),
        "metadata-from-file": ",".join(f"{key}={key}" for key in node["metadata"]),
        "network": run.network,
        "subnetwork": run.subnetwork,
        "service-account": run.service_account,
        "scopes": rest.SCOPE if run.service_account else None,
    }
    command = ["gcloud", "alpha", "compute", "tpus", "queued-resources", "create", run.name]
    command += [f"--{name}={value}" for name, value in flags.items() if value]
    command += [] if run.external_ip else ["--internal-ips"]
    return [*command, "--async", "--quiet", "--format=value(name)"]


def create(command: Sequence[str], metadata: Mapping[str, str]) -> str:
    """Request a TPU; return the operation's name.

    Args:
        command: result of `arguments`.
        metadata: metadata of the machine.

    Raises:
        ServiceFault: refused, no answer in time, or no name of an operation: then the next listing
            shows the result.
    """
    with tempfile.TemporaryDirectory(prefix="bigbird-ja-") as folder:
        for key, value in metadata.items():
            Path(folder, key).write_text(value, encoding="utf-8")
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=folder,
                text=True,
                timeout=CALL_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServiceFault(Kind.UNAVAILABLE, f"gcloud: {error}") from error
    if ended.returncode:
        raise _fault(ended.stderr)
    names = re.findall(r"projects/\S+/operations/\S+", ended.stdout)
    if not names:
        raise ServiceFault(Kind.UNAVAILABLE, "gcloud named no operation")
    return str(names[-1])


def _fault(text: str) -> ServiceFault:
    """Return the fault for gcloud's output: `ERROR: (gcloud...) RESOURCE_EXHAUSTED: message`."""
    message = " ".join((text.partition("ERROR:")[2] or text[-500:]).split())
    message = message or "gcloud failed without a message"
    if "Invalid choice" in message or "unrecognized arguments" in message:
        message = f"{message[:200]}: run `gcloud components install alpha`"
        return ServiceFault(Kind.BAD_REQUEST, message)
    if "gcloud auth login" in message:
        return ServiceFault(Kind.PERMISSION, message)
    from google.rpc import code_pb2

    name = re.search(rf"\b({'|'.join(code_pb2.Code.keys())})\b", message)
    return rest.fault_of_status(code_pb2.Code.Value(name[1]) if name else 13, message)
