"""Repeated call in a thread, so that a slow bucket never stalls a step."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bigbird_ja.storage.lease import LeaseLost


class Periodic:
    """Repeated call in a thread while the context is open.

    If the call fails, the failure is logged, once per message, and the call is repeated as usual.
    But if the call raises LeaseLost, since another process has locked MODEL_DIR, the repetition
    ends, and `poll` raises this error.

    Args:
        call: call to repeat.
        seconds: time between two calls, and before the first.
        log: callback for failures.
    """

    def __init__(
        self, call: Callable[[], None], seconds: float, log: Callable[[str], None]
    ) -> None:
        self._call, self._seconds, self._log = call, seconds, log
        self._ended = threading.Event()
        self._logged: set[str] = set()
        self._lost: LeaseLost | None = None
        self._thread = threading.Thread(target=self._run, name="periodic", daemon=True)

    def poll(self) -> None:
        """Raise LeaseLost if the call has raised it."""
        if self._lost is not None:
            raise self._lost

    def __enter__(self) -> Periodic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while self._lost is None and not self._ended.wait(self._seconds):
            try:
                self._call()
            except LeaseLost as error:  # MODEL_DIR belongs to another process.
                self._lost = error
            except Exception as error:
                message = f"the heartbeat could not be written and will be retried: {error}"
                if message not in self._logged:
                    self._logged.add(message)
                    self._log(message)
