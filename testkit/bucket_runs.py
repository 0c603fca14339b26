"""Whole commands against a bucket that misbehaves, in one child process.

Run as `python -m testkit.bucket_runs URL BUCKET SCRATCH SCENARIO...` in the environment that
`FakeGcs.environ()` gives; prints one JSON object, scenario to outcome. TensorFlow reads its gs://
settings while it is imported, so this cannot happen in pytest's own process; and each training run
is a fork of this one, which spares the import. `test_bucket_road` judges.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from bigbird_ja import storage
from testkit import killing
from testkit.fakes.gcs_process import FakeBucket

Outcome = dict[str, Any]
STEPS, SAVE_EVERY = 12, 4
AFTER_FIRST_SAVE = ("between-files", 3)  # two files and the sidecar are there
MEDIA_DOOR = "GET storage.googleapis.com/"  # where TensorFlow reads the shards


class Stage:
    """A bucket with a data set, and commands run on it.

    Args:
        fake: the bucket's other door.
        base: gs:// path.
        scratch: local directory.
    """

    def __init__(self, fake: FakeBucket, base: str, scratch: Path) -> None:
        self.fake, self.base, self.scratch = fake, base, scratch
        self.config = str(scratch / "tiny.yaml")
        values = json.loads(json.dumps(killing.CONFIG))
        values["tokenize"] = {"vocab_size": 1200}
        values["make_data"] = {
            "seq_length": 64, "max_predictions_per_seq": 12, "num_shards": 4,
            "eval_fraction": 0.1,
        }  # fmt: skip
        values["training"] |= {"num_train_steps": STEPS, "log_every_steps": 2}
        values["checkpoints"] |= {"save_every_steps": SAVE_EVERY, "keep_last": 3}
        Path(self.config).write_text(yaml.safe_dump(values))
        self._runs = 0

    def command(self, *arguments: str) -> Outcome:
        """One command in a fork, to its end: `status`, its --json line, its messages."""
        log = self._log()
        pid = os.fork()
        if pid == 0:
            _run_and_leave(arguments, log)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return _outcome(status, log)

    def pretrain(
        self,
        model_dir: str,
        at: dict[tuple[str, int], Callable[[killing.Trainer], None]] | None = None,
        data: str = "data",
    ) -> Outcome:
        """One training run; `at` maps what to do at the n-th instant of a kind (from 1)."""
        log = self._log()
        arguments = [
            "--config", self.config, "--data_dir", f"{self.base}/{data}",
            "--model_dir", f"{self.base}/{model_dir}", "--json",
        ]  # fmt: skip
        trainer = killing.Trainer(arguments, log)
        seen: dict[str, int] = {}
        while (mark := trainer.next_mark()) is not None:
            seen[mark] = seen.get(mark, 0) + 1
            if action := (at or {}).get((mark, seen[mark])):
                action(trainer)
                if trainer.status is not None:
                    break
            trainer.go_on()
        result = _outcome(trainer.wait(), log)
        self.fake.clear()
        return {**result, **self.state(model_dir)}

    def state(self, model_dir: str) -> Outcome:
        """What is in a MODEL_DIR, read past all faults."""
        from bigbird_ja.run import log as run_log
        from bigbird_ja.run.checkpoints import CheckpointStore

        path = f"{self.base}/{model_dir}"
        steps = CheckpointStore(path).steps()
        logged = [record["step"] for record in run_log.read_metrics(path)]
        return {
            "saved": steps,
            "digest": killing.digest(path) if steps else "",
            "logged": logged,
            "events": [event["event"] for event in run_log.read_events(path)],
            "names": storage.list_files(path),
        }

    def _log(self) -> Path:
        self._runs += 1
        return self.scratch / f"run-{self._runs}.log"


def _run_and_leave(arguments: Sequence[str], log: Path) -> None:
    status = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        from bigbird_ja.cli import main as cli

        status = cli.run_command_line([*arguments, "--json"])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _outcome(status: int, log: Path) -> Outcome:
    text = log.read_text(errors="replace")
    lines = text.splitlines()
    results = {}
    for line in lines:
        if line.startswith('{"'):
            results = json.loads(line)
    return {
        "status": status,
        "results": results,
        "lines": [x for x in lines if x.startswith("bigbird-ja:") or "trying again" in x],
        "traceback": text[-2000:] if "Traceback" in text else "",
    }


SCENARIOS: dict[str, Callable[[Stage], Outcome]] = {}


def scenario(function: Callable[[Stage], Outcome]) -> Callable[[Stage], Outcome]:
    """Registers a scenario by its name."""
    SCENARIOS[function.__name__] = function
    return function


@scenario
def road(stage: Stage) -> Outcome:
    """sample, tokenize, make-data, everything on gs://."""
    text = str(stage.scratch / "ja.jsonl")
    sample = stage.command("sample", "--output", text, "--documents", "30", "--seed", "1")
    storage.upload(text, f"{stage.base}/ja.jsonl")
    tokenize = stage.command(
        "tokenize", "--config", stage.config, "--input", f"{stage.base}/ja.jsonl",
        "--output_prefix", f"{stage.base}/tok/ja",
    )  # fmt: skip
    return {"sample": sample, "tokenize": tokenize, "make_data": _make_data(stage, "data")}


def _make_data(stage: Stage, name: str) -> Outcome:
    return stage.command(
        "make-data", "--config", stage.config, "--input", f"{stage.base}/ja.jsonl",
        "--tokenizer", f"{stage.base}/tok/ja.model", "--output_dir", f"{stage.base}/{name}",
        "--num_workers", "1",
    )  # fmt: skip


@scenario
def reference(stage: Stage) -> Outcome:
    """An uninterrupted run; what the others must end with."""
    return stage.pretrain("reference")


@scenario
def killed_and_resumed_under_faults(stage: Stage) -> Outcome:
    """SIGKILL in the middle of a save, then on, with every tenth request failing."""
    killed = stage.pretrain("killed", {("between-files", 5): _kill})  # files of the second save
    stage.fake.fault("/o/killed|/o[?].*name=|upload", "status", p=0.1, times=-1)
    stage.fake.fault(MEDIA_DOOR, "truncate", bytes=500, times=2)
    stage.fake.fault("upload", "lost_reply", times=3, skip=2)
    stage.fake.fault("model.ckpt.*alt=media", "reset", bytes=1000, times=2)
    return {"killed": killed, "resumed": stage.pretrain("killed")}


def _kill(trainer: killing.Trainer) -> None:
    trainer.kill()


@scenario
def unreadable_checkpoint_list(stage: Stage) -> Outcome:
    """403, then 503 for ever, on what says where to resume: over a good run."""
    _copy_run(stage, "reference", "unreadable", drop_after=2 * SAVE_EVERY)
    before = stage.state("unreadable")
    outcomes = {"before": before}
    for code in (403, 503):
        stage.fake.fault("o/unreadable/checkpoint|prefix=unreadable", "status", code=code, times=-1)
        outcomes[str(code)] = stage.pretrain("unreadable")
    return {**outcomes, "after": stage.pretrain("unreadable")}


def _copy_run(stage: Stage, source: str, target: str, drop_after: int) -> None:
    """Another MODEL_DIR as it was after step `drop_after`."""
    later = [str(step) for step in range(drop_after + 1, STEPS + 1)]
    for name in storage.list_files(f"{stage.base}/{source}"):
        if not any(f"ckpt-{step}." in name for step in later):
            data = stage.fake.get(f"{stage.base}/{source}/{name}")
            if name == "checkpoint":
                kept = [x for x in data.splitlines(True) if b'-%d"' % STEPS not in x]
                data = b'model_checkpoint_path: "model.ckpt-%d"\n' % drop_after + b"".join(kept)
            stage.fake.put(f"{stage.base}/{target}/{name}", data)


@scenario
def data_unavailable_for_ever(stage: Stage) -> Outcome:
    """503 on every read of a shard: TensorFlow alone would rebuild its session for ever."""
    stage.fake.fault("googleapis.com.*tfrecord", "status", times=-1)
    return stage.pretrain("unavailable")


@scenario
def short_shard(stage: Stage) -> Outcome:
    """A complete but short reply: TensorFlow alone would train on a part of the shard."""
    stage.fake.fault(MEDIA_DOOR, "short", bytes=2000, times=-1)
    return stage.pretrain("short")


@scenario
def listed_but_gone(stage: Stage) -> Outcome:
    """A shard that the listing still shows and a read does not find."""
    stage.fake.fault(MEDIA_DOOR, "status", code=404, times=-1)
    return stage.pretrain("gone")


@scenario
def shard_replaced(stage: Stage) -> Outcome:
    """A shard replaced by another of the same length while training reads."""
    for name in storage.list_files(f"{stage.base}/data"):
        stage.fake.put(f"{stage.base}/data-2/{name}", stage.fake.get(f"{stage.base}/data/{name}"))

    def replace(_: killing.Trainer) -> None:
        names = [n for n in storage.list_files(f"{stage.base}/data-2") if n.startswith("train")]
        path = f"{stage.base}/data-2/{names[0]}"
        stage.fake.put(path, stage.fake.get(path))

    return stage.pretrain("replaced", {AFTER_FIRST_SAVE: replace}, data="data-2")


@scenario
def credentials_expire(stage: Stage) -> Outcome:
    """401 on everything once the first checkpoint is saved."""

    def expire(_: killing.Trainer) -> None:
        stage.fake.fault(".", "status", code=401, times=-1)

    return stage.pretrain("expired", {AFTER_FIRST_SAVE: expire})


@scenario
def uploads_fail_for_ever(stage: Stage) -> Outcome:
    """The bucket takes nothing once the first checkpoint is saved."""

    def fail(_: killing.Trainer) -> None:
        stage.fake.fault("upload", "status", times=-1)

    return stage.pretrain("failing", {AFTER_FIRST_SAVE: fail})


@scenario
def damaged_latest(stage: Stage) -> Outcome:
    """The latest checkpoint is damaged on the bucket, the one before has lost a file."""
    _copy_run(stage, "reference", "damaged", drop_after=STEPS)
    data = f"{stage.base}/damaged/model.ckpt-{STEPS}.data-00000-of-00001"
    content = bytearray(stage.fake.get(data))
    content[len(content) // 2] ^= 1
    stage.fake.put(data, bytes(content))
    stage.fake.remove(f"{stage.base}/damaged/model.ckpt-{STEPS - SAVE_EVERY}.index")
    return stage.pretrain("damaged")


@scenario
def two_writers(stage: Stage) -> Outcome:
    """A second trainer on the same MODEL_DIR while the first one trains."""
    second: Outcome = {}

    def start_another(_: killing.Trainer) -> None:
        log = stage.scratch / "second.log"
        arguments = [
            "--config", stage.config, "--data_dir", f"{stage.base}/data",
            "--model_dir", f"{stage.base}/two", "--json",
        ]  # fmt: skip
        second.update(_outcome(killing.run_to_end(arguments, log), log))

    first = stage.pretrain("two", {("step", 3): start_another})
    return {"first": first, "second": second}


@scenario
def make_data_under_faults(stage: Stage) -> Outcome:
    """Every kind of passing fault while shards are uploaded."""
    stage.fake.fault("data-f", "reset", times=2)
    stage.fake.fault("upload", "lost_reply", times=2, skip=3)
    stage.fake.fault("data-f|upload", "status", p=0.2, times=-1)
    result = _make_data(stage, "data-f")
    stage.fake.clear()
    return result


@scenario
def make_data_cut_off(stage: Stage) -> Outcome:
    """The bucket refuses after three uploads; then the same command again."""
    outcomes = {}
    for name, code in (("failing", 503), ("refusing", 403)):
        stage.fake.fault("upload", "status", code=code, times=-1, skip=3)
        cut = _make_data(stage, f"data-{name}")
        stage.fake.clear()
        cut["names"] = storage.list_files(f"{stage.base}/data-{name}")
        outcomes[name] = cut
        outcomes[f"{name} again"] = _make_data(stage, f"data-{name}")
    return outcomes


def main() -> None:
    """Runs the scenarios that are named, in order."""
    url, bucket, scratch, *names = sys.argv[1:]
    killing.import_trainer()
    os.environ["XDG_CACHE_HOME"] = str(Path(scratch) / "cache")  # where make-data keeps its work
    stage = Stage(FakeBucket(url), f"gs://{bucket}", Path(scratch))
    outcomes = {}
    for name in names:
        stage.fake.clear()
        outcomes[name] = SCENARIOS[name](stage)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
