"""The end of this process from any thread, whatever its main thread does."""

from collections.abc import Callable

from bigbird_ja.process.errors import CommandError
from bigbird_ja.process.streams import leave


class ProcessExit:
    """Ends the process at once with an error, after the calls that were registered for that.

    One object for the process. All that may find the main thread stuck get it: signals, the
    watchdog, and the other processes of a pod.

    Args:
        leave: prints the error and ends the process.
    """

    def __init__(self, leave: Callable[[CommandError], None] = leave) -> None:
        self._leave = leave
        self._calls: list[Callable[[CommandError], None]] = []

    def before(self, call: Callable[[CommandError], None]) -> None:
        """Register a call that gets the error before the process ends; the first comes first."""
        self._calls.append(call)

    def __call__(self, error: CommandError) -> None:
        """End the process."""
        for call in self._calls:
            call(error)
        self._leave(error)
