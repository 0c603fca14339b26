"""The end of this process from any thread, whatever its main thread does."""

from collections.abc import Callable

from bigbird_ja.errors import CommandError
from bigbird_ja.process.streams import leave


class ProcessExit:
    """Immediate end of the process with an error, after the calls that were registered for it.

    There is one for the process. It is passed to all that may have to end a process whose main
    thread is stuck: the listener for signals, the watchdog, and the connection to a pod.

    Args:
        leave: prints the error and ends the process.
    """

    def __init__(self, leave: Callable[[CommandError], None] = leave) -> None:
        self._leave = leave
        self._calls: list[Callable[[CommandError], None]] = []

    def before(self, call: Callable[[CommandError], None]) -> None:
        """Register a call that gets the error before the process ends; calls run in order."""
        self._calls.append(call)

    def __call__(self, error: CommandError) -> None:
        """End the process."""
        for call in self._calls:
            call(error)
        self._leave(error)
