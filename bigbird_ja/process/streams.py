"""Standard output and error, and the line of results that `--json` prints.

Both streams accept any text, and are flushed while errors can still be reported. With `--json`,
standard output contains only the line of results.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

from bigbird_ja.errors import STREAMS, CommandError
from bigbird_ja.process.redact import redact


def prepare() -> None:
    """Open closed standard streams on the null device, and make both outputs accept any text.

    If a standard stream is closed at the start, Python sets it to None. Without this function, the
    next file that is opened would get the stream's descriptor number.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < len(STREAMS):
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    for output in (sys.stdout, sys.stderr):
        output.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def finish() -> OSError | None:
    """Flush both output streams, and return the first error.

    Text that cannot be written is dropped, so that the interpreter prints no error at exit.
    """
    first = None
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            with name_stream(number):
                stream.flush()
        except (OSError, ValueError) as error:
            first = first or (error if isinstance(error, OSError) else None)
            silence(number)
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    return first


class ResultLine:
    """Line of results that `--json` prints on standard output."""

    _current: ResultLine | None = None

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._is_written = False

    def write(self, results: dict[str, Any]) -> None:
        """Write the line at the first call. Later calls have no effect."""
        if self._is_written:
            return
        line = encode_line(results)
        self._is_written = True
        with name_stream(1):
            while line:
                line = line[self._stream.write(line) :]


@contextlib.contextmanager
def separate_results() -> Iterator[ResultLine]:
    """Context manager: redirect standard output to standard error, also for C libraries.

    Yields:
        The line of results, which is written to the original standard output.
    """
    stream: Any = sys.stdout
    stream.flush()
    saved, is_real = os.dup(1), stream is sys.__stdout__
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
    """Write the line of results from any thread. Without `--json`, do nothing."""
    if ResultLine._current is not None:
        with contextlib.suppress(OSError, ValueError):
            ResultLine._current.write(results)


def leave(error: CommandError) -> None:
    """End the process at once, from any thread, with a message, results and exit status."""
    with contextlib.suppress(OSError, ValueError):
        print(f"bigbird-ja: {error}", file=sys.stderr, flush=True)
    write_results({**error.results, "reason": error.reason, "error": str(error)})
    os._exit(error.status)


def encode_line(record: dict[str, Any]) -> bytes:
    """Encode a record as a line of JSON in UTF-8, with a newline and without credentials.

    NaN and infinities become null, NumPy's arrays become lists, and bytes of a file name that are
    not UTF-8 are escaped.

    Raises:
        TypeError: A value cannot be encoded as JSON.
    """
    text = json.dumps(_simplify(record), ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def _simplify(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _simplify(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_simplify(item) for item in value]
    if hasattr(value, "tolist"):
        return _simplify(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextlib.contextmanager
def name_stream(number: int) -> Iterator[None]:
    """Context manager: set `filename` of the block's `OSError` to a standard stream's name."""
    try:
        yield
    except OSError as error:
        error.filename = STREAMS[number]
        raise


def silence(number: int) -> None:
    """Redirect a standard stream to the null device."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
