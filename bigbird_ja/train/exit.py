"""The end of a run from any thread, whatever its main thread does."""

from collections.abc import Callable

from bigbird_ja.errors import CommandError


class ProcessExit:
    """Immediate end of a run with an error, after the calls that were registered for it.

    There is one for a run. It is passed to all that may have to end a run whose main thread is
    stuck: the listener for signals, the watchdog, and the connection to a pod.

    Args:
        leave: ends the process with the error or, in a program that calls us, interrupts the call.

    Attributes:
        error: the error, once the run is to end.
    """

    def __init__(self, leave: Callable[[CommandError], None]) -> None:
        self._leave = leave
        self._calls: list[Callable[[CommandError], None]] = []
        self.error: CommandError | None = None

    def before(self, call: Callable[[CommandError], None]) -> None:
        """Register a call that gets the error before the run ends; calls run in order."""
        self._calls.append(call)

    def __call__(self, error: CommandError) -> None:
        """End the run."""
        self.error = self.error or error
        for call in self._calls:
            call(error)
        self._leave(error)
