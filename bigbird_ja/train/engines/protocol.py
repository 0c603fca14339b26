"""Interface between the training loop and an engine.

An engine owns the state (parameters, optimizer slots, step) on the device from `begin` to `close`.
It dispatches steps, reports finished steps with their metrics, and copies the state. All calls come
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


# Function of (host, number of hosts) that returns a dataset of the host's part of each global
# batch, from the restored step on.
MakeBatches = Callable[[int, int], "tf.data.Dataset"]


# Function that returns a copy of all variables at one step, by name. It may be called once, in any
# thread.
Snapshot = Callable[[], "dict[str, np.ndarray]"]


@dataclass(frozen=True)
class StepResult:
    """Steps that an engine has finished since its previous result."""

    step: int  # Last finished step.
    # Metrics by logged step.
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    # First step with NaN or infinite loss or gradients.
    first_nonfinite_step: int | None = None

    def extend(self, later: StepResult) -> StepResult:
        """Return the combination of this result and a later one."""
        first = self.first_nonfinite_step
        first = later.first_nonfinite_step if first is None else first
        return StepResult(later.step, {**self.metrics, **later.metrics}, first)


class Engine(Protocol):
    """Interface of an engine, which runs the training step on devices."""

    # Maximum number of steps that `advance` dispatches beyond the last finished one.
    ahead: int

    def begin(self) -> None:
        """Build the program and place the state on the device.

        Raises:
            BadInput: The device cannot be used.
            OutOfMemory: The program does not fit in the memory.
        """

    def advance(self, limit: int) -> StepResult:
        """Run until at least one more step is finished.

        An engine that can stop at any step does not run beyond step `limit`. TPUEstimator can stop
        only at the end of a device loop, so it runs one loop.

        Raises:
            StorageError: The input ended.
        """

    def settle(self) -> StepResult:
        """Wait until all dispatched steps are finished.

        The result contains the metrics of the last step, even if that is not a logged step. The
        next `snapshot` and `forward` are from that step.
        """

    def snapshot(self) -> Snapshot:
        """Take a snapshot of the state, which may be fetched while the next steps run."""

    def forward(self) -> Model:
        """Return the current model for evaluation, valid until the next `advance`."""

    def close(self) -> None:
        """End all threads and release the device, without raising."""
