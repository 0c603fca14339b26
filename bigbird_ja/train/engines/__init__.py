"""What runs the step: TensorFlow's TPUEstimator, or JAX's runtime. `train.train` sees only this.

An engine holds the state (parameters, slots, step) on the device from `begin` to `close`. It
dispatches steps, returns which of them are finished and their metrics, and copies the state. All
calls come from the main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from bigbird_ja.evaluation.forward import Model

# (host, hosts) -> that host's part of each global batch, from the first step on.
MakeBatches = Callable[[int, int], "tf.data.Dataset"]
# A copy of the state at one step: called in any thread, at most once, it gives the arrays.
Snapshot = Callable[[], "dict[str, np.ndarray]"]


@dataclass(frozen=True)
class StepResult:
    """The steps that an engine has finished since the last call."""

    step: int  # all steps up to this one
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # of logged ones
    first_nonfinite_step: int | None = None  # whose loss or gradients were NaN or infinite

    def then(self, later: StepResult) -> StepResult:
        """Both together."""
        first = self.first_nonfinite_step
        first = later.first_nonfinite_step if first is None else first
        return StepResult(later.step, {**self.metrics, **later.metrics}, first)


class Engine(Protocol):
    """See the module."""

    ahead: int  # steps that one `advance` dispatches beyond the last finished one, at most

    def prepare(self) -> None:
        """Builds what can be built without the state; `begin` does so too.

        Raises:
            OutOfMemory: the program does not fit.
        """

    def begin(self) -> None:
        """Builds the program and brings the state to the device.

        Raises:
            BadInput: the device cannot be used.
        """

    def advance(self, limit: int) -> StepResult:
        """Runs until at least one more step is finished: at most one device loop, and not beyond
        step `limit` where the engine can stop there.

        Raises:
            StorageError: the input ended.
        """

    def settle(self) -> StepResult:
        """Waits until all dispatched steps are finished, and adds the last one's metrics, whether
        or not it is logged. The next `snapshot` and `forward` are of that step."""

    def snapshot(self) -> Snapshot:
        """The state now; it may be copied while the next steps run."""

    def forward(self) -> Model:
        """The model now, for evaluation; valid until the next `advance`."""

    def close(self) -> None:
        """Ends all threads and releases the device. Never raises."""


class PhasedEngine:
    """Short sequences first, then whole ones: two engines, one after the other, as one.

    Both have the same parameters and slots; each has a program and an input of its own. The second
    program is compiled before the first step, so that what cannot run is known then. At the change
    the state goes from one to the other through the host, as a checkpoint's would: a run that is
    killed there, or just before or after, ends with the same weights.

    Args:
        short: the engine of the first phase, which begins before step `change`.
        whole: makes the other engine, given a function that returns its first state.
        change: steps of the first phase.
        lengthened: turns the first phase's last state into the second's first.
        changed: called when the first phase is over.
    """

    def __init__(
        self,
        short: Engine,
        whole: Callable[[Callable[[], Any]], Engine],
        change: int,
        lengthened: Callable[[Any], Any],
        changed: Callable[[], None],
    ) -> None:
        self._engine, self._change, self._changed = short, change, changed
        self._lengthened = lengthened
        self._state: Any = None
        self._next: Engine | None = whole(self._hand_over)
        self.ahead = short.ahead
        self._step = 0

    def begin(self) -> None:
        """Builds both programs and brings the state to the first one's devices."""
        if self._next is not None:
            self._next.prepare()
        self._engine.begin()

    def prepare(self) -> None:
        """Both are prepared by `begin`."""

    def advance(self, limit: int) -> StepResult:
        """As the engine of the phase; never across the change."""
        if self._next is None:
            return self._engine.advance(limit)
        if self._step >= self._change:
            bad = self._engine.settle().first_nonfinite_step
            if bad is not None:
                return StepResult(self._step, {}, bad)
            self._change_to(self._next)
            return self._engine.advance(limit)
        done = self._engine.advance(min(limit, self._change))
        self._step = done.step
        return done

    def settle(self) -> StepResult:
        """As the engine of the phase."""
        done = self._engine.settle()
        self._step = done.step
        return done

    def snapshot(self) -> Snapshot:
        """As the engine of the phase: at the change, the first one's state."""
        return self._engine.snapshot()

    def forward(self) -> Model:
        """As the engine of the phase."""
        return self._engine.forward()

    def close(self) -> None:
        """Ends both."""
        self._engine.close()
        if self._next is not None:
            self._next.close()

    def _change_to(self, engine: Engine) -> None:
        self._state = self._lengthened(self._engine.snapshot()())
        self._engine.close()
        self._engine, self._next = engine, None
        engine.begin()
        self._changed()

    def _hand_over(self) -> Any:
        """The state with which the second engine begins; given once, as it is large."""
        state, self._state = self._state, None
        assert state is not None
        return state
