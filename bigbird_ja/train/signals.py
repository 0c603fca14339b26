"""SIGTERM, SIGHUP and Ctrl-C: asked once, training saves and ends; a second Ctrl-C leaves at once.

Python runs its handlers between bytecodes of the main thread, which may sit inside a device loop
for many seconds. So the handlers here do nothing: a thread reads the signal numbers that Python's C
code writes to a pipe the moment they arrive.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from bigbird_ja.process import signals


class StopRequest:
    """Listens for signals between `__enter__` and `__exit__` (main thread only).

    SIGHUP is left alone where it was ignored from the start, as `nohup` does.

    Args:
        log: told once what was asked.
        leave: ends the process at once with a line; called for a second Ctrl-C, and where the
            main thread did not answer within `patience` seconds (inside a compilation, say).
        patience: seconds; a spot machine is taken about 30 s after SIGTERM.
    """

    def __init__(
        self,
        log: Callable[[str], None],
        leave: Callable[[str], None],
        patience: float = 25.0,
    ) -> None:
        self._log, self.leave, self._patience = log, leave, patience
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._before: dict[int, Any] = {}
        self._asking = threading.Lock()
        self._presses = False  # somebody asked who cannot wait
        self.name = ""  # of the first signal, or what else asked
        self.tell: Callable[[str], None] = lambda name: None  # told `name` too: for a whole pod

    def is_set(self) -> bool:
        """Whether someone asked to stop."""
        return self._asked.is_set()

    def ask(self, name: str, is_pressing: bool = True) -> None:
        """Asks to stop, from any thread.

        Args:
            name: who or what asks, for messages.
            is_pressing: whether the machine is about to go, so that a main thread that does not
                answer is not waited for.
        """
        with self._asking:
            is_first = not self._asked.is_set()
            if is_first:
                self.name = name
                self._asked.set()
            starts_clock = is_pressing and not self._presses
            self._presses = self._presses or is_pressing
        if is_first:
            self._log(f"{name}: finishing the step and saving; Ctrl-C again leaves at once")
        if starts_clock:
            threading.Thread(target=self._time_out, name="patience", daemon=True).start()
        if is_first:
            self.tell(name)

    def answered(self) -> None:
        """The main thread has seen the request: from here on it may take the time to save."""
        self._answered.set()

    def __enter__(self) -> StopRequest:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._before = signals.set_handlers(_ignore)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        return self

    def install(self) -> None:
        """Puts the handlers in place; again where a library has taken them (TPUEstimator does, and
        JAX where several processes train)."""
        for number in self._before:
            signal.signal(number, _ignore)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._answered.set()
        os.close(self._writer)  # ends the thread
        self._thread.join(timeout=5)
        with contextlib.suppress(OSError):
            os.close(self._reader)

    def _listen(self) -> None:
        while numbers := os.read(self._reader, 64):
            for number in numbers:
                if number in self._before:
                    self._receive(number)

    def _receive(self, number: int) -> None:
        if number == signal.SIGINT and self._asked.is_set():
            self.leave("interrupted again: left at once; the last checkpoint is good")
        else:
            self.ask(signals.name_of(number))

    def _time_out(self) -> None:
        if not self._answered.wait(self._patience):
            self.leave(
                f"{self.name}: no step ended within {self._patience:.0f} s: left without saving;"
                " the last checkpoint is good"
            )


def _ignore(number: int, frame: Any) -> None:
    """Present only so that Python's C code notes the signal."""
