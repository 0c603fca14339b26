"""What runs the step: TensorFlow's TPUEstimator, or JAX's runtime. `train.loop` knows no more.

An engine holds the state (parameters, slots, step) on the device from `begin` to `close`. It
dispatches steps, says which of them are finished and what they measured, and gives copies of the
state. All calls come from the main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from bigbird_ja.evaluation.forward import Model

# (host, hosts) -> that host's part of each global batch, from the first step on.
MakeBatches = Callable[[int, int], "tf.data.Dataset"]
# A copy of the state at one step: called in any thread, at most once, it gives the arrays.
Snapshot = Callable[[], "dict[str, np.ndarray]"]


@dataclass(frozen=True)
class Finished:
    """What an engine has finished since it was asked last."""

    step: int  # all steps up to this one
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # of logged ones
    first_bad: int | None = None  # first step of this process with a loss or gradient not finite

    def then(self, later: Finished) -> Finished:
        """Both together."""
        bad = later.first_bad if self.first_bad is None else self.first_bad
        return Finished(later.step, {**self.metrics, **later.metrics}, bad)


class Engine(Protocol):
    """See the module."""

    ahead: int  # steps that one `advance` dispatches beyond the last finished one, at most

    def prepare(self) -> None:
        """Builds of the program what can be built before the state is there; `begin` does so too.

        Raises:
            OutOfMemory: the program does not fit.
        """

    def begin(self) -> None:
        """Builds the program and brings the state to the device.

        Raises:
            BadInput: the device cannot be used.
        """

    def advance(self, limit: int) -> Finished:
        """Goes on until one more step is finished at least, by one device loop at most, and not
        beyond step `limit` where it can stop there.

        Raises:
            StorageError: the input ended.
        """

    def settle(self) -> Finished:
        """Waits until all that was dispatched is finished; its last step's metrics are there too,
        whether or not that step is logged. The next `snapshot` and `forward` are of that step."""

    def snapshot(self) -> Snapshot:
        """The state now. The copy may go on beside the next steps."""

    def forward(self) -> Model:
        """The model now, for evaluation; good until the next `advance`."""

    def start_profile(self, directory: str) -> None:
        """Profiles what runs from here on, into files below `directory`."""

    def stop_profile(self) -> None:
        """Ends the profile and writes it."""

    def close(self) -> None:
        """Ends all threads and gives the device back. Never raises."""
