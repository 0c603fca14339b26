"""Immediate end of a run from any thread, even if the main thread is stuck."""

from collections.abc import Callable

from bigbird_ja.errors import CommandError


class ProcessExit:
    """Immediate end of a run with an error, after registered callbacks.

    There is one object per run. The signal listener, the watchdog and the connection to a pod use
    it, as they may have to end the run while the main thread is stuck.

    Args:
        leave: callback that ends the process with the error, or interrupts the call in a user's
            program.

    Attributes:
        error: error that ends the run, or None.
    """

    def __init__(self, leave: Callable[[CommandError], None]) -> None:
        self._leave = leave
        self._calls: list[Callable[[CommandError], None]] = []
        self.error: CommandError | None = None

    def add_callback(self, call: Callable[[CommandError], None]) -> None:
        """Register a callback that gets the error before the run ends, in order."""
        self._calls.append(call)

    def __call__(self, error: CommandError) -> None:
        """Call the callbacks with an error, and end the run with it."""
        self.error = self.error or error
        for call in self._calls:
            call(error)
        self._leave(error)
