"""What the tests of launching share: a run on a directory as bucket, and the fake service."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession

from bigbird_ja.cli import main
from bigbird_ja.data.manifest import Manifest, Shard, Split
from bigbird_ja.launch import compute, services
from bigbird_ja.launch.compute import ComputeEngine
from bigbird_ja.launch.rest import Rest
from bigbird_ja.launch.services import TpuNodes
from bigbird_ja.launch.startup import VM_VARIABLE
from testkit import prepared, synthetic
from testkit.fakes import trainer
from testkit.fakes.compute import FakeCompute
from testkit.fakes.tpu import FakeTpu

Fake = FakeTpu | FakeCompute

ZONES = "us-central1-a,us-central1-b"


def write_manifest(directory: str, masking: str = "dynamic") -> str:
    """A data set's manifest; the fake trainer reads no shards."""
    os.makedirs(directory, exist_ok=True)
    counts = Split(documents=10, tokens=5000, sequences=12, used_positions=6000, predictions=900)
    synthetic.save(
        Manifest(
            seq_length=512,
            max_predictions_per_seq=77,
            masked_lm_prob=0.15,
            masking=masking,
            mask_unit="subword",
            word_boundaries="script",
            nsp=False,
            vocab_size=2000,
            special_ids={"pad": 0, "cls": 4, "sep": 5, "mask": 6},
            dupe_factor=1,
            input_mask=False,
            tokenizer_sha256="",
            eval_fraction=0.1,
            num_shards=4,
            seed=0,
            corpus="",
            num_readers=4,
            train=counts,
            eval=counts,
            train_shards=tuple(
                Shard(f"train-{n:05}-of-00004.tfrecord", 3, 6_000, "0" * 64) for n in range(4)
            ),
            eval_shards=(),
        ),
        directory,
    )
    return directory


def nodes(fake: FakeTpu) -> TpuNodes:
    """The Cloud TPU API at the fake."""
    return TpuNodes("p", rest(f"{fake.url}/v2"))


def engine(fake: FakeCompute) -> ComputeEngine:
    """Compute Engine at the fake."""
    return ComputeEngine("p", rest(f"{fake.url}/compute/v1/projects/p"))


def rest(base: str, call_seconds: float = 5.0, retry_seconds: float = 1.0) -> Rest:
    """Our client without credentials."""
    return Rest(base, AuthorizedSession(AnonymousCredentials()), call_seconds, retry_seconds)


def command(root: str, fake: Fake, *more: str, steps: int = 100, name: str = "run-1") -> list[str]:
    """`launch` with everything that a CPU and a directory need."""
    return [
        "launch", f"--name={name}", "--project=p", f"--zones={ZONES}", f"--bucket={root}/bucket",
        f"--data_dir={write_manifest(f'{root}/data')}", "--config=tiny-cpu",
        f"--num_train_steps={steps}", "--poll_seconds=0.1", f"--vm_python={trainer.python(root)}",
        "--json",
        *more,
    ]  # fmt: skip


def environment(fake: Fake, **vm: object) -> dict[str, str]:
    """What a command must find in its environment so that this machine stands for the rented one.

    Args:
        vm: fields of `startup.Vm`.
    """
    is_compute = isinstance(fake, FakeCompute)
    values = {
        "device": "cpu", "service_manager": "none", "installs": False,
        "api": f"{fake.url}/compute/v1" if is_compute else f"{fake.url}/v2",
        "metadata": fake.url, "poll_seconds": 1.0, **vm,
    }  # fmt: skip
    variable = compute.EMULATOR_VARIABLE if is_compute else services.EMULATOR_VARIABLE
    return {variable: fake.address, VM_VARIABLE: json.dumps(values)}


def run(arguments: list[str], fake: Fake, **vm: object) -> tuple[int, dict[str, Any]]:
    """Runs a command in this process; its exit status and `--json` results."""
    return run_with(arguments, environment(fake, **vm))


def run_with(arguments: list[str], variables: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """The same, with any variables in its environment."""
    output = io.StringIO()
    with (
        mock.patch.dict(os.environ, variables),
        contextlib.redirect_stdout(output),
    ):
        status = main.run_command_line(arguments)
    return status, json.loads(output.getvalue())


def start(
    root: str, fake: Fake, *more: str, steps: int = 400, **vm: object
) -> subprocess.Popen[bytes]:
    """`launch` as a process of its own."""
    # nohup ignores SIGHUP, and so would its children.
    reset = prepared.dispositions((signal.SIGHUP,))
    arguments = command(root, fake, *more, steps=steps)
    return subprocess.Popen(
        [*prepared.python(reset), "-m", "bigbird_ja", *arguments],
        env={**os.environ, **environment(fake, **vm)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def step_of(root: str, name: str = "run-1") -> int:
    """The global step on the bucket."""
    try:
        with open(f"{root}/bucket/{name}/model/heartbeat.json", encoding="utf-8") as file:
            return int(json.load(file)["global_step"])
    except (FileNotFoundError, ValueError):
        return -1


def events_of(root: str, name: str = "run-1") -> list[dict[str, Any]]:
    """The run's story."""
    with open(f"{root}/bucket/{name}/model/events.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def in_background(work: Callable[[], None]) -> threading.Thread:
    """Runs something beside the command."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits for something that other processes do.

    Raises:
        TimeoutError: it did not happen.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.02)
