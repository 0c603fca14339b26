"""Ctrl-C, SIGTERM and SIGHUP end a command, whatever the libraries under it do with them.

Python raises KeyboardInterrupt in the main thread, between two bytecodes. That is the clean way
out, and it fails in two ways: a library catches the exception (in a callback, in `except:`), or the
main thread sits in native code and never comes to the next bytecode. So a thread listens too, on
the pipe that Python's C code writes to the moment a signal arrives. It raises the exception again
where it was swallowed, and where nothing helps it cleans up and ends the process itself.

Commands with an answer of their own to a signal (`pretrain` saves, `launch` asks) take over with
`handed_over`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from bigbird_ja.process.errors import interrupted

# Seconds until the listening thread ends the process: while no Python code of the main thread
# runs, or the exception is swallowed again and again; and while the main thread unwinds (a lock on
# a bucket is released, a worker finishes what it is writing).
STUCK_SECONDS = 3.0
UNWINDING_SECONDS = 15.0
_POLL_SECONDS = 0.05
# After this, the same signal again is a person who does not want to wait. Closing a terminal may
# send two at once.
_AGAIN_SECONDS = 0.3

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop(KeyboardInterrupt):
    """Raised in the main thread; unlike its parent it can be watched by a weak reference, which
    tells whether somebody still holds it."""


class StopSignals:
    """The handlers of a process, from `install` to its end.

    Args:
        leave: cleans up, says `message` and ends the process; called in the listening thread.
    """

    _installed: StopSignals | None = None

    def __init__(self, leave: Callable[[str], None]) -> None:
        self._leave = leave
        self._asked = 0.0  # monotonic seconds
        self._raised: weakref.ref[Stop] | None = None
        self._echoes = 0  # signals that this class sends itself
        self._hands = 0  # how many have taken over
        self._holding = 0  # blocks that must not be left in the middle
        self._held = 0  # the signal that came meanwhile
        self._has_left = threading.Lock()
        self.is_settled = False  # the command has ended, one way or the other
        self.number = 0  # of the first signal

    def install(self) -> StopSignals:
        """Sets the handlers (main thread), and starts to listen."""
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, name="stop-signals", daemon=True).start()
        sys.unraisablehook = _quiet_about_stop(sys.unraisablehook)
        StopSignals._installed = self
        set_handlers(self._handle)  # last: from here on the caller must expect `Stop`
        return self

    @property
    def name(self) -> str:
        """Of the first signal: `Ctrl-C`, `SIGTERM`, `SIGHUP`; empty before one has come."""
        return name_of(self.number) if self.number else ""

    def settle(self) -> None:
        """The main thread has the command's end in its hands: nothing is raised there any more.
        It is still watched, since a full pipe or a thread that is waited for may hold it."""
        self.is_settled = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._hands or self.is_settled:
            return
        # Here too: the listening thread may get its turn only after the exception has arrived.
        self.number = self.number or number
        if self._holding:
            self._held = number
        else:
            raise self._new(number)

    def _new(self, number: int) -> Stop:
        # Not in `_handle`: its frame is part of the traceback and would hold the exception alive.
        stop = Stop(name_of(number))
        self._raised = weakref.ref(stop)
        return stop

    def _listen(self) -> None:
        while numbers := os.read(self._reader, 64):
            for number in numbers:
                if number in SIGNALS and not self._hands:
                    self._received(number)

    def _received(self, number: int) -> None:
        if self._echoes:
            self._echoes -= 1
        elif not self._asked:
            self.number, self._asked = self.number or number, time.monotonic()
            threading.Thread(target=self._see_to_it, name="stop-patience", daemon=True).start()
        elif time.monotonic() - self._asked > _AGAIN_SECONDS:
            self._leave_once(f"interrupted again ({name_of(number)}): left at once")

    def _see_to_it(self) -> None:
        """Waits for the main thread to end the process, reminds it, and at last ends it here."""
        main = threading.main_thread().ident
        while True:
            time.sleep(_POLL_SECONDS)
            waited = time.monotonic() - self._asked
            is_unwinding = self._raised is not None and self._raised() is not None
            is_heard = is_unwinding or bool(self._held)
            is_heard = is_heard or (self.is_settled and self._raised is not None)
            if waited > (UNWINDING_SECONDS if is_heard else STUCK_SECONDS):
                self._leave_once(interrupted(self.name))
            elif self._raised is not None and not is_heard and main is not None:
                self._raised = None  # swallowed
                self._echoes += 1
                signal.pthread_kill(main, self.number)

    def _leave_once(self, message: str) -> None:
        with self._has_left:
            self._leave(message)


def set_handlers(handler: Callable[[int, FrameType | None], Any]) -> dict[int, Any]:
    """Sets the handler of `SIGNALS` (main thread); the handlers before, by number.

    SIGHUP stays ignored where the parent ignores it, which is what `nohup` is; SIGINT does not:
    shells ignore it for every job in the background.
    """
    return {
        number: signal.signal(number, handler)
        for number in SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    }


@contextlib.contextmanager
def handed_over() -> Iterator[None]:
    """While the block runs, signals are for the handlers that the caller sets itself."""
    installed = StopSignals._installed
    if installed is None:
        yield
        return
    installed._hands += 1
    try:
        yield
    finally:
        installed._hands -= 1


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A block of the main thread that is short and must not be left in the middle; a signal that
    comes meanwhile raises at its end."""
    installed = StopSignals._installed
    if installed is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    installed._holding += 1
    try:
        yield
    finally:
        installed._holding -= 1
    if installed._held and not installed._holding:
        number, installed._held = installed._held, 0
        installed._handle(number, None)


def name_of(number: int) -> str:
    """A signal in the words of the person who sent it."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def _quiet_about_stop(before: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Python reports an exception that a destructor or a callback cannot pass on, with a traceback;
    one that says "stop" comes again by other means."""

    def hook(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, Stop):
            before(unraisable)

    return hook
