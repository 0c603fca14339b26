"""Log files of a run (heartbeat.json, events.jsonl, metrics.jsonl, eval.jsonl).

This module does not import TensorFlow, since the supervisor on a workstation uses the module, too.
On a disk, each line is appended to its file. A bucket cannot append to a file, so the whole file is
written again. Events and evaluations are added by a compare-and-swap, since several processes may
write them. Metrics are kept in memory, and `sync` writes them at each save and every minute.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import msgspec

from bigbird_ja import storage
from bigbird_ja.errors import StorageError
from bigbird_ja.model_dir.log_schema import Evaluation, EventRecord, HeartbeatRecord, MetricsRecord
from bigbird_ja.process.streams import encode_line
from bigbird_ja.storage import decode

HEARTBEAT, EVENTS, METRICS, EVAL = "heartbeat.json", "events.jsonl", "metrics.jsonl", "eval.jsonl"
_SWAP_ATTEMPTS = 50

_ADVICE = "move it away, or restore it from a copy"

JsonRecord = dict[str, Any]
T = TypeVar("T")


class EventLog:
    """`events.jsonl`, to which other processes may also append.

    Args:
        model_dir: MODEL_DIR.

    Attributes:
        records: events in the file at the last `read`.
    """

    def __init__(self, model_dir: str) -> None:
        self._path = storage.join(model_dir, EVENTS)
        self._lock = threading.Lock()
        self._known: tuple[bytes, str] | None = None
        self.records: list[EventRecord] = []

    def read(self) -> None:
        """Read the file, if there is one.

        Raises:
            BadInput: A line is not an event.
        """
        with contextlib.suppress(FileNotFoundError):
            self._known = storage.read_with_token(self._path)
            lines = decode.decode_lines(self._known[0], EventRecord, self._path, _ADVICE)
            self.records = [_add_extra_keys(line, record) for line, record in lines]

    def append(self, event: str, clock: Callable[[], float] = time.time, **fields: Any) -> None:
        """Add one event, with time, host, process id and other fields."""
        line = encode_line(
            {
                "event": event,
                "time": round(clock(), 3),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                **fields,
            }
        )
        with self._lock:
            self._known = _append(self._path, line, self._known)


def append_eval(model_dir: str, record: JsonRecord) -> None:
    """Add one evaluation to `eval.jsonl` (`step`, `time` and the results)."""
    append_line(storage.join(model_dir, EVAL), record)


def drop_evaluations(model_dir: str, last_step: int) -> None:
    """Remove the evaluations of steps after `last_step` from `eval.jsonl`.

    The run continues from `last_step`, so it trains the later steps again.
    """
    path = storage.join(model_dir, EVAL)
    lines = decode.decode_lines(_read_data(path), Evaluation, path, _ADVICE)
    kept = [line + b"\n" for line, record in lines if record["step"] <= last_step]
    storage.write_bytes(path, b"".join(kept))


def append_line(path: str, record: JsonRecord) -> None:
    """Add one line of JSON to a file to which several processes may append."""
    _append(path, encode_line(record))


def read_events(model_dir: str) -> list[EventRecord]:
    """Read all events of a run, in the order of writing.

    Raises:
        BadInput: A line is not an event.
    """
    return _read(model_dir, EVENTS, EventRecord)


def find_cost_usd(events: Iterable[EventRecord]) -> float | None:
    """Return the run's cost in US dollars from the last event that contains a cost, or None."""
    counted = [usd for event in events if (usd := event.get("cost_usd")) is not None]
    return counted[-1] if counted else None


def find_origin(events: Iterable[EventRecord]) -> dict[str, Any] | None:
    """Return the record of the model from whose weights a run started, or None.

    The record is the field `init_from` of the run's last event `started`.
    """
    starts = [event for event in events if event["event"] == "started"]
    return starts[-1].get("init_from") if starts else None


def find_origin_folder(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the description of the Hugging Face folder from which a run descends.

    A run may start from the weights of another run. The result is {} if no run of this chain
    started from a Hugging Face folder.
    """
    while record and "folder" not in record:
        record = record.get("init_from")
    return dict(record["folder"]) if record else {}


def count_unfinished_starts(events: Iterable[Mapping[str, Any]]) -> int:
    """Count the starts that are not followed by an event `finished` before the next start.

    Events of failures are not used, since a killed process writes no event.
    """
    count, running = 0, False
    for event in events:
        if event.get("event") in ("started", "resumed"):
            count += running
            running = True
        elif event.get("event") == "finished":
            running = False
    return count + running


def read_metrics(model_dir: str) -> list[MetricsRecord]:
    """Read all logged steps of a run.

    Raises:
        BadInput: A line is not a logged step.
    """
    return _read(model_dir, METRICS, MetricsRecord)


def read_evaluations(model_dir: str) -> list[Evaluation]:
    """Read all evaluations on held-out records, in the order of writing.

    Raises:
        BadInput: A line of `eval.jsonl` is not an evaluation.
    """
    return _read(model_dir, EVAL, Evaluation)


def read_heartbeat(model_dir: str) -> HeartbeatRecord | None:
    """Read the last heartbeat, or return None if there is none yet.

    Raises:
        BadInput: The file is not a heartbeat.
    """
    path = storage.join(model_dir, HEARTBEAT)
    if not (data := read_heartbeat_bytes(model_dir)):
        return None
    return _add_extra_keys(data, decode.decode_json(data, HeartbeatRecord, path, _ADVICE))


def read_heartbeat_bytes(model_dir: str) -> bytes:
    """Read the bytes of `heartbeat.json`, or return b"" if the file does not exist."""
    return _read_data(storage.join(model_dir, HEARTBEAT))


def _read(model_dir: str, name: str, kind: type[T]) -> list[T]:
    path = storage.join(model_dir, name)
    lines = decode.decode_lines(_read_data(path), kind, path, _ADVICE)
    return [_add_extra_keys(line, record) for line, record in lines]


def _read_data(path: str) -> bytes:
    """Read a file, or return b"" if there is none."""
    try:
        return storage.read_bytes(path)
    except FileNotFoundError:
        return b""


def _add_extra_keys(line: bytes, checked: T) -> T:
    """Return a checked record, and add the keys in its JSON line that its type does not declare."""
    return cast(T, {**msgspec.json.decode(line), **cast(JsonRecord, checked)})


class MetricsLog:
    """Writer of `metrics.jsonl`, with one line for each logged step.

    Args:
        path: path of the file. No other process writes to it.
        last_step: step from which training continues. `drop_later` removes the lines of later
            steps, which are trained again.
    """

    def __init__(self, path: str, last_step: int) -> None:
        self._path = path
        self._lock = threading.Lock()
        data = _read_data(path)
        lines = decode.decode_lines(data, MetricsRecord, path, _ADVICE)
        kept = {r["step"]: (line, r) for line, r in lines if r["step"] <= last_step}
        self._lines = [kept[step][0] + b"\n" for step in sorted(kept)]
        self.last: Mapping[str, Any] | None = kept[max(kept)][1] if kept else None
        self._unsynced = False
        self._has_later = b"".join(self._lines) != data

    def drop_later(self) -> None:
        """Remove the lines of steps that are trained again, as training continues before them.

        Call this method before the first `append`.
        """
        if self._has_later:
            storage.write_bytes(self._path, b"".join(self._lines))

    def append(self, record: JsonRecord) -> None:
        """Add the metrics of a step, which must be later than all steps in the file."""
        if storage.is_remote(self._path):
            with self._lock:
                self._lines.append(encode_line(record))
                self._unsynced = True
        else:
            _append_local(self._path, encode_line(record))

    def sync(self) -> None:
        """Write the file to a bucket, if it has changed.

        On disk the file is always up to date.
        """
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
    """Writer of `heartbeat.json`, called at each change of state and every few seconds.

    Args:
        model_dir: MODEL_DIR.
        run: name of the run.
        clock: clock, UNIX seconds.
        fields: additional fields, or initial values that replace the defaults.
    """

    def __init__(
        self, model_dir: str, run: str, clock: Callable[[], float] = time.time, **fields: Any
    ) -> None:
        self._path = storage.join(model_dir, HEARTBEAT)
        self._clock = clock
        # Lock for writes. `update` does not acquire it, so that `update` never waits for a bucket.
        self._lock = threading.Lock()
        self._fields: JsonRecord = {
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
        """Change fields for the next write."""
        self._fields.update(fields)

    def write(self) -> None:
        """Write the file with the present time."""
        with self._lock:
            self._fields["time"] = round(self._clock(), 3)
            storage.write_bytes(self._path, encode_line(dict(self._fields)))


def _append_local(path: str, line: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # A killed writer may leave half a line.
        while line:
            line = line[os.write(descriptor, line) :]
    except OSError as error:
        error.filename = error.filename or path
        raise
    finally:
        os.close(descriptor)


def _append(
    path: str, line: bytes, known: tuple[bytes, str] | None = None
) -> tuple[bytes, str] | None:
    """Append a line to a file on disk, or to an object on a bucket by compare-and-swap.

    Args:
        path: path on disk or gs://.
        line: line to append.
        known: content and version of the object at its last access by this process, or None. If
            they are outdated, the object is read again.

    Returns:
        New content and version of the object. None on disk, or if the object was just created.
    """
    if not storage.is_remote(path):
        _append_local(path, line)
        return None
    for _ in range(_SWAP_ATTEMPTS):
        if known is None:
            try:
                known = storage.read_with_token(path)
            except FileNotFoundError:
                if storage.create_exclusive(path, line):
                    return None
                continue
        data, token = known
        if data.endswith(line):  # The line was stored by a try whose response was lost.
            return known
        if (new := storage.replace_if(path, data + line, token)) is not None:
            return data + line, new
        known = None
    raise StorageError(
        f"{path} could not be written, as other processes changed it at each of {_SWAP_ATTEMPTS}"
        " tries: rerun the same command"
    )
