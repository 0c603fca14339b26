"""Immediate end of a run from any thread, even if the main thread is stuck."""

from collections.abc import Callable

from bigbird_ja.errors import CommandError


class ProcessExit:
    """Callable that ends a run at once with an error, after calling registered callbacks.

    There is one object per run. The signal listener, the watchdog and the connection to a pod use
    it, as they may have to end the run while the main thread is stuck.

    Args:
        leave: callback that ends the process with the error. In a user's own program, it only
            interrupts the call of `pretrain`.

    Attributes:
        error: error that ends the run, or None.
    """

    def __init__(self, leave: Callable[[CommandError], None]) -> None:
        self._leave = leave
        self._calls: list[Callable[[CommandError], None]] = []
        self.error: CommandError | None = None

    def add_callback(self, call: Callable[[CommandError], None]) -> None:
        """Register a callback, which is called with the error before the run ends.

        Callbacks are called in the order of their registration.
        """
        self._calls.append(call)

    def __call__(self, error: CommandError) -> None:
        """Call the callbacks with an error, and end the run with that error."""
        self.error = self.error or error
        for call in self._calls:
            call(error)
        self._leave(error)
