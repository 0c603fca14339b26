"""Files of a run on the bucket, through which trainer, supervisor and VM communicate.

BUCKET/NAME/model/       written by `pretrain`; `heartbeat.json` contains its progress;
                         `events.jsonl` is the log of trainer and supervisor
BUCKET/NAME/supervisor/  written by the supervisor: launch.json (`LaunchedRun`), config.yaml,
                         state.json, lock.json and lease.json (renewals for the watcher);
                         written by the VM's watcher: exit.json, training.log
BUCKET/packages/         code for the VM, as zips that are named by their hash
BUCKET/encoders/         models from which runs start, in folders that are named by their hash
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
from bigbird_ja.storage.lease import Lease, read_holder
from bigbird_ja.storage.ownership import Owned

LOCK = "lock.json"
# A lock that was not renewed for this many seconds (six polls by default) has no running
# supervisor.
STALE_SECONDS = 180.0

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
        The record, or None if no run with this name was launched. The field `copy_of` is set if the
        run's folder was copied or moved.

    Raises:
        BadInput: The file is damaged, or its format version is not supported.
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
        BadInput: The bucket is neither on gs:// nor a local folder.
    """
    if not storage.is_remote(bucket) and not os.path.isdir(bucket):
        raise BadInput(f"`bucket` {bucket}: no such folder. The name of a bucket begins with gs://")
    paths = storage.glob(storage.join(bucket, "*", "supervisor", "launch.json"))
    depth = len(bucket.rstrip("/").split("/"))
    return sorted({path.split("/")[depth] for path in paths})


def check_known(bucket: str, name: str) -> None:
    """Check that the bucket contains a run with this name.

    Raises:
        BadInput: The bucket does not contain the run. The message lists its runs.
    """
    names = find_runs(bucket)
    if name not in names:
        raise BadInput(f"no run {name!r} on {bucket}. Runs there: {', '.join(names) or 'none'}")


def find_projects(bucket: str) -> set[str]:
    """Return the projects in which the runs on a bucket requested their last machines.

    Files that cannot be read are skipped.
    """
    projects = set()
    with contextlib.suppress(Exception):
        for name in find_runs(bucket):
            with contextlib.suppress(Exception):
                state = RunFiles(LaunchedRun(bucket, name)).load_state()
                projects |= {state.machine.project} if state and state.machine else set()
    return projects


def make_lock(
    run: LaunchedRun, log: Callable[[str], None], wall: Callable[[], float] = time.time
) -> Lease:
    """Return the lock that allows one supervisor per run. The supervisor renews it at each poll."""
    busy = (
        "another `launch` watches this run ({owner}): stop it first, or use `bigbird-ja status` to"
        " watch the run"
    )
    return Lease(run.supervisor(LOCK), busy, log, STALE_SECONDS, wall=wall)


def find_supervisor(run_dir: str, now: float) -> str | None:
    """Return the name of the supervisor that watches the run in BUCKET/NAME, or None.

    A lock that was not renewed recently is ignored. A lock that cannot be read is also ignored,
    since `down` must work even if files on the bucket are damaged.

    Args:
        run_dir: BUCKET/NAME.
        now: UNIX seconds.
    """
    try:
        holder = read_holder(storage.join(run_dir, "supervisor", LOCK))
    except Exception:
        # `run_dir` comes from a machine's metadata and may be any text, so any error may occur.
        return None
    if holder is None or abs(now - holder.renewed) > STALE_SECONDS:
        return None
    return holder.name


class RunFiles:
    """Files of a run on a bucket, or in a local directory.

    Methods raise the errors of access to the bucket, and BadInput for a damaged file.

    Args:
        run: record of the run; only its bucket and name are used.
    """

    def __init__(self, run: LaunchedRun) -> None:
        self._run = run
        # Token of the stored state for `storage.replace_if`, or None if it is unknown.
        self._version: str | None = None

    def prepare(self) -> None:
        """Create the run's folders on a disk, and register the event log as a file of the run."""
        storage.make_directory(storage.join(self._run.run_dir, "supervisor"))
        storage.make_directory(self._run.model_dir)
        Owned.create(self._run.model_dir, "run").note({run_log.EVENTS: None})

    def save_run(self) -> None:
        """Write the record of the run to launch.json."""
        values = {**dataclasses.asdict(self._run), "format_version": decode.FORMAT_VERSION}
        text = json.dumps(values, ensure_ascii=False, indent=1)
        storage.write_text(self._run.supervisor("launch.json"), text)

    def read_heartbeat(self) -> TrainerBeat | None:
        """Read the trainer's heartbeat, or return None if there is none."""
        values = run_log.read_heartbeat(self._run.model_dir)
        if values is None:
            return None
        known = {key: value for key, value in values.items() if value is not None}
        return decode.convert(known, TrainerBeat, self._run.model_dir)

    def read_exit_report(self) -> ExitReport | None:
        """Read the exit report of the machine's watcher, or return None if there is none.

        If the report contains no reason, the reason is derived from the exit status.
        """
        try:
            report = decode.read_json(self._run.supervisor("exit.json"), ExitReport, _ADVICE)
        except FileNotFoundError:
            return None
        return replace(report, reason=report.reason or _STATUS_REASONS.get(report.status, "bug"))

    def read_log(self, name: str = "training.log") -> str:
        """Read the end of the trainer's log in the last copy that the machine's watcher wrote."""
        try:
            text = _read_end(self._run.supervisor(name), LOG_BYTES)
        except FileNotFoundError:
            return ""
        # Output of pip and curl may contain addresses with passwords.
        return redact(text.decode("utf-8", "replace"))

    def read_log_tail(self) -> str:
        """Read the last lines of the trainer's log on one host.

        This is the host that wrote the exit report, or the first host if there is no exit report.
        """
        report = self.read_exit_report()
        host = report.host if report else 0
        text = self.read_log(f"training-{host}.log" if host else "training.log")
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
        """Write the supervisor's state, unless another process has changed the file.

        Returns:
            Whether the state was written. After a call that returned False, the next call
            overwrites the file.
        """
        path = self._run.supervisor("state.json")
        values = {**msgspec.to_builtins(state), "format_version": decode.FORMAT_VERSION}
        data = json.dumps(values, ensure_ascii=False).encode()
        # Forget the token before the request: if the request fails, the token is unknown.
        version, self._version = self._version, None
        new = storage.replace_if(path, data, _read_version(path) if version is None else version)
        # If the file was deleted meanwhile, it is created again.
        if new is None and not storage.exists(path):
            new = storage.replace_if(path, data, "")
        self._version = new
        return self._version is not None

    def find_checkpoint_step(self) -> int:
        """Return the step of the newest checkpoint, or -1 if there is none."""
        return max(CheckpointStore(self._run.model_dir).list_steps(), default=-1)

    def renew_machine(self, attempt: int, wall: float) -> None:
        """Renew a machine's lease by writing a new time to lease.json.

        The machine's watcher counts any changed value as a renewal.
        """
        text = json.dumps({"attempt": attempt, "renewed": wall})
        storage.write_text(self._run.supervisor("lease.json"), text)

    def append_event(self, event: Mapping[str, Any]) -> None:
        """Append an event to events.jsonl, the log that trainer and supervisor share."""
        run_log.append_line(storage.join(self._run.model_dir, run_log.EVENTS), dict(event))


def _read_end(path: str, size: int) -> bytes:
    """Read the last `size` bytes of a file. On a bucket, this is one ranged request."""
    with storage.open_read(path) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - size))
        return file.read(size)


def _read_version(path: str) -> str:
    """Return the token of a file's version, for `storage.replace_if`, or "" if there is no file."""
    try:
        return storage.stat(path).token
    except FileNotFoundError:
        return ""


def _read_if_there(path: str, kind: type[T]) -> T | None:
    """Read one of the supervisor's files, or return None if it does not exist.

    Raises:
        BadInput: The file is damaged, or its format version is not supported.
    """
    try:
        return decode.decode_versioned(storage.read_bytes(path), kind, path, _ADVICE)
    except FileNotFoundError:
        return None
