"""The files of a run on the bucket, by which trainer, supervisor and VM communicate.

BUCKET/NAME/model/       written by `pretrain`: `heartbeat.json` is its pulse; `events.jsonl`
                         is the log of the run, of trainer and supervisor
BUCKET/NAME/supervisor/  launch.json (`LaunchedRun`), config.yaml, state.json, lock.json and
                         lease.json (the machine may live on): the supervisor's;
                         exit.json, training.log: the watcher's, from the TPU VM
BUCKET/packages/         code for the VM, a zip by its hash
BUCKET/encoders/         models that runs start from, each in a folder by the hash of its content
"""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from bigbird_ja import storage
from bigbird_ja.errors import STATUS_OF_REASON, BadInput
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.machine.watcher import LOG_BYTES
from bigbird_ja.launch.state import ExitReport, RunState, TrainerBeat
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.process.redact import redact
from bigbird_ja.storage import decode
from bigbird_ja.storage.lease import Lease, holder_of
from bigbird_ja.storage.ownership import Owned

LOCK = "lock.json"
STALE_SECONDS = 180.0  # six polls of the supervisor without a renewal

_STATUS_REASONS = {
    **{status: reason for reason, status in STATUS_OF_REASON.items()},
    137: "killed",
    143: "interrupted",
}
_ADVICE = "restore it from a copy, or launch under another `name`"

T = TypeVar("T")


def read_run(bucket: str, name: str) -> LaunchedRun | None:
    """Read the record of a run.

    Returns:
        The record, with `copy_of` set for a copied or moved folder. None if no run of that name was
        launched.

    Raises:
        BadInput: The file is damaged, or of another version.
    """
    place = LaunchedRun(bucket, name)
    path = place.supervisor("launch.json")
    run = _read_if_there(path, LaunchedRun)
    if run is None:
        return None
    origin = run.run_dir if run.run_dir != place.run_dir else ""
    return replace(run, bucket=bucket, name=name, copy_of=origin)


def find_runs(bucket: str) -> list[str]:
    """List the names of the runs on a bucket.

    Raises:
        BadInput: Neither gs:// nor a folder of this machine.
    """
    if not storage.is_remote(bucket) and not os.path.isdir(bucket):
        raise BadInput(
            f"`bucket` {bucket}: no such folder, and the name of a bucket begins with gs://"
        )
    paths = storage.glob(storage.join(bucket, "*", "supervisor", "launch.json"))
    depth = len(bucket.rstrip("/").split("/"))
    return sorted({path.split("/")[depth] for path in paths})


def check_known(bucket: str, name: str) -> None:
    """Check that the bucket has a run of that name.

    Raises:
        BadInput: It has none; the message lists the runs.
    """
    names = find_runs(bucket)
    if name not in names:
        raise BadInput(f"no run {name!r} on {bucket}: it contains {', '.join(names) or 'none'}")


def projects_of(bucket: str) -> set[str]:
    """Return the projects in which runs on a bucket have requested their last machines.

    A bucket or state that can't be read is left out.
    """
    projects = set()
    with contextlib.suppress(Exception):
        for name in find_runs(bucket):
            with contextlib.suppress(Exception):
                state = RunFiles(LaunchedRun(bucket, name)).load_state()
                projects |= {state.machine.project} if state and state.machine else set()
    return projects


def supervisor_lease(
    run: LaunchedRun, log: Callable[[str], None], wall: Callable[[], float] = time.time
) -> Lease:
    """Return the lock that only one supervisor of a run owns.

    The supervisor renews it at each poll.
    """
    busy = (
        "another `launch` watches this run ({owner}): stop it first, or use `bigbird-ja status` to"
        " look on"
    )
    return Lease(run.supervisor(LOCK), busy, log, STALE_SECONDS, wall=wall)


def watched_by(run_dir: str, now: float) -> str | None:
    """Return the name of the running supervisor of the run in BUCKET/NAME, or None.

    A lock that can't be read, or whose time is not the present, proves nothing: `down` must work
    whatever is on the bucket.

    Args:
        run_dir: BUCKET/NAME.
        now: UNIX seconds.
    """
    try:
        holder = holder_of(storage.join(run_dir, "supervisor", LOCK))
    except Exception:
        # The path is from a machine's metadata, which may be anything.
        return None
    if holder is None or abs(now - holder.renewed) > STALE_SECONDS:
        return None
    return holder.name


class RunFiles:
    """Files of supervisor, trainer and machine on a bucket, or in a local directory.

    Errors of the bucket pass through. Reading a damaged file raises BadInput.

    Args:
        run: record of the run; only its bucket and name are used.
    """

    def __init__(self, run: LaunchedRun) -> None:
        self._run = run
        self._version: str | None = None  # version of the stored state, None if unknown

    def prepare(self) -> None:
        """Create the folders on a disk."""
        storage.make_directory(storage.join(self._run.run_dir, "supervisor"))
        storage.make_directory(self._run.model_dir)
        Owned.create(self._run.model_dir, "run").note({run_log.EVENTS: None})

    def save_run(self) -> None:
        """Write launch.json."""
        values = {**dataclasses.asdict(self._run), "format_version": decode.FORMAT_VERSION}
        text = json.dumps(values, ensure_ascii=False, indent=1)
        storage.write_text(self._run.supervisor("launch.json"), text)

    def heartbeat(self) -> TrainerBeat | None:
        """Read the trainer's heartbeat."""
        values = run_log.read_heartbeat(self._run.model_dir)
        if values is None:
            return None
        known = {key: value for key, value in values.items() if value is not None}
        return decode.convert(known, TrainerBeat, self._run.model_dir)

    def exit_report(self) -> ExitReport | None:
        """Read the report on the end of training.

        A bare exit status gets its exit reason.
        """
        try:
            report = decode.read_json(self._run.supervisor("exit.json"), ExitReport, _ADVICE)
        except FileNotFoundError:
            return None
        return replace(report, reason=report.reason or _STATUS_REASONS.get(report.status, "bug"))

    def log(self, name: str = "training.log") -> str:
        """Read the end of the trainer's log, as the machine's watcher copied it last.

        Whoever writes to the bucket may have made it longer than the watcher does.
        """
        try:
            text = _read_end(self._run.supervisor(name), LOG_BYTES)
        except FileNotFoundError:
            return ""
        # The output of pip and curl may show addresses with passwords.
        return redact(text.decode("utf-8", "replace"))

    def log_tail(self) -> str:
        """Read the end of the log of the host that reported the end, or of the first host."""
        report = self.exit_report()
        host = report.host if report else 0
        text = self.log(f"training-{host}.log" if host else "training.log")
        return "\n".join(text.splitlines()[-20:])

    def load_state(self) -> RunState | None:
        """Read the supervisor's state, or return None if there is none."""
        path = self._run.supervisor("state.json")
        try:
            data, self._version = storage.read_with_token(path)
        except FileNotFoundError:
            return None
        return decode.decode_versioned(data, RunState, path, _ADVICE)

    def save_state(self, state: RunState) -> bool:
        """Write the supervisor's state, if it's as this process has read or written it last.

        Returns:
            False if another process has written it since: then nothing is written, and the next
            call writes it in any case.
        """
        path = self._run.supervisor("state.json")
        values = {**msgspec.to_builtins(state), "format_version": decode.FORMAT_VERSION}
        data = json.dumps(values, ensure_ascii=False).encode()
        # The version is unknown if the bucket fails.
        version, self._version = self._version, None
        new = storage.replace_if(path, data, _version(path) if version is None else version)
        # The file was deleted since it was read.
        if new is None and not storage.exists(path):
            new = storage.replace_if(path, data, "")
        self._version = new
        return self._version is not None

    def checkpoint_step(self) -> int:
        """Return the step of the newest checkpoint, or -1 if there is none."""
        return max(CheckpointStore(self._run.model_dir).steps(), default=-1)

    def renew_machine(self, attempt: int, wall: float) -> None:
        """Renew the lease of a machine.

        The machine's watcher accepts every new value as a renewal.
        """
        text = json.dumps({"attempt": attempt, "renewed": wall})
        storage.write_text(self._run.supervisor("lease.json"), text)

    def append_event(self, event: Mapping[str, Any]) -> None:
        """Append a line to the log that trainer and supervisor share."""
        run_log.append_line(storage.join(self._run.model_dir, run_log.EVENTS), dict(event))


def _read_end(path: str, size: int) -> bytes:
    """Read the last bytes of a file, by one ranged request on a bucket."""
    with storage.open_read(path) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - size))
        return file.read(size)


def _version(path: str) -> str:
    """Return the version of a file for `storage.replace_if`."""
    try:
        return storage.stat(path).token
    except FileNotFoundError:
        return ""


def _read_if_there(path: str, kind: type[T]) -> T | None:
    """Read one of the supervisor's files, or return None if there is none.

    Raises:
        BadInput: The file is damaged, or of another version.
    """
    try:
        return decode.decode_versioned(storage.read_bytes(path), kind, path, _ADVICE)
    except FileNotFoundError:
        return None
