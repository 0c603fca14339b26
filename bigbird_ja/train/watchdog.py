"""Ends a process in which training hangs: its machine is billed all the same."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable
from typing import TextIO


class Watchdog:
    """Calls `on_stall` when nothing was finished for `limit` seconds.

    Args:
        limit: seconds without `tick`; 0 is off.
        on_stall: gets the seconds of silence; expected not to return.
        clock: seconds, monotonic.
        poll: seconds between looks.
    """

    def __init__(
        self,
        limit: float,
        on_stall: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        poll: float | None = None,
    ) -> None:
        self._limit, self._on_stall, self._clock = limit, on_stall, clock
        self._poll = min(max(limit / 20, 0.05), 5.0) if poll is None else poll
        self._last = clock()
        self._ended = threading.Event()

    def tick(self) -> None:
        """Something was finished: a step, or a batch of an evaluation."""
        self._last = self._clock()

    def is_stalled(self) -> bool:
        """Whether the limit is passed now."""
        return bool(self._limit) and self._clock() - self._last > self._limit

    def __enter__(self) -> Watchdog:
        self.tick()
        if self._limit:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._poll):
            if self.is_stalled():
                self._on_stall(self._clock() - self._last)
                return


def dump_stacks(stream: TextIO) -> None:
    """Where every thread is, for the log."""
    stream.flush()
    faulthandler.dump_traceback(stream, all_threads=True)
