"""What the tests of launching share: a run on a directory as bucket, and the fake service."""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from bigbird_ja import cli
from bigbird_ja.cloud.tpu import EMULATOR_VARIABLE
from bigbird_ja.data.manifest import UNKNOWN, Manifest, Shard, Split, save
from testkit.fakes import trainer
from testkit.fakes.tpu import FakeTpu

ZONES = "us-central1-a,us-central1-b"


def write_manifest(directory: str) -> str:
    """A data set's manifest; the fake trainer reads no shards."""
    os.makedirs(directory, exist_ok=True)
    counts = Split(documents=10, tokens=5000, sequences=12, used_positions=6000, predictions=900)
    save(
        Manifest(
            seq_length=512,
            max_predictions_per_seq=77,
            masked_lm_prob=0.15,
            masking="dynamic",
            mask_unit="subword",
            word_boundaries="script",
            nsp=False,
            vocab_size=2000,
            special_ids={"pad": 0, "cls": 4, "sep": 5, "mask": 6},
            dupe_factor=1,
            input_mask=False,
            tokenizer_sha256="",
            **UNKNOWN,
            num_readers=1,
            train=counts,
            eval=counts,
            train_shards=(Shard("train-00000-of-00001.tfrecord", 12, 24_000, "0" * 64),),
            eval_shards=(),
        ),
        directory,
    )
    return directory


def command(
    root: str, fake: FakeTpu, *more: str, steps: int = 100, name: str = "run-1"
) -> list[str]:
    """`launch` with everything that a CPU and a directory need."""
    return [
        "launch", f"--name={name}", "--project=p", f"--zones={ZONES}", f"--bucket={root}/bucket",
        f"--data_dir={write_manifest(f'{root}/data')}", "--config=tiny-cpu",
        f"--num_train_steps={steps}", "--poll_seconds=0.1", "--vm_device=cpu",
        "--vm_service_manager=none", f"--vm_python={trainer.python(root)}", "--novm_install",
        f"--vm_api={fake.url}/v2", f"--vm_metadata={fake.url}", "--vm_poll_seconds=1", "--json",
        *more,
    ]  # fmt: skip


def run(arguments: list[str], fake: FakeTpu) -> tuple[int, dict[str, Any]]:
    """Runs a command in this process; its exit status and `--json` results."""
    before = os.environ.get(EMULATOR_VARIABLE)
    os.environ[EMULATOR_VARIABLE] = fake.address
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            status = cli.run_command_line(arguments)
    finally:
        if before is None:
            del os.environ[EMULATOR_VARIABLE]
        else:
            os.environ[EMULATOR_VARIABLE] = before
    return status, json.loads(output.getvalue())


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
