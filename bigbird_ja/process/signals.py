"""Handling of Ctrl-C, SIGTERM and SIGHUP, for the three kinds of command.

- Most commands end at once (`CommandSignals`): KeyboardInterrupt in the main thread. A second
  signal exits without waiting.
- `pretrain` finishes its step, saves and ends (`StopRequest`). A second Ctrl-C exits at once.
- `launch` asks whether to keep the TPU (`Interrupts`, a `Listener`).

Python runs a handler between two bytecodes of the main thread, which may be in native code for
minutes. So one thread reads the signal numbers that Python's C code writes to a pipe when they
arrive (`signal.set_wakeup_fd`), and passes them to the innermost `Listener`.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from bigbird_ja.errors import interrupted

if TYPE_CHECKING:
    from typing_extensions import Self

# Seconds from the first signal until the listening thread ends the process, if the main thread has
# not: native code does not return, a library swallowed the exception, a thread is waited for.
LEAVE_SECONDS = 5.0
# After this many seconds, a second signal means that the user does not want to wait. Closing a
# terminal may send two at once.
_AGAIN_SECONDS = 0.3
# A spot machine is stopped about 30 s after SIGTERM.
SAVING_SECONDS = 25.0

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, "FrameType | None"], Any]


def name_of(number: int) -> str:
    """Return the name of a signal as users know it."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


# The last listener gets the signals.
_listeners: list[Listener] = []
# Process, and the end of its pipe to which Python writes the numbers of signals.
_pipe = (0, -1)


def _start_listening() -> int:
    """Let the last listener be notified, and return the previous wakeup descriptor.

    Call it in the main thread. The notifying thread is started once per process.

    The thread that notifies it is started once per process.
    """
    global _pipe
    if _pipe[0] != os.getpid():
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        _pipe = os.getpid(), writer
        threading.Thread(target=_listen, args=(reader,), name="signals", daemon=True).start()
    return signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)


def _listen(reader: int) -> None:
    while numbers := os.read(reader, 64):
        for number in numbers:
            if number in SIGNALS:
                for listener in _listeners[-1:]:  # The copy helps if the main thread removes it.
                    listener.receive(number)


class Listener:
    """Context in which `receive(number)` is called in a thread for each signal (main thread only).

    At its end the previous handlers and wakeup descriptor are back, so a notebook works as before.

    Args:
        receive: callback that must not raise.
        handler: signal handler in the main thread, by default one without effect.
    """

    def __init__(
        self, receive: Callable[[int], None], handler: Handler = lambda number, frame: None
    ) -> None:
        self.receive, self._handler = receive, handler
        self._outer_handlers: dict[int, Any] = {}  # Empty outside of the block.

    def __enter__(self) -> Self:
        self._outer_wakeup = _start_listening()
        _listeners.append(self)
        # SIGHUP stays ignored if the parent ignores it, as `nohup` does; SIGINT does not, since
        # shells ignore it for every background job.
        self._outer_handlers = {  # The last statement, as the handler may raise from here on.
            number: signal.signal(number, self._handler)
            for number in SIGNALS
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def install(self) -> None:
        """Set the handlers again, after a library has replaced them.

        TPUEstimator does, and JAX if several processes train.
        """
        for number in self._outer_handlers:
            signal.signal(number, self._handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._outer_handlers.items():
            signal.signal(number, handler)
        _listeners.remove(self)
        signal.set_wakeup_fd(self._outer_wakeup, warn_on_full_buffer=False)


class CommandSignals:
    """Signal handling that ends a command at the first signal, whatever libraries do.

    KeyboardInterrupt is the clean way out, but a library may catch it (in a callback, in
    `except:`), or the main thread may be in native code. So a thread cleans up and ends the process
    if the main thread has not done so in time.

    Args:
        leave: callback that cleans up, prints the message and ends the process, in another thread.
    """

    def __init__(self, leave: Callable[[str], None]) -> None:
        self._leave = leave
        self._first_time = 0.0  # Monotonic seconds at the first signal.
        self._leaving = threading.Lock()
        # Whether the command has ended: nothing is raised in the main thread any more. Signals
        # still end the process, since a full pipe or a thread may keep it from ending.
        self.is_settled = False
        self.number = 0

    def install(self) -> CommandSignals:
        """Set the handlers (main thread), which may raise KeyboardInterrupt from here on."""
        sys.unraisablehook = _without_interruptions(sys.unraisablehook)
        Listener(self._receive, self._handle).__enter__()
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_settled:
            return
        # Also here: the listening thread may run only after the exception has arrived.
        self.number = self.number or number
        raise KeyboardInterrupt(name_of(number))

    def _receive(self, number: int) -> None:
        if not self._first_time:
            self.number, self._first_time = self.number or number, time.monotonic()
            message = interrupted(name_of(self.number))
            timer = threading.Timer(LEAVE_SECONDS, self._leave_once, (message,))
            timer.daemon = True
            timer.start()
        elif time.monotonic() - self._first_time > _AGAIN_SECONDS:
            self._leave_once(f"interrupted again ({name_of(number)}): left at once")

    def _leave_once(self, message: str) -> None:
        with self._leaving:
            self._leave(message)


def _without_interruptions(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a hook so that an interrupted destructor or callback prints no traceback."""

    def quiet(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            hook(unraisable)

    return quiet


class StopRequest(Listener):
    """Request to stop, which `pretrain` checks between two steps.

    Listens to signals while the block runs (main thread only).

    Args:
        log: callback for the line at the first request.
        leave: callback that ends the process at once with a line, for a second Ctrl-C, and if the
            main thread does not answer in time (during a compilation, for example).
        timeout: maximum wait for the main thread's answer, in seconds.
    """

    def __init__(
        self,
        log: Callable[[str], None],
        leave: Callable[[str], None],
        timeout: float = SAVING_SECONDS,
    ) -> None:
        super().__init__(self._receive, self._handle)
        self._is_over = False
        self._log, self._leave, self._timeout = log, leave, timeout
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._is_answered = False
        self.name = ""  # The first signal or other cause.

    def is_set(self) -> bool:
        """Return whether a stop was requested."""
        return bool(self.name)

    def ask(self, name: str, is_urgent: bool = True) -> None:
        """Ask to stop, from any thread.

        Args:
            name: name of the cause, for messages.
            is_urgent: whether the machine will stop soon, so that the main thread gets `timeout`
                seconds to answer.
        """
        with self._lock:
            is_first = not self.name
            self.name = self.name or name
            if is_urgent and self._timer is None and not self._is_answered:
                self._timer = threading.Timer(self._timeout, self._time_out)
                self._timer.daemon = True
                self._timer.start()
        if is_first:
            again = "; Ctrl-C again leaves at once" if name == name_of(signal.SIGINT) else ""
            self._log(f"{name}: finishing the step and saving{again}")

    def interrupt(self, error: BaseException) -> None:
        """Raise KeyboardInterrupt in the main thread, from any thread, for an error."""
        self._is_over = True
        _thread.interrupt_main()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:
            raise KeyboardInterrupt

    def answered(self) -> None:
        """Note that the main thread has seen the request, so that saving is not limited in time."""
        self._is_answered = True
        if self._timer is not None:
            self._timer.cancel()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.answered()

    def _receive(self, number: int) -> None:
        if self._is_over:  # `interrupt` sent it.
            return
        if number == signal.SIGINT and self.is_set():
            self._leave("interrupted again: left at once; a checkpoint saved before is good")
        else:
            self.ask(name_of(number))

    def _time_out(self) -> None:
        if not self._is_answered:
            self._leave(
                f"{self.name}: no step ended within {self._timeout:.0f} s: left without saving;"
                " a checkpoint saved before is good"
            )


# C calls the last one, so none is ever freed.
_abort_handlers: list[Any] = []


def on_abort(act: Callable[[], None]) -> None:
    """Call `act`, which ends the process, if native code aborts in another thread.

    The aborting thread waits forever. Python's own handlers would run too late, since abort() does
    not return.
    """

    def handle(number: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            threading.Thread(target=act, daemon=True).start()
            time.sleep(1 << 30)

    _abort_handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(handle))
    ctypes.CDLL(None).signal(signal.SIGABRT, _abort_handlers[-1])
