"""Functions that the tests of `launch` share. A folder takes the place of the bucket."""

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession

from bigbird_ja import cli
from bigbird_ja.accelerators.prices import load_prices
from bigbird_ja.launch import compute, tpu_api
from bigbird_ja.launch.files import RunFiles
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Rest
from bigbird_ja.launch.state import RunState
from bigbird_ja.launch.supervise import supervise
from testkit import emulated, synthetic
from testkit.fakes import trainer
from testkit.fakes.compute import FakeCompute
from testkit.simulated_cloud import TrainerModel

ZONE, ZONES = "us-central1-b", "us-central1-a,us-central1-b"
TABLE = load_prices()
EIGHT_CORES = ("--set=training.global_batch_size=8", "--set=tpu.num_cores=8")
NODE = LaunchedRun(
    "gs://b", "run-1", "id-1", "p", accelerator_type="v3-8", runtime_version="tpu-vm-tf-2.15.0-se"
)
QUEUED = replace(NODE, queued=True)
# With this trainer, a run takes ten hours of virtual time.
TRAINER = TrainerModel(target_step=36_000, steps_per_second=1.0)
RECORD = LaunchedRun(
    bucket="gs://b",
    name="run",
    run_id="id-1",
    project="p",
    target_step=36_000,
    zones=("zone-a", "zone-b", "zone-c"),
    usd_per_hour=2.4,
)


def supervised(cloud, record=RECORD, **io):
    """Supervise a simulated run in virtual time until it ends, and return the run's last state."""
    return supervise(record, cloud.io(**io))


def lifetimes(*hours):
    """Return a function that the simulated cloud calls to get the lifetime of a new machine.

    The n-th machine lives for the n-th of `hours`. All later machines live forever.
    """
    left = list(hours)
    return lambda ready: left.pop(0) * 3600 if left else math.inf


def write_manifest(directory, masking="dynamic", **more):
    """Write a small data set for `launch`. The fake trainer does not read its records."""
    synthetic.write(
        Path(directory),
        (3, 3, 3, 3),
        seq_length=512,
        max_predictions_per_seq=77,
        masking=masking,
        mask_unit="subword",
        vocab_size=2000,
        **more,
    )
    return directory


def client(fake):
    """Return the package's client, connected to a fake service."""
    module = compute if isinstance(fake, FakeCompute) else tpu_api
    return module.Client("p", rest(fake.api))


def rest(base, call_seconds=5.0, retry_seconds=1.0):
    """Return the package's REST client, without credentials and with short timeouts."""
    client = Rest(base, AuthorizedSession(AnonymousCredentials()), retry_seconds)
    client.call_seconds = call_seconds
    return client


def command(root, *more, steps=100):
    """Return arguments with which `launch` trains the preset tiny-cpu in folders below `root`."""
    limit = [] if any(flag.startswith("--max_") for flag in more) else ["--max_hours=1000"]
    return [
        "launch",
        "--name=run-1",
        "--project=p",
        "--config=tiny-cpu",
        *EIGHT_CORES,
        "--poll_seconds=0.1",
        "--accelerator_type=v3-8",
        *limit,
        f"--zones={ZONES}",
        f"--bucket={root}/bucket",
        f"--num_train_steps={steps}",
        f"--data_dir={write_manifest(f'{root}/data')}",
        f"--vm_python={trainer.python(root)}",
        *more,
    ]


def run(arguments, *fakes):
    """Run a command in this process with fake services.

    Returns:
        The exit status and the results of --json.
    """
    output = io.TextIOWrapper(io.BytesIO())
    with emulated.serving(*fakes), contextlib.redirect_stdout(output):
        status = cli.run_command_line([*arguments, "--json"])
    return status, json.loads(output.buffer.getvalue())


def start(root, fake, *more, steps=400, **terms):
    """Start `launch` in a new process, which uses a fake service."""
    words = [json.dumps(emulated.describe(fake, **terms)), *command(root, *more, steps=steps)]
    return subprocess.Popen(
        [sys.executable, "-m", "testkit.emulated", *words, "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def read(root, path, key):
    """Return a value in a JSON file of the run, or None if the file does not exist yet."""
    try:
        with open(f"{root}/bucket/run-1/{path}", encoding="utf-8") as file:
            return json.load(file).get(key)
    except (FileNotFoundError, ValueError):
        return None


def wait_for_step(root, step):
    """Wait until training has reached a step."""
    wait_until(lambda: (read(root, "model/heartbeat.json", "global_step") or -1) >= step)


def events_of(root):
    """Return the run's events."""
    lines = Path(root, "bucket/run-1/model/events.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def vm_of(name, run_id="", kind="v3-8", **more):
    """Return the record of a run with a machine of the accelerator type `kind`."""
    return LaunchedRun("gs://b", name, run_id, "p", accelerator_type=kind, **more)


def make_run(bucket, name, **state):
    """Store the record and the state of a run on a bucket, and return the record."""
    run = LaunchedRun(bucket, name, f"id-{name}", target_step=1000, usd_per_hour=2.4)
    files = RunFiles(run)
    files.prepare()
    files.save_run()
    files.save_state(RunState(**state))  # type: ignore[arg-type]
    return run


def wait_until(condition, seconds=60.0):
    """Wait until a condition is true.

    Raises:
        TimeoutError: The condition is still false after the given seconds.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.02)


def finished(service, operation):
    """Wait until an operation is done, and return it."""
    wait_until(lambda: service.get_operation(operation).done, 10)
    return service.get_operation(operation)


def write_tool(path, body):
    """Write an executable bash script with this body, and create its folder."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/bash\n{body}\n")
    os.chmod(path, 0o755)
