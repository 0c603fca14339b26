"""The loop's interface to the processes that train one run together, for a single process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bigbird_ja.errors import CommandError

if TYPE_CHECKING:
    import numpy as np


NamedArrays = Mapping[str, "np.ndarray"]


class SingleProcess:
    """A run in one process; `pod.Pod` has the same interface for several."""

    index, count, is_writer = 0, 1, True

    def barrier(self, name: str) -> None:
        """Wait until all processes have called this."""

    def share(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the value that `make` returns in the writer (JSON), in every process."""
        return make()

    def collect(
        self, key: str, arrays: NamedArrays, poll: Callable[[], None]
    ) -> list[NamedArrays] | None:
        """Return the arrays of all processes in the writer, and None in the others.

        `poll` is called meanwhile, and may raise to end the wait.
        """
        return [arrays]

    def next_limit(self, step: int, limit: int, ahead: int) -> int:
        """Return the step up to which the engine may go now, at most `limit`.

        To be called before each `advance`, which may dispatch `ahead` steps beyond the finished
        `step`.
        """
        return limit

    def saves_at(self, step: int, last: int, is_time: bool) -> bool:
        """Return whether all processes save at `step`.

        Args:
            step: last finished step.
            last: step of the save before.
            is_time: whether a save is due by this process's clock.
        """
        return is_time

    def stops_at(self, step: int, is_requested: bool) -> bool:
        """Return whether training stops at `step`; `is_requested` in this process."""
        return is_requested

    def fail(self, reason: str, message: str) -> None:
        """Report to the others that this process fails."""

    def explain(self, error: BaseException) -> CommandError | None:
        """Return the failure of another process that caused an error of this one, or None."""
        return None

    def finish(self) -> None:
        """Note that the run has finished in all processes."""
