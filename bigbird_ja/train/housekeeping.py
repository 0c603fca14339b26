"""What goes on beside the steps: heartbeats, lock renewal, bringing logs to a bucket.

One thread, so that a slow bucket never stalls a step. A failure here is said once and tried again;
only a lost lock ends the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bigbird_ja.storage.lease import LeaseLost

_POLL_SECONDS = 0.5


@dataclass
class Chore:
    """Something done every `seconds`."""

    name: str
    seconds: float
    do: Callable[[], None]
    next_time: float = 0.0


class Housekeeping:
    """Does chores in a thread between `__enter__` and `__exit__`.

    Args:
        chores: each is done first one interval from now.
        log: told of failures, once per chore and message.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        chores: Sequence[Chore],
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chores, self._log, self._clock = list(chores), log, clock
        self._ended = threading.Event()
        self._said: set[str] = set()
        self._error: LeaseLost | None = None
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def poll(self) -> None:
        """Raises LeaseLost once the lock is lost."""
        if self._error is not None:
            raise self._error

    def do_due(self) -> None:
        """Does what is due now."""
        for chore in self._chores:
            now = self._clock()
            if self._error is not None:  # MODEL_DIR is another's: not one more heartbeat
                return
            if now < chore.next_time:
                continue
            chore.next_time = now + chore.seconds
            try:
                chore.do()
            except LeaseLost as error:
                self._error = error
            except Exception as error:
                self._say(f"{chore.name} failed, will be tried again: {error}")

    def __enter__(self) -> Housekeeping:
        for chore in self._chores:
            chore.next_time = self._clock() + chore.seconds
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self.do_due()

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._log(message)
