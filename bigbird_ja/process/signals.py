"""Handling of Ctrl-C, SIGTERM and SIGHUP, in three ways.

- Most commands raise KeyboardInterrupt in the main thread (`CommandSignals`). A second signal exits
  without waiting.
- `pretrain` finishes its step, saves and exits (`StopRequest`). A second Ctrl-C exits at once.
- `launch` asks whether to keep the TPU (`Interrupts`, a `Listener`).

Python runs a signal handler between two bytecodes of the main thread, which may be in native code
for minutes. But Python's C code writes the number of each signal to a pipe at once
(`signal.set_wakeup_fd`). So a thread reads this pipe, and passes the numbers to the innermost
`Listener`.
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

from bigbird_ja.errors import format_interruption

if TYPE_CHECKING:
    from typing_extensions import Self

# Seconds after the first signal until a thread ends the process. The main thread may be unable to
# exit, since it is in native code, waits for a thread, or runs a library that catches the
# KeyboardInterrupt.
LEAVE_SECONDS = 5.0
# Seconds after the first signal in which a second signal is ignored, since closing a terminal may
# send two signals at once. A later second signal ends the process.
_AGAIN_SECONDS = 0.3
# Maximum seconds to finish a step. A spot machine is stopped about 30 s after SIGTERM.
SAVING_SECONDS = 25.0

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, "FrameType | None"], Any]


def name_of(number: int) -> str:
    """Return the name of a signal for users."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


# Active listeners. The last one receives the signals.
_listeners: list[Listener] = []
# Id of the process that has opened the pipe, and descriptor of the pipe's end to which Python
# writes the numbers of signals.
_pipe = (0, -1)


def _start_listening() -> int:
    """Start to notify listeners, and return the previous wakeup descriptor.

    Call this function in the main thread. The notifying thread is started once per process.
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
                # Iterate over a copy, since the main thread may remove the listener meanwhile.
                for listener in _listeners[-1:]:
                    listener.receive(number)


class Listener:
    """Context manager in which a callback is called for each signal, in a separate thread.

    Enter it in the main thread. On exit, the previous handlers are restored, since a notebook's
    process continues with them.

    Args:
        receive: callback with the signal's number, which must not raise.
        handler: signal handler in the main thread, by default without effect.
    """

    def __init__(
        self, receive: Callable[[int], None], handler: Handler = lambda number, frame: None
    ) -> None:
        self.receive, self._handler = receive, handler
        # Handlers that were set before the block, by signal number.
        self._outer_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._outer_wakeup = _start_listening()
        _listeners.append(self)
        # If the parent process ignores SIGHUP (`nohup`), this process ignores it, too. But SIGINT
        # is handled even if the parent ignores it, since shells do so for all background jobs. From
        # the next statement on, the handler may raise.
        self._outer_handlers = {
            number: signal.signal(number, self._handler)
            for number in SIGNALS
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def install(self) -> None:
        """Set the handlers again, after a library has replaced them.

        TPUEstimator replaces the handlers. JAX replaces them if several processes train.
        """
        for number in self._outer_handlers:
            signal.signal(number, self._handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._outer_handlers.items():
            signal.signal(number, handler)
        _listeners.remove(self)
        signal.set_wakeup_fd(self._outer_wakeup, warn_on_full_buffer=False)


class CommandSignals:
    """Signal handling that ends a command after the first signal.

    The main thread gets a KeyboardInterrupt. A library may catch it, or the main thread may be in
    native code. So if the process still runs after some seconds, a thread cleans up and ends it.

    Args:
        leave: callback that cleans up, prints a message and ends the process, from any thread.
    """

    def __init__(self, leave: Callable[[str], None]) -> None:
        self._leave = leave
        # Monotonic time of the first signal in seconds, or 0 before the first signal.
        self._first_time = 0.0
        self._leaving = threading.Lock()
        # Whether the command has ended. After that, a signal raises no KeyboardInterrupt. But it
        # still ends the process, since a full pipe or a running thread may block the exit.
        self.is_settled = False
        self.number = 0

    def install(self) -> CommandSignals:
        """Set the handlers, which may raise KeyboardInterrupt. Call it in the main thread."""
        sys.unraisablehook = _ignore_interruptions(sys.unraisablehook)
        Listener(self._receive, self._handle).__enter__()
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_settled:
            return
        # `_receive` also sets `number`, but may run after the KeyboardInterrupt is handled.
        self.number = self.number or number
        raise KeyboardInterrupt(name_of(number))

    def _receive(self, number: int) -> None:
        if not self._first_time:
            self.number, self._first_time = self.number or number, time.monotonic()
            message = format_interruption(name_of(self.number))
            timer = threading.Timer(LEAVE_SECONDS, self._leave_once, (message,))
            timer.daemon = True
            timer.start()
        elif time.monotonic() - self._first_time > _AGAIN_SECONDS:
            self._leave_once(f"interrupted again ({name_of(number)}), so the command ended at once")

    def _leave_once(self, message: str) -> None:
        with self._leaving:
            self._leave(message)


def _ignore_interruptions(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap `sys.unraisablehook` to print no traceback for an interrupted destructor or callback."""

    def call_hook(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            hook(unraisable)

    return call_hook


class StopRequest(Listener):
    """Context manager that turns signals into a request to stop, which `pretrain` polls.

    Enter it in the main thread.

    Args:
        log: callback for a line at the first request.
        leave: callback that prints a message and ends the process at once. It is called at a second
            Ctrl-C, or if the main thread does not react in time, for example during a compilation.
        timeout: maximum seconds until the main thread reacts.
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
        # Name of the first signal or other cause of the stop; "" if no stop was requested.
        self.name = ""

    def is_set(self) -> bool:
        """Return whether a stop was requested."""
        return bool(self.name)

    def ask(self, name: str, is_urgent: bool = True) -> None:
        """Request to stop, from any thread.

        Args:
            name: name of the cause, for messages.
            is_urgent: whether the machine will stop soon, so that the main thread must react within
                the timeout.
        """
        with self._lock:
            is_first = not self.name
            self.name = self.name or name
            if is_urgent and self._timer is None and not self._is_answered:
                self._timer = threading.Timer(self._timeout, self._time_out)
                self._timer.daemon = True
                self._timer.start()
        if is_first:
            again = "; press Ctrl-C again to exit now" if name == name_of(signal.SIGINT) else ""
            self._log(f"{name}: finishing the step and saving{again}")

    def interrupt(self, error: BaseException) -> None:
        """Raise KeyboardInterrupt in the main thread because of an error in another thread."""
        self._is_over = True
        _thread.interrupt_main()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:
            raise KeyboardInterrupt

    def confirm(self) -> None:
        """Cancel the timeout, since the main thread has reacted. So saving has no time limit."""
        self._is_answered = True
        if self._timer is not None:
            self._timer.cancel()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.confirm()

    def _receive(self, number: int) -> None:
        # If `_is_over` is true, `interrupt` sent this signal.
        if self._is_over:
            return
        if number == signal.SIGINT and self.is_set():
            self._leave("interrupted again, so the last step was not saved; checkpoints are valid")
        else:
            self.ask(name_of(number))

    def _time_out(self) -> None:
        if not self._is_answered:
            self._leave(
                f"{self.name}: no step ended within {self._timeout:.0f} s, so the last step was not"
                " saved; checkpoints are valid"
            )


# Handlers that C code calls. The list keeps Python from freeing them.
_abort_handlers: list[Any] = []


def call_on_abort(act: Callable[[], None]) -> None:
    """Register a function to call if native code aborts in a thread other than the main thread.

    The function must end the process. The aborting thread sleeps meanwhile, so that abort() does
    not end the process first. A handler of Python's `signal` module would be called too late, since
    abort() ends the process as soon as the C handler returns.
    """

    def handle(number: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            threading.Thread(target=act, daemon=True).start()
            time.sleep(1 << 30)

    _abort_handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(handle))
    ctypes.CDLL(None).signal(signal.SIGABRT, _abort_handlers[-1])
