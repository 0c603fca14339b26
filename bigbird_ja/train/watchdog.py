"""Watchdog that ends a run in which no step completes, since a stuck machine is still billed."""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bigbird_ja.errors import CommandError, Stalled


@dataclass(eq=False)
class Watchdog:
    """Watchdog that ends the process if `tick` was not called for `limit` seconds.

    Before it ends the process, it prints the stacks of all threads to standard error.
    """

    limit: float  # Seconds without `tick`, or 0 to disable the watchdog.
    exit_process: Callable[[CommandError], None]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Initialize the watchdog. Its thread starts when the context is entered."""
        self._last = self.clock()
        self._ended = threading.Event()

    def tick(self) -> None:
        """Record that a step, or a batch of an evaluation, was completed."""
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
                sys.stderr.flush()
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
                self.exit_process(
                    Stalled(
                        f"no step finished for {silence / 60:.1f} minutes"
                        " (training.stall_minutes), and the stacks of all threads are above:"
                        " rerun the same command"
                    )
                )
                return
