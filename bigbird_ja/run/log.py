"""What others judge a run by: `heartbeat.json`, `events.jsonl`, `metrics.jsonl`, `eval.jsonl`.

Light on purpose (no TensorFlow): the supervisor on a workstation reads and appends too. On disk a
line is appended by one write. A bucket has no append: events, of which there are few, are read,
extended and swapped in guarded by their version; metrics are kept in memory and written whole when
`sync` is called (with each save, and now and then).
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from bigbird_ja import storage
from bigbird_ja.errors import StorageError

HEARTBEAT, EVENTS, METRICS, EVAL = "heartbeat.json", "events.jsonl", "metrics.jsonl", "eval.jsonl"
_SWAP_ATTEMPTS = 50

Record = dict[str, Any]


def append_event(
    model_dir: str, event: str, clock: Callable[[], float] = time.time, **fields: Any
) -> Record:
    """Adds one line to `events.jsonl`; safe with several writers, on disk and on a bucket."""
    record = {
        "event": event,
        "time": round(clock(), 3),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        **fields,
    }
    append_line(storage.join(model_dir, EVENTS), record)
    return record


def append_eval(model_dir: str, record: Record) -> None:
    """Adds one evaluation to `eval.jsonl`: `step`, `time` and what was measured."""
    append_line(storage.join(model_dir, EVAL), record)


def append_line(path: str, record: Record) -> None:
    """Adds one line of JSON to a file that several processes may write."""
    line = encode(record)
    if storage.is_remote(path):
        _append_remote(path, line)
    else:
        _append_local(path, line)


def read_lines(path: str) -> list[Record]:
    """The records of a JSON-lines file; [] where there is none.

    A line that is not JSON is left out: a killed writer may have left half of one.
    """
    try:
        data = storage.read_bytes(path)
    except FileNotFoundError:
        return []
    return list(decode(data))


def read_events(model_dir: str) -> list[Record]:
    """All events of a run, oldest first."""
    return read_lines(storage.join(model_dir, EVENTS))


def read_metrics(model_dir: str) -> list[Record]:
    """All logged steps of a run."""
    return read_lines(storage.join(model_dir, METRICS))


def read_heartbeat(model_dir: str) -> Record | None:
    """The last heartbeat, or None before the first."""
    try:
        return dict(json.loads(storage.read_bytes(storage.join(model_dir, HEARTBEAT))))
    except FileNotFoundError:
        return None


def encode(record: Record) -> bytes:
    """One line; numbers that JSON cannot hold (NaN, infinities) become null."""
    return (json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n").encode()


def decode(data: bytes) -> Iterable[Record]:
    """The records in `data`, without lines that are not JSON objects."""
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


class MetricsLog:
    """`metrics.jsonl` (or another file of steps with one writer): one line per step, none twice.

    Args:
        path: the file.
        last_step: the step that training continues from; later lines are of work that was lost.
    """

    def __init__(self, path: str, last_step: int) -> None:
        self._path = path
        self._lock = threading.Lock()
        before = read_lines(path)
        kept = {r["step"]: r for r in before if isinstance(r.get("step"), int)}
        self._lines = [encode(kept[step]) for step in sorted(kept) if step <= last_step]
        self.last = kept[max(s for s in kept if s <= last_step)] if self._lines else None
        self._unsynced = False
        if len(self._lines) != len(before) or not _ends_with_newline(path):
            storage.write_bytes(path, b"".join(self._lines))

    def append(self, record: Record) -> None:
        """Adds a step; later than all before."""
        if self.last is not None and record["step"] <= self.last["step"]:
            return
        self.last = record
        if storage.is_remote(self._path):
            with self._lock:
                self._lines.append(encode(record))
                self._unsynced = True
        else:
            _append_local(self._path, encode(record))

    def sync(self) -> None:
        """Brings a bucket's copy up to date; nothing to do on disk."""
        with self._lock:
            if not self._unsynced:
                return
            data, self._unsynced = b"".join(self._lines), False
        try:
            storage.write_bytes(self._path, data)
        except BaseException:
            self._unsynced = True
            raise


class Heartbeat:
    """`heartbeat.json`: written at each change of state and every `interval` seconds.

    Args:
        model_dir: where.
        run: the run's name.
        clock: UNIX seconds.
    """

    def __init__(
        self, model_dir: str, run: str, clock: Callable[[], float] = time.time, **fields: Any
    ) -> None:
        self._path = storage.join(model_dir, HEARTBEAT)
        self._clock = clock
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._fields: Record = {
            "run": run,
            "global_step": 0,
            "time": 0.0,
            "state": "starting",
            "reason": None,
            "tokens_per_second": None,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **fields,
        }

    def update(self, **fields: Any) -> None:
        """Changes what the next write will say."""
        with self._lock:
            self._fields.update(fields)

    def write(self, **fields: Any) -> None:
        """Writes now."""
        with self._writing:
            with self._lock:
                self._fields.update(fields, time=round(self._clock(), 3))
                data = encode(self._fields)
            storage.write_bytes(self._path, data)


def _append_local(path: str, line: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # a killed writer left half a line
        while line:
            line = line[os.write(descriptor, line) :]
    except OSError as error:
        error.filename = error.filename or path
        raise
    finally:
        os.close(descriptor)


def _append_remote(path: str, line: bytes) -> None:
    for _ in range(_SWAP_ATTEMPTS):
        try:
            data, token = storage.read_with_token(path)
        except FileNotFoundError:
            if storage.create_exclusive(path, line):
                return
            continue
        if data.endswith(line):  # stored, but the answer was lost
            return
        if storage.replace_if(path, data + line, token) is not None:
            return
    raise StorageError(f"{path}: other writers kept changing it: run the same command again")


def _ends_with_newline(path: str) -> bool:
    if storage.is_remote(path):
        return True
    try:
        data = storage.read_bytes(path)
    except FileNotFoundError:
        return True
    return not data or data.endswith(b"\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        return _finite(value.item() if getattr(value, "ndim", 0) == 0 else value.tolist())
    return value
