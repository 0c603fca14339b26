"""One run on the bucket: its record, and the files by which trainer, supervisor and VM communicate.

BUCKET/NAME/model/       what `pretrain` writes: `heartbeat.json` is its pulse; `events.jsonl`
                         is the log of the run, of trainer and supervisor
BUCKET/NAME/supervisor/  launch.json (`Run`), config.yaml, state.json, lock.json, lease.json (the
                         machine may live on): the supervisor's;
                         exit.json, training.log: the watcher's, from the TPU VM
BUCKET/packages/HASH/    wheels by content
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from bigbird_ja import storage
from bigbird_ja.launch.run_state import ExitReport, Heartbeat, RunState, Settings
from bigbird_ja.launch.services import TpuSpec
from bigbird_ja.process.errors import STATUS_OF_REASON, BadInput
from bigbird_ja.process.redaction import redact
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore
from bigbird_ja.storage import decode
from bigbird_ja.storage.lease import Lease, holder_of
from bigbird_ja.storage.ownership import Owned

LOCK = "lock.json"
STALE_SECONDS = 180.0  # six polls of the supervisor without a sign of life

_STATUS_REASONS = {
    **{status: reason for reason, status in STATUS_OF_REASON.items()},
    137: "killed",
    143: "interrupted",
}
_ADVICE = "not as `launch` wrote it: restore it from a copy, or launch under another --name"

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """A run: where it lies, what is rented for it, and what the machine installs and runs.

    `prepare.py` makes it from the flags, `launch.json` keeps it, `startup.py` fills the start-up
    script from it.
    """

    bucket: str
    name: str
    project: str = ""
    data_dir: str = ""
    spec: TpuSpec = field(default_factory=lambda: TpuSpec("", "", ""))
    settings: Settings = field(default_factory=lambda: Settings((), 0, 0.0))
    engine: str = "auto"
    vm_python: str = "python3"
    wheel: str = ""  # path of the package on the bucket
    wheel_sha256: str = ""
    format_version: str = ""

    @property
    def run_dir(self) -> str:
        return storage.join(self.bucket, self.name)

    @property
    def model_dir(self) -> str:
        return storage.join(self.run_dir, "model")

    @property
    def config_path(self) -> str:
        return self.supervisor("config.yaml")

    def supervisor(self, name: str) -> str:
        """A file of the supervisor's folder."""
        return storage.join(self.run_dir, "supervisor", name)

    def save(self) -> None:
        """Writes launch.json."""
        values = {**dataclasses.asdict(self), "format_version": decode.FORMAT_VERSION}
        text = json.dumps(values, ensure_ascii=False, indent=1)
        storage.write_text(self.supervisor("launch.json"), text)


def read_run(bucket: str, name: str) -> Run | None:
    """What was launched under a name, or None.

    Raises:
        BadInput: the file is not as `launch` wrote it, or from another version of it.
    """
    run = _read_if_there(Run(bucket, name).supervisor("launch.json"), Run)
    return run and replace(run, bucket=bucket, name=name)  # the folder may have been moved


def find_runs(bucket: str) -> list[str]:
    """Names of the runs on a bucket.

    Raises:
        BadInput: a name without gs://, and no folder of this machine.
    """
    if not storage.is_remote(bucket) and not os.path.isdir(bucket):
        raise BadInput(f"--bucket {bucket}: no such folder: a bucket's name begins with gs://")
    paths = storage.glob(storage.join(bucket, "*", "supervisor", "launch.json"))
    depth = len(bucket.rstrip("/").split("/"))
    return sorted({path.split("/")[depth] for path in paths})


def supervisor_lease(
    run: Run, log: Callable[[str], None], wall: Callable[[], float] = time.time
) -> Lease:
    """The right to be the one supervisor of a run; renewed at each of its polls."""
    busy = (
        "another `launch` watches this run ({owner}): stop it first, or use `bigbird-ja status` to"
        " look on"
    )
    return Lease(run.supervisor(LOCK), busy, log, STALE_SECONDS, wall=wall)


def watched_by(run_dir: str, now: float) -> str | None:
    """The living supervisor of the run in BUCKET/NAME, by name; None where there is none.

    Args:
        now: UNIX seconds.
    """
    holder = holder_of(storage.join(run_dir, "supervisor", LOCK))
    if holder is None or holder.has_ended or now - holder.renewed > STALE_SECONDS:
        return None
    return holder.name


class BucketFiles:
    """What supervisor, trainer and machine leave on a bucket, or in a local directory.

    Errors of the bucket pass through. What reads raises BadInput where a file is not as it was
    written.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def prepare(self) -> None:
        """Makes the folders (on a disk; a bucket needs none)."""
        storage.make_directory(storage.join(self._run.run_dir, "supervisor"))
        storage.make_directory(self._run.model_dir)
        Owned.create(self._run.model_dir, "run").note({run_log.EVENTS: None})

    def heartbeat(self) -> Heartbeat | None:
        values = run_log.read_heartbeat(self._run.model_dir)
        if values is None:
            return None
        known = {key: value for key, value in values.items() if value is not None}
        return decode.convert(known, Heartbeat, self._run.model_dir)

    def exit_report(self) -> ExitReport | None:
        try:
            report = decode.read_json(self._run.supervisor("exit.json"), ExitReport, _ADVICE)
        except FileNotFoundError:
            return None
        return replace(report, reason=report.reason or _STATUS_REASONS.get(report.status, "bug"))

    def log_window(self) -> str:
        """The end of the trainer's log, as far as the machine's watcher has brought it."""
        return self._log("training.log")

    def _log(self, name: str) -> str:
        try:
            text = storage.read_bytes(self._run.supervisor(name))
        except FileNotFoundError:
            return ""
        # Whatever the machine has printed: pip and curl show addresses with passwords in them.
        return redact(text.decode("utf-8", "replace"))

    def log_tail(self) -> str:
        """The end of the log of the host whose training has ended; of the first one else."""
        report = self.exit_report()
        host = report.host if report else 0
        text = self._log(f"training-{host}.log") if host else self.log_window()
        return "\n".join(text.splitlines()[-20:])

    def load_state(self) -> RunState | None:
        return _read_if_there(self._run.supervisor("state.json"), RunState)

    def save_state(self, state: RunState) -> None:
        text = json.dumps(state.to_json(), ensure_ascii=False)
        storage.write_bytes(self._run.supervisor("state.json"), text.encode())

    def checkpoint_step(self) -> int:
        """Step of the newest checkpoint; -1 where there is none."""
        return max(CheckpointStore(self._run.model_dir).steps(), default=-1)

    def renew_machine(self, attempt: int, wall: float) -> None:
        """Shows the watcher of a machine that it is still wanted; any other value is a renewal."""
        text = json.dumps({"attempt": attempt, "renewed": wall})
        storage.write_text(self._run.supervisor("lease.json"), text)

    def append_event(self, event: Mapping[str, Any]) -> None:
        # Trainer and supervisor share one log; appending is guarded on both sides.
        run_log.append_line(storage.join(self._run.model_dir, run_log.EVENTS), dict(event))


def _read_if_there(path: str, kind: type[T]) -> T | None:
    """The object in one of the supervisor's files; None where there is none.

    Raises:
        BadInput: the file is not as it was written, or is of another version.
    """
    try:
        return decode.decode_versioned(storage.read_bytes(path), kind, path, _ADVICE)
    except FileNotFoundError:
        return None


def check_name(name: str | None) -> str:
    """A run's name is a TPU's name, a label and a folder.

    Raises:
        BadInput: no name, or characters that one of these does not take.
    """
    if not name:
        raise BadInput("--name is needed: lower-case letters, digits and dashes, such as base-1")
    if not re.fullmatch("[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise BadInput(
            f"--name {name!r}: at most 40 lower-case letters, digits and dashes, beginning with a"
            " letter, not ending with a dash"
        )
    return name


def check_word(flag: str, value: str) -> None:
    """What is stored on a bucket and sent to a machine has no free text: no query of a URL, no user
    or password, no space.

    Raises:
        BadInput: it holds other characters than names and paths do; it is not shown.
    """
    if not re.fullmatch(r"[\w./:~+@-]*", value) or ("@" in value and "/" in value):
        raise BadInput(
            f"{flag}: only letters, digits and . / : ~ + - _ belong there: no query (?), no user or"
            " password (@), no space"
        )
