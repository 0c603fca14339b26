"""Kills real training processes at chosen instants: the soak and its small test.

A trainer is a fork of this process, which has imported TensorFlow but never used it: a start then
takes two seconds instead of eight. The trainer names each instant of interest on a pipe ("step",
"save", "between-files", see `train.job.Dependencies`) and waits for an answer, so that a kill
can be placed between two files exactly, or some random milliseconds after an instant.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bigbird_ja.storage.ownership import MARK
from testkit import synthetic

PHASES = ("start-up", "compile", "input", "step", "save", "between-files")
# Seconds after an instant in which the kill comes.
_WITHIN = {"compile": 2.0}
CONFIG: dict[str, dict[str, Any]] = {
    "model": {
        "hidden_size": 32, "num_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
        "block_size": 16, "num_random_blocks": 1,
    },
    "data": {"shuffle_window": 2},
    "training": {
        "num_train_steps": 60, "global_batch_size": 4, "learning_rate": 0.002, "warmup_steps": 5,
        "dtype": "float32", "log_every_steps": 4,
    },
    "checkpoints": {
        "save_every_minutes": 0, "save_every_steps": 5, "keep_last": 2, "keep_every_steps": 0,
    },
    "tpu": {"num_cores": 1},
}  # fmt: skip
_ANSWER_SECONDS = 120.0


def write_inputs(directory: Path, seq_length: int = 64) -> tuple[Path, Path]:
    """A tiny config and a tiny data set; their paths."""
    config, data = directory / "tiny.yaml", directory / "data"
    directory.mkdir(parents=True, exist_ok=True)
    config.write_text(yaml.safe_dump(CONFIG))
    if not (data / "manifest.json").exists():
        synthetic.write(data, (40, 40, 40, 40), seq_length=seq_length)
        (data / "tokenizer.model").write_bytes(b"not read by training")
    return config, data


def import_trainer() -> None:
    """Imports what a trainer needs, without running any of it."""
    from bigbird_ja.process import prepare_tensorflow

    prepare_tensorflow(os.environ)
    import tensorflow  # noqa: F401

    from bigbird_ja.data import pipeline, verify  # noqa: F401
    from bigbird_ja.train import progress, train  # noqa: F401

    if importlib.util.find_spec("tensorflow_estimator") is not None:
        import tensorflow_estimator.python.estimator.tpu.tpu_estimator  # noqa: F401

        from bigbird_ja.train.engines import estimator  # noqa: F401


class Trainer:
    """One training process, forked.

    Args:
        arguments: of `pretrain`.
        log: file that gets both of its streams.
    """

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        marks, mark_in = os.pipe()
        go_out, go = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(marks)
            os.close(go)
            _train(arguments, log, mark_in, go_out)
        os.close(mark_in)
        os.close(go_out)
        self._marks, self._go = os.fdopen(marks, "rb", buffering=0), go
        self.status: int | None = None

    def next_mark(self) -> str | None:
        """Waits for the next instant; None once the process has ended."""
        ready, _, _ = select.select([self._marks], [], [], _ANSWER_SECONDS)
        if not ready:
            self.kill()
            raise TimeoutError("the trainer reported no phase for a long time")
        line = b""
        while not line.endswith(b"\n"):
            byte = self._marks.read(1)
            if not byte:
                self.wait()
                return None
            line += byte
        return line.decode().strip()

    @property
    def pipe(self) -> int:
        """What can be read once `next_mark` will not wait."""
        return self._marks.fileno()

    def go_on(self) -> None:
        """Lets it run to the next instant."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, b"g")

    def kill(self) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Its exit status, or minus the signal."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self._marks.close()
            os.close(self._go)
        return self.status


def _train(arguments: Sequence[str], log: Path, mark_in: int, go_out: int) -> None:
    import threading

    status = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        from bigbird_ja.cli import main
        from bigbird_ja.commands import pretrain
        from bigbird_ja.train.job import Dependencies

        lock = threading.Lock()

        def mark(phase: str) -> None:
            with lock:
                os.write(mark_in, f"{phase}\n".encode())
                if not os.read(go_out, 1):
                    os._exit(3)  # nobody watches any more

        pretrain.run = lambda args: pretrain.run_with(args, Dependencies(mark=mark))
        status = main.run_command_line(["pretrain", *arguments])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_to_end(arguments: Sequence[str], log: Path) -> int:
    """An uninterrupted run; its exit status."""
    trainer = Trainer(arguments, log)
    while trainer.next_mark() is not None:
        trainer.go_on()
    return trainer.wait()


@dataclass
class Kills:
    """How many there were, by instant, and how they went."""

    kills: dict[str, int]
    survived: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """Kills in all."""
        return sum(self.kills.values())


@dataclass
class Tally(Kills):
    """What happened over all kills of a run."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    rounds: int = 0
    most_steps_redone: int = 0
    seconds_to_resume: list[float] = field(default_factory=list)


def soak(
    arguments: Sequence[str],
    model_dirs: Sequence[str],
    expected: str,
    kills: int,
    rng: random.Random,
    log: Path,
) -> Tally:
    """Trains into one MODEL_DIR after another, killing all the while, until enough kills are in.

    Args:
        arguments: of `pretrain`, without --model_dir.
        model_dirs: fresh ones, one per round.
        expected: `digest` of the uninterrupted run.
        kills: how many, dealt to the phases in turn.
        rng: chooses instants and delays.
        log: the trainers' output.
    """
    from bigbird_ja.run.checkpoints import CheckpointStore

    tally = Tally()
    plan = [PHASES[i % len(PHASES)] for i in range(kills)]
    rng.shuffle(plan)
    for model_dir in model_dirs:
        tally.rounds += 1
        pending = 0  # kills of this round, judged when it ends
        while True:
            saved = CheckpointStore(model_dir).steps()
            trainer = Trainer([*arguments, "--model_dir", model_dir], log)
            phase = plan[-1] if plan else None
            resumed, done = _train_to_kill(trainer, phase, saved[-1] if saved else 0, rng)
            if resumed is not None:
                tally.seconds_to_resume.append(resumed)
            if trainer.wait() != -signal.SIGKILL or phase is None:
                break
            plan.pop()
            tally.kills[phase] += 1
            pending += 1
            if done is not None:
                kept = (CheckpointStore(model_dir).steps() or [0])[-1]
                tally.most_steps_redone = max(tally.most_steps_redone, done - kept)
        problem = judge(model_dir, trainer.wait(), expected)
        if problem:
            tally.failures.append(f"{model_dir}: {problem}")
            return tally
        tally.survived += pending
        if not plan:
            return tally
    return tally


def _train_to_kill(
    trainer: Trainer, phase: str | None, start: int, rng: random.Random
) -> tuple[float | None, int | None]:
    """Lets a trainer run until it has come to some instant of a phase, and kills it there.

    Args:
        phase: None: to its end.
        start: the step of its newest checkpoint.

    Returns:
        Seconds until it trained, and the step that it had done; None where it came to neither.
    """
    began, resumed, reached = time.monotonic(), None, 0
    wanted = rng.randint(1, {"step": 12, "save": 2, "between-files": 8}.get(phase or "", 1))
    while (mark := trainer.next_mark()) is not None:
        if mark == "session":
            resumed = time.monotonic() - began
        reached += mark == "step" and resumed is not None
        wanted -= mark == phase
        if mark == phase and wanted == 0:
            if phase != "between-files":
                trainer.go_on()
                time.sleep(rng.random() * _WITHIN.get(phase, 0.05))
            trainer.kill()
            break
        trainer.go_on()
    return resumed, None if resumed is None else start + max(reached - 1, 0)


def judge(model_dir: str, status: int, expected: str) -> str:
    """What is wrong with a finished run; "" if nothing is."""
    from bigbird_ja import storage
    from bigbird_ja.run import log as run_log

    if status != 0:
        return f"ended with status {status}"
    if digest(model_dir) != expected:
        return "the final weights differ from the uninterrupted run's"
    steps = [record["step"] for record in run_log.read_metrics(model_dir)]
    if steps != sorted(set(steps)):
        return f"metrics.jsonl repeats steps: {steps}"
    strange = [n for n in storage.list_files(model_dir) if not _is_expected(n)]
    if len(strange) > 3:  # one save that was cut off is set aside, three files at most
        return f"files pile up: {strange}"
    left = [] if storage.is_remote(model_dir) else os.listdir(model_dir)
    hidden = [name for name in left if name.startswith(".") and name != MARK]
    return f"temporary files are left: {hidden}" if hidden else ""


def _is_expected(name: str) -> bool:
    return name.startswith(("model.ckpt-", "events.out.")) or name in (
        "checkpoint", "config.yaml", "tokenizer.model", "metrics.jsonl", "events.jsonl",
        "heartbeat.json", "eval.jsonl", MARK,
    )  # fmt: skip


def digest(model_dir: str) -> str:
    """SHA-256 over step and files' checksums of the newest checkpoint, optimiser state and all."""
    from bigbird_ja.run.checkpoints import CheckpointStore

    store = CheckpointStore(model_dir)
    meta = store.read_meta(store.steps()[-1])
    content = {"step": meta.step, "files": {name: vars(file) for name, file in meta.files.items()}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
