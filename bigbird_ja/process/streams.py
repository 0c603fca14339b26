"""Standard input, output and error: open, able to take any text, and flushed while an error can
still be reported. With `--json`, standard output is for the one line of results alone.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib.abc
import importlib.util
import io
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TextIO

from bigbird_ja.process.errors import STREAMS, BadInput, CommandError
from bigbird_ja.process.redaction import redact

# The pipe has no reader any more, or the terminal is gone.
_GONE = (errno.EPIPE, errno.EIO, errno.ENXIO, errno.EBADF)


class _Named(io.TextIOWrapper):
    """A standard stream whose errors name it. What goes to standard error (log records, warnings,
    tracebacks of threads and destructors) loses its credentials."""

    def write(self, text: str) -> int:
        """Writes as `TextIOWrapper` does."""
        with _naming(self.fileno()):
            super().write(redact(text) if self.fileno() == 2 else text)
            return len(text)

    def flush(self) -> None:
        """Flushes as `TextIOWrapper` does."""
        with _naming(self.fileno()):
            super().flush()


class Streams:
    """The standard streams of this process, taken over once, by the console script.

    What was closed is open to `/dev/null` afterwards: else the next file that is opened would
    become standard output, and a library's message would be written into it.
    """

    def __init__(self) -> None:
        self.closed = [number for number in range(3) if not _is_open(number)]
        for _ in self.closed:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: the closed one
        if sys.stdin is None:
            sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
        for name, number in (("stdout", 1), ("stderr", 2)):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                getattr(sys, name).flush()
            setattr(sys, name, _text(getattr(sys, name), number))

    def check(self) -> None:
        """Refuses to work where nobody would see the outcome.

        Raises:
            BadInput: standard output or standard error was closed.
        """
        for number in self.closed:
            if number:
                raise BadInput(
                    f"{STREAMS[number]} is closed: give it a place, such as {number}>/dev/null"
                )

    def say(self, line: str) -> None:
        """A last line for people: on standard error, or where that is closed on the output."""
        descriptor = 1 if 2 in self.closed else 2
        with contextlib.suppress(OSError):
            os.write(descriptor, f"{line}\n".encode())

    def finish(self) -> OSError | None:
        """Flushes; what cannot be written is dropped, so that the interpreter's own flush at its
        end finds nothing to complain about. Returns the first error."""
        first = None
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            try:
                stream.flush()
            except (OSError, ValueError) as error:
                first = first or (error if isinstance(error, OSError) else None)
                _silence(number)
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
        return first


class Results:
    """Writes the line of `--json`, while everything else goes to standard error."""

    _current: Results | None = None

    def __init__(self, stream: TextIO, descriptor: int | None) -> None:
        self._stream, self._descriptor = stream, descriptor
        self._is_written = False

    def write(self, results: dict[str, Any]) -> None:
        """Writes the line, once: an end that comes after another one has nothing to add."""
        if self._is_written:
            return
        line = json_line(results)
        if self._descriptor is None:
            self._stream.write(line.decode())
            self._stream.flush()
            self._is_written = True
            return
        self._is_written = True
        with _naming(1):
            while line:
                line = line[os.write(self._descriptor, line) :]


@contextlib.contextmanager
def results_apart() -> Iterator[Results]:
    """Points standard output at standard error, C libraries' included; yields where the results
    go. Afterwards the streams are as they were."""
    stream = sys.stdout
    with contextlib.suppress(ValueError, AttributeError):
        stream.flush()
    saved, is_real = os.dup(1), False
    with contextlib.suppress(OSError, ValueError, AttributeError):
        is_real = stream.fileno() == 1
    results = Results(stream, saved if is_real else None)
    before, Results._current = Results._current, results
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield results
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        sys.stdout = stream
        os.dup2(saved, 1)
        os.close(saved)
        Results._current = before


def write_results(results: dict[str, Any]) -> None:
    """The line of `--json` from anywhere, for ends that no exception can bring about; nothing
    without `--json`."""
    if Results._current is not None:
        with contextlib.suppress(OSError, ValueError):
            Results._current.write(results)


def leave(error: CommandError, leave_with: Callable[[int], Any] = os._exit) -> None:
    """Ends the process at once, from any thread: one line, the `--json` results, the status."""
    with contextlib.suppress(OSError, ValueError):
        print(f"bigbird-ja: {error}", file=sys.stderr, flush=True)
    write_results({**error.results, "reason": error.reason, "error": str(error)})
    leave_with(error.status)


class LogStream:
    """A stream under work that must not fail on its log: a write that fails never raises.

    Args:
        stream: what is written to.
        on_gone: called once when nobody can read the stream any more. A full disk is another
            matter: what does not fit is dropped, and the work continues.
    """

    def __init__(self, stream: TextIO, on_gone: Callable[[], None]) -> None:
        self._stream, self._on_gone = stream, on_gone
        self._is_gone = False

    def write(self, text: str) -> int:
        """Writes, or drops the text."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flushes, or drops what was not written."""
        self._try(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _try(self, act: Callable[[], Any]) -> None:
        if self._is_gone:
            return
        try:
            act()
        except OSError as error:
            if error.errno in _GONE:
                self._is_gone = True
                with contextlib.suppress(OSError, ValueError):
                    _silence(self._stream.fileno())
                self._on_gone()
        except ValueError:  # closed
            self._is_gone = True


@contextlib.contextmanager
def guard_stderr(on_gone: Callable[[], None]) -> Iterator[None]:
    """Standard error is a `LogStream` while the block runs."""
    before = sys.stderr
    sys.stderr = LogStream(before, on_gone)
    try:
        yield
    finally:
        sys.stderr = before


def json_line(record: dict[str, Any]) -> bytes:
    """A record as one line of JSON in UTF-8, with its newline; credentials are taken out.

    What JSON cannot hold becomes what it can: NaN and infinities null, NumPy's numbers and arrays
    plain ones, a file name that is not UTF-8 an escape.

    Raises:
        TypeError: something else that is not JSON.
    """
    text = json.dumps(_plain(record), ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _text(stream: TextIO | None, number: int) -> TextIO:
    """A text stream over a descriptor, encoded as `stream` was; what does not fit is escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    os.set_blocking(number, True)  # or a write may take a part only
    raw = io.FileIO(number, "w", closefd=False)
    is_prompt = number == 2 or raw.isatty()
    buffer = io.BufferedWriter(raw)
    return _Named(buffer, encoding, "backslashreplace", line_buffering=is_prompt)


@contextlib.contextmanager
def _naming(number: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = STREAMS[number]
        raise


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _silence(number: int) -> None:
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


# What TensorFlow's C++ writes from 2.21 on, whatever its log level is: lines below an error.
_NOTICE = re.compile(
    rb"WARNING: All log messages before absl::|[IW]\d{4} [\d:. ]+\S+\.cc:\d+\]"
    rb"|To enable the following instructions"
)


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Standard error without TensorFlow's notices; other lines come when the block ends, or the
    process."""
    with tempfile.TemporaryFile() as kept:
        real = os.dup(2)

        def restore() -> None:
            os.dup2(real, 2)
            kept.seek(0)
            with contextlib.suppress(OSError):
                os.write(2, b"".join(line for line in kept if not _NOTICE.match(line)))

        os.dup2(kept.fileno(), 2)
        atexit.register(restore)
        try:
            yield
        finally:
            atexit.unregister(restore)
            restore()
            os.close(real)


@dataclass
class QuietImport(importlib.abc.MetaPathFinder):
    """Imports a package `without_notices`, the first time that something wants it."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in sys.modules and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The package's own spec, its loader made quiet."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with without_notices():
                    execute(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
