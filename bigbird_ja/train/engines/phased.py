"""Short sequences first, then whole ones: two engines, one after the other, as one.

Both have the same parameters and slots; each has a program and an input of its own. The second
program is compiled before the first step, so that what cannot run is known then. At the change the
state goes from one to the other through the host, as a checkpoint's would: a run that is killed
there, or just before or after, ends with the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja.evaluation.forward import Model
from bigbird_ja.train.engines import Engine, Finished, Snapshot

State = Mapping[str, Any]


class PhasedEngine:
    """See the module.

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
        whole: Callable[[Callable[[], State]], Engine],
        change: int,
        lengthened: Callable[[State], State],
        changed: Callable[[], None],
    ) -> None:
        self._engine, self._change, self._changed = short, change, changed
        self._lengthened = lengthened
        self._state: State | None = None
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

    def _hand_over(self) -> State:
        """The state with which the second engine begins; given once, as it is large."""
        state, self._state = self._state, None
        assert state is not None
        return state
