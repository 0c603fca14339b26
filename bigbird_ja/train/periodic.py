"""Tasks that run every few seconds, in one thread: a slow bucket never stalls a step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.train.job import Dependencies

_TASKS_POLL_SECONDS = 0.5


@dataclass(eq=False)
class Periodic:
    """Tasks that run in a thread while the context is open.

    A failure is logged, once per message, and the task is retried; only a lost lock ends the run.
    """

    # Name -> seconds between two calls, and before the first; the function.
    tasks: Mapping[str, tuple[float, Callable[[], None]]]
    deps: Dependencies

    def __post_init__(self) -> None:
        """Start nothing."""
        start = self.deps.monotonic()
        self._next = {name: start + seconds for name, (seconds, _) in self.tasks.items()}
        self._ended = threading.Event()
        self._logged: set[str] = set()
        self._lost: LeaseLost | None = None
        self._thread = threading.Thread(target=self._run, name="periodic", daemon=True)

    def poll(self) -> None:
        """Raise LeaseLost if the lock is lost."""
        if self._lost is not None:
            raise self._lost

    def run_due(self) -> None:
        """Run the tasks that are due; none after the lock is lost, as MODEL_DIR isn't ours then."""
        for name, (seconds, run) in self.tasks.items():
            now = self.deps.monotonic()
            if self._lost is not None or now < self._next[name]:
                continue
            self._next[name] = now + seconds
            try:
                run()
            except LeaseLost as error:
                self._lost = error
            except Exception as error:
                message = f"{name} failed, will be tried again: {error}"
                if message not in self._logged:
                    self._logged.add(message)
                    self.deps.log(message)

    def __enter__(self) -> Periodic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while not self._ended.wait(_TASKS_POLL_SECONDS):
            self.run_due()
