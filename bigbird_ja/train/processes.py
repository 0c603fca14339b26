"""The processes that train one run together, as the loop sees them; here, a single one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bigbird_ja.process.errors import CommandError

if TYPE_CHECKING:
    import numpy as np


NamedArrays = Mapping[str, "np.ndarray"]


class SingleProcess:
    """Train in one process; what `train.pod` does in several."""

    index, count, is_writer = 0, 1, True

    def barrier(self, name: str) -> None:
        """Wait until all processes are here."""

    def share(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what the writer makes (as JSON), in every process."""
        return make()

    def collect(
        self, key: str, arrays: NamedArrays, poll: Callable[[], None]
    ) -> list[NamedArrays] | None:
        """Return the arrays of all processes, in the writer; None in the others.

        `poll` is called meanwhile, and ends the wait if it raises.
        """
        return [arrays]

    def next_limit(self, step: int, limit: int, ahead: int) -> int:
        """Return the step up to which the engine may go now, `limit` at most.

        Called before each `advance`, which may dispatch `ahead` steps beyond the finished `step`.
        """
        return limit

    def saves_at(self, step: int, last: int, is_time: bool) -> bool:
        """Return whether all processes save at `step`.

        By this process's clock it is time or is not (`is_time`); the save before was at step
        `last`.
        """
        return is_time

    def stops_at(self, step: int, is_requested: bool) -> bool:
        """Return whether training stops at `step`, where this process was requested to or not."""
        return is_requested

    def fail(self, reason: str, message: str) -> None:
        """Tell the others that this process ends badly."""

    def explain(self, error: BaseException) -> CommandError | None:
        """Return the end of another process that an error of this one comes from, or None."""
        return None

    def finish(self) -> None:
        """Note that the run has ended well, in all processes."""
