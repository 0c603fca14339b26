"""Watchdog of a run in which no step completes: its machine is billed all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False)
class Watchdog:
    """Call `on_stall` when nothing was finished for `limit` seconds."""

    limit: float  # seconds without `tick`; 0 is off
    on_stall: Callable[[float], None]  # gets the seconds of silence; expected not to return
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Watch nothing yet."""
        self._last = self.clock()
        self._ended = threading.Event()

    def tick(self) -> None:
        """Note that something was finished: a step, or a batch of an evaluation."""
        self._last = self.clock()

    def __enter__(self) -> Watchdog:
        self.tick()
        if self.limit:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(min(max(self.limit / 20, 0.05), 5.0)):
            silence = self.clock() - self._last
            if silence > self.limit:
                self.on_stall(silence)
                return
