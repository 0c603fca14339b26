"""Standard error that may go away, under work that must not fail on its log: training saves and
ends, and a rented TPU is deleted first."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

# The pipe has no reader any more, or the terminal is gone.
_GONE = (errno.EPIPE, errno.EIO, errno.ENXIO, errno.EBADF)


class LogStream:
    """Writes to a stream; a write that fails never raises.

    Args:
        stream: what is written to.
        on_gone: told once that nobody can read the stream any more. A full disk is another matter:
            what does not fit is dropped, and the work goes on.
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
                    _point_to_null(self._stream.fileno())
                self._on_gone()
        except ValueError:  # closed
            self._is_gone = True


@contextlib.contextmanager
def guarded(on_gone: Callable[[], None]) -> Iterator[None]:
    """Standard error as a `LogStream` for the time of the block."""
    before = sys.stderr
    if before is None:  # closed by whoever started us
        yield
        return
    sys.stderr = LogStream(before, on_gone)
    try:
        yield
    finally:
        sys.stderr = before


def _point_to_null(descriptor: int) -> None:
    """What libraries write there, and what is still in a buffer, then fails no more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
