"""What runs the step: TensorFlow's TPUEstimator, or JAX's runtime. `train.loop` knows no more.

An engine holds the state (parameters, slots, step) on the device from `begin` to `close`. It
dispatches steps, says which of them are finished and what they measured, and gives copies of the
state. All calls come from the main thread.
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


class PhasedEngine:
    """Short sequences first, then whole ones: two engines, one after the other, as one.

    Both have the same parameters and slots; each has a program and an input of its own. The second
    program is compiled before the first step, so that what cannot run is known then. At the change
    the state goes from one to the other through the host, as a checkpoint's would: a run that is
    killed there, or just before or after, ends with the same weights.

    Args:
        short: the engine of the first phase, which begins before step `change`.
        whole: makes the other, given what gives its first state.
        change: steps of the first phase.
        lengthened: what becomes of the first phase's last state.
        changed: told when the first phase is over.
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

    def advance(self, limit: int) -> Finished:
        """As the engine of the phase; never across the change."""
        if self._next is None:
            return self._engine.advance(limit)
        if self._step >= self._change:
            bad = self._engine.settle().first_bad
            if bad is not None:
                return Finished(self._step, {}, bad)
            self._go_on_with(self._next)
            return self._engine.advance(limit)
        done = self._engine.advance(min(limit, self._change))
        self._step = done.step
        return done

    def settle(self) -> Finished:
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

    def start_profile(self, directory: str) -> None:
        """As the engine of the phase."""
        self._engine.start_profile(directory)

    def stop_profile(self) -> None:
        """As the engine of the phase."""
        self._engine.stop_profile()

    def close(self) -> None:
        """Ends both."""
        self._engine.close()
        if self._next is not None:
            self._next.close()

    def _go_on_with(self, engine: Engine) -> None:
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
