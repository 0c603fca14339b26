"""Brings batches to the devices beside the steps: a thread that is some batches ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_POLL_SECONDS = 0.2
_CLOSE_SECONDS = 30.0


class Feeder:
    """Iterates in a thread of its own.

    Args:
        batches: made, iterated and placed in the thread.
        place: brings one batch to the devices.
        ahead: batches that wait at most.
    """

    def __init__(
        self,
        batches: Callable[[], Iterable[Any]],
        place: Callable[[Any], Any],
        ahead: int = 2,
    ) -> None:
        self._batches, self._place = batches, place
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(ahead)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="input", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        """The placed batches; raises what the input raised."""
        while True:
            kind, value = self._queue.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            for batch in self._batches():
                if not self._put("batch", self._place(batch)):
                    return
            self._put("end", None)
        except BaseException as error:
            self._put("error", error)

    def _put(self, kind: str, value: Any) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put((kind, value), timeout=_POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False
