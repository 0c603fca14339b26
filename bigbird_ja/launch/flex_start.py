"""Flex-start: a queued TPU that the cloud itself deletes at the end of its run time.

The public API and its client libraries have no field for it (2026), so `gcloud alpha` asks; all
else goes through the API as for any queued resource. Google's page "Request Cloud TPUs using
Flex-start" and `gcloud alpha compute tpus queued-resources create --help` (2026) describe it.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping

from bigbird_ja import accelerators, launch
from bigbird_ja.launch import LaunchedRun, rest
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.process.errors import BadInput

MAX_HOURS = 168.0
CALL_SECONDS = 120.0


def check(max_hours: float | None, needs_gcloud: bool) -> None:
    """Check what a flex-start run needs.

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


def arguments(
    run: LaunchedRun, zone: str, attempt: int, files: Mapping[str, str], limit: float
) -> list[str]:
    """Compose the command that asks for a TPU.

    Args:
        run: the record of the run.
        zone: of the request.
        attempt: number of the creation within its run.
        files: for each key of the machine's metadata, the file that holds its value.
        limit: seconds that the TPU may live.
    """
    machine = accelerators.find(run.accelerator_type)
    labels = {**launch.labels_of(run, attempt), "managed-by": "bigbird-ja"}
    flags = {
        "node-id": run.name,
        "project": run.project,
        "zone": zone,
        "accelerator-type": accelerators.launch_type(machine),
        "runtime-version": run.runtime_version,
        "provisioning-model": "flex-start",
        "max-run-duration": f"{int(limit)}s",
        "labels": ",".join(f"{key}={value}" for key, value in labels.items()),
        "metadata-from-file": ",".join(f"{key}={path}" for key, path in files.items()),
        **({"network": run.network} if run.network else {}),
        **({"subnetwork": run.subnetwork} if run.subnetwork else {}),
    }
    if run.service_account:
        flags |= {"service-account": run.service_account, "scopes": rest.SCOPE}
    command = ["gcloud", "alpha", "compute", "tpus", "queued-resources", "create", run.name]
    command += [f"--{name}={value}" for name, value in flags.items()]
    command += [] if run.external_ip else ["--internal-ips"]
    return [*command, "--async", "--quiet", "--format=value(name)"]


def create(
    run: LaunchedRun, zone: str, attempt: int, metadata: Mapping[str, str], limit: float
) -> str:
    """Ask for a TPU; return the operation's name.

    Raises:
        ServiceFault: refused, no answer in time, or no name of an operation: then the next listing
            shows what has become of it.
    """
    with tempfile.TemporaryDirectory(prefix="bigbird-ja-") as folder:
        files = {key: os.path.join(folder, key) for key in metadata}
        for key, path in files.items():
            with open(path, "w", encoding="utf-8") as file:
                file.write(metadata[key])
        command = arguments(run, zone, attempt, files, limit)
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
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
    """Translate what gcloud prints: `ERROR: (gcloud...) RESOURCE_EXHAUSTED: message`."""
    message = " ".join(text.partition("ERROR:")[2].split()) or "gcloud failed without a message"
    if "Invalid choice" in message or "unrecognized arguments" in message:
        return ServiceFault(
            Kind.BAD_REQUEST, f"{message[:200]}: run `gcloud components install alpha`"
        )
    from google.rpc import code_pb2

    word = re.search("|".join(code_pb2.Code.keys()), message)
    return rest.fault_of_status(code_pb2.Code.Value(word[0]) if word else 13, message)
