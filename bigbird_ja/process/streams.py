"""Standard output and error, and the line of `--json`.

Both streams accept any text, name themselves in their errors, and are flushed while an error can
still be reported. With `--json`, standard output holds only the line of results.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from bigbird_ja.errors import STREAMS, CommandError
from bigbird_ja.process.redact import redact

# Errors of a pipe without a reader, or of a terminal that was closed.
_GONE = (errno.EPIPE, errno.EIO, errno.ENXIO, errno.EBADF)


class _Stream(io.TextIOWrapper):
    """Output stream that names itself in its errors; standard error masks credentials, too.

    Log records, warnings and tracebacks of threads all pass through standard error. A line is
    masked as a whole, since `print` writes it in parts.
    """

    on_gone: Callable[[], None] | None = None  # see `guard_stderr`

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._line = ""  # of standard error, not written yet
        self._lock = threading.RLock()  # for it; a destructor may print within a write

    def write(self, text: str) -> int:
        """Write as `TextIOWrapper` does."""
        with self._lock, self._faults():
            if self.fileno() == 2:
                self._line, line = self._line + text, ""
                if "\n" in text:
                    line, self._line = self._line, ""
                super().write(redact(line))
            else:
                super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush as `TextIOWrapper` does."""
        with self._lock, self._faults():
            line, self._line = self._line, ""
            super().write(redact(line))
            super().flush()

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            with _naming(self.fileno()):
                yield
        except OSError as error:
            if self.on_gone is None:
                raise
            if error.errno in _GONE:
                _silence(self.fileno())
                self.on_gone()


def prepare() -> None:
    """Replace this process's output streams; called once, by the console script."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        old.flush()
        os.set_blocking(number, True)  # else a write may take only a part
        raw = io.FileIO(number, "w", closefd=False)
        prompt = number == 2 or raw.isatty()
        buffer = io.BufferedWriter(raw)
        new = _Stream(buffer, old.encoding, "backslashreplace", line_buffering=prompt)
        setattr(sys, name, new)


def finish() -> OSError | None:
    """Flush both streams; return the first error.

    Text that cannot be written is dropped, so that the interpreter does not complain at exit.
    """
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


class ResultLine:
    """Line of `--json` on standard output, while everything else goes to standard error."""

    _current: ResultLine | None = None

    def __init__(self, stream: Any) -> None:
        self._stream = stream  # of bytes
        self._is_written = False

    def write(self, results: dict[str, Any]) -> None:
        """Write the line; later calls do nothing."""
        if self._is_written:
            return
        line = json_line(results)
        self._is_written = True
        with _naming(1):
            while line:
                line = line[self._stream.write(line) :]


@contextlib.contextmanager
def results_apart() -> Iterator[ResultLine]:
    """Point standard output at standard error, C libraries' included, while the block runs.

    Yields:
        The line of results.
    """
    stream: Any = sys.stdout
    stream.flush()
    saved, is_real = os.dup(1), isinstance(stream, _Stream)
    results = ResultLine(io.FileIO(saved, "w", closefd=False) if is_real else stream.buffer)
    ResultLine._current = results
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
        ResultLine._current = None


def write_results(results: dict[str, Any]) -> None:
    """Write the line of `--json` from any thread, if an exception cannot end the command.

    Does nothing without `--json`.
    """
    if ResultLine._current is not None:
        with contextlib.suppress(OSError, ValueError):
            ResultLine._current.write(results)


def leave(error: CommandError) -> None:
    """End the process at once, from any thread: one line, the `--json` results, the status."""
    with contextlib.suppress(OSError, ValueError):
        print(f"bigbird-ja: {error}", file=sys.stderr, flush=True)
    write_results({**error.results, "reason": error.reason, "error": str(error)})
    os._exit(error.status)


@contextlib.contextmanager
def guard_stderr(on_gone: Callable[[], None]) -> Iterator[None]:
    """Keep working if standard error fails.

    On a full disk, text that does not fit is dropped; `on_gone` is called if the reader closed it.
    """
    stream: Any = sys.stderr
    stream.on_gone = on_gone
    try:
        yield
    finally:
        stream.on_gone = None


def json_line(record: dict[str, Any]) -> bytes:
    """Encode a record as one line of JSON in UTF-8, with its newline; credentials are masked.

    NaN and infinities become null, NumPy's numbers and arrays plain ones, and bytes of a file name
    that are not UTF-8 an escape.

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


@contextlib.contextmanager
def _naming(number: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = STREAMS[number]
        raise


def _silence(number: int) -> None:
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
