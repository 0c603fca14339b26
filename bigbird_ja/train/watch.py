"""Run threads beside the steps: the watchdog, and what is done every few seconds.

The watchdog ends a process in which training hangs: its machine is billed all the same. Heartbeats,
the renewal of the lock and the upload of logs share one thread, so that a slow bucket never stalls
a step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bigbird_ja.storage.lease import LeaseLost

_POLL_SECONDS = 0.5


class Watchdog:
    """Call `on_stall` when nothing was finished for `limit` seconds.

    Args:
        limit: seconds without `tick`; 0 is off.
        on_stall: gets the seconds of silence; expected not to return.
        clock: seconds, monotonic.
        poll: seconds between checks.
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
        """Note that something was finished: a step, or a batch of an evaluation."""
        self._last = self._clock()

    def __enter__(self) -> Watchdog:
        self.tick()
        if self._limit:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._poll):
            silence = self._clock() - self._last
            if silence > self._limit:
                self._on_stall(silence)
                return


@dataclass
class PeriodicTask:
    """Something done every `seconds`, first one interval from the start."""

    name: str
    seconds: float
    run: Callable[[], None]
    next_time: float = 0.0


class Periodic:
    """Run tasks in a thread between `__enter__` and `__exit__`.

    A task that fails is logged, once per message, and retried; only a lost lock ends the run.

    Args:
        tasks: to run.
        log: for failures.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        tasks: Sequence[PeriodicTask],
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks, self._log, self._clock = list(tasks), log, clock
        self._ended = threading.Event()
        self._logged: set[str] = set()
        self._lost: LeaseLost | None = None
        self._thread = threading.Thread(target=self._run, name="periodic", daemon=True)

    def poll(self) -> None:
        """Raise LeaseLost once the lock is lost."""
        if self._lost is not None:
            raise self._lost

    def run_due(self) -> None:
        """Run the tasks that are due.

        None runs any more once the lock is lost: MODEL_DIR belongs to another process then.
        """
        for task in self._tasks:
            now = self._clock()
            if self._lost is not None or now < task.next_time:
                continue
            task.next_time = now + task.seconds
            try:
                task.run()
            except LeaseLost as error:
                self._lost = error
            except Exception as error:
                message = f"{task.name} failed, will be tried again: {error}"
                if message not in self._logged:
                    self._logged.add(message)
                    self._log(message)

    def __enter__(self) -> Periodic:
        for task in self._tasks:
            task.next_time = self._clock() + task.seconds
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self.run_due()
