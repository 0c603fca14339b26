"""The interface between the training loop and an engine.

An engine holds the state (parameters, slots, step) on the device from `begin` to `close`. It
dispatches steps, reports the finished ones with their metrics, and copies the state. All calls come
from the main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from bigbird_ja.model.forward import Model


# (host, hosts) -> that host's part of each global batch, from the first step on.
MakeBatches = Callable[[int, int], "tf.data.Dataset"]


# A copy of the state at one step: called in any thread, at most once, it gives the arrays.
Snapshot = Callable[[], "dict[str, np.ndarray]"]


@dataclass(frozen=True)
class StepResult:
    """The steps that an engine has finished since the last call."""

    step: int  # all steps up to this one
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # of logged ones
    first_nonfinite_step: int | None = None  # with a loss or gradients of NaN or infinity

    def then(self, later: StepResult) -> StepResult:
        """Join two results, the later one last."""
        first = self.first_nonfinite_step
        first = later.first_nonfinite_step if first is None else first
        return StepResult(later.step, {**self.metrics, **later.metrics}, first)


class Engine(Protocol):
    """The calls that the loop makes; see the module."""

    ahead: int  # steps that one `advance` dispatches beyond the last finished one, at most

    def begin(self) -> None:
        """Build the program and bring the state to the device.

        Raises:
            BadInput: the device cannot be used.
            OutOfMemory: the program does not fit.
        """

    def advance(self, limit: int) -> StepResult:
        """Run until at least one more step is finished.

        That is at most one device loop, and not beyond step `limit` where the engine can stop
        there.

        Raises:
            StorageError: the input ended.
        """

    def settle(self) -> StepResult:
        """Wait until all dispatched steps are finished.

        Adds the last one's metrics, whether or not it is logged. The next `snapshot` and `forward`
        are of that step.
        """

    def snapshot(self) -> Snapshot:
        """Take the state as it is now; it may be copied while the next steps run."""

    def forward(self) -> Model:
        """Return the model as it is now, for evaluation; valid until the next `advance`."""

    def close(self) -> None:
        """End all threads and release the device. Never raises."""
