"""Interface between the training loop and the processes that train one run together.

`SingleProcess` implements it for a run in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from bigbird_ja.errors import CommandError

if TYPE_CHECKING:
    import numpy as np


NamedArrays = Mapping[str, "np.ndarray"]


class Processes(Protocol):
    """Interface of a process to the other processes of its run.

    Attributes:
        index: number of this process, from 0.
        count: number of processes.
        is_writer: whether this process writes to MODEL_DIR.
    """

    index: int
    count: int
    is_writer: bool

    def barrier(self, name: str) -> None:
        """Wait until all processes have called `barrier` with this name."""

    def share(self, name: str, make: Callable[[], Any]) -> Any:
        """Call `make` in the writer, and return its value in all processes.

        The value must be serializable as JSON.
        """

    def collect(
        self, key: str, arrays: NamedArrays, poll: Callable[[], None]
    ) -> list[NamedArrays] | None:
        """Send the arrays of all processes to the writer.

        In the writer the result is a list of all processes' arrays, in their order. In the other
        processes it is None. `poll` is called while the writer waits, and may raise to end the
        wait.
        """

    def choose_limit(self, step: int, limit: int, ahead: int) -> int:
        """Return the last step that the engine may dispatch now, at most `limit`.

        Call this before each `Engine.advance`, which may dispatch up to `ahead` steps beyond the
        last finished step, `step`.
        """

    def saves_at(self, step: int, last: int, is_time: bool) -> bool:
        """Return whether all processes save at `step`.

        Args:
            step: last finished step.
            last: step of the previous save.
            is_time: whether a save is due by this process's clock.
        """

    def stops_at(self, step: int, is_requested: bool) -> bool:
        """Return whether training stops at `step`.

        Args:
            step: last finished step.
            is_requested: whether this process was asked to stop.
        """

    def fail(self, reason: str, message: str) -> None:
        """Report to the other processes that this process fails."""

    def explain(self, error: BaseException) -> CommandError | None:
        """Return the failure of another process that caused an error of this one, or None."""

    def finish(self) -> None:
        """End the connection, once all processes have finished the run."""


class SingleProcess:
    """Implementation of `Processes` for a run in one process."""

    index, count, is_writer = 0, 1, True

    def barrier(self, name: str) -> None:
        """Implement `Processes.barrier`."""

    def share(self, name: str, make: Callable[[], Any]) -> Any:
        """Implement `Processes.share`."""
        return make()

    def collect(
        self, key: str, arrays: NamedArrays, poll: Callable[[], None]
    ) -> list[NamedArrays] | None:
        """Implement `Processes.collect`."""
        return [arrays]

    def choose_limit(self, step: int, limit: int, ahead: int) -> int:
        """Implement `Processes.choose_limit`."""
        return limit

    def saves_at(self, step: int, last: int, is_time: bool) -> bool:
        """Implement `Processes.saves_at`."""
        return is_time

    def stops_at(self, step: int, is_requested: bool) -> bool:
        """Implement `Processes.stops_at`."""
        return is_requested

    def fail(self, reason: str, message: str) -> None:
        """Implement `Processes.fail`."""

    def explain(self, error: BaseException) -> CommandError | None:
        """Implement `Processes.explain`."""
        return None

    def finish(self) -> None:
        """Implement `Processes.finish`."""
