"""Two engines, one after the other, with engines whose state is a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bigbird_ja.train.engines import PhasedEngine, StepResult


class Counting:
    """Dispatches three steps ahead; its state is the step and what it was told to begin with."""

    ahead = 3

    def __init__(self, first_state: Callable[[], Any], calls: list[str], name: str) -> None:
        self._first_state, self._calls, self._name = first_state, calls, name
        self.bad: int | None = None

    def __getattr__(self, what: str) -> Callable[[], None]:
        return lambda *_: self._calls.append(f"{self._name} {what}")

    def begin(self) -> None:
        self._calls.append(f"{self._name} begin")
        self.state = dict(self._first_state())
        self.dispatched = self.finished = self.state["step"]

    def advance(self, limit: int) -> StepResult:
        self.dispatched = min(limit, self.finished + 1 + self.ahead)
        self.finished += 1
        return StepResult(self.finished)

    def settle(self) -> StepResult:
        self.finished = self.dispatched
        return StepResult(self.finished, {}, self.bad)

    def snapshot(self) -> Callable[[], Any]:
        assert self.finished == self.dispatched, "a state that is not settled"
        return lambda: {**self.state, "step": self.finished}


def phased(calls: list[str], change: int = 5) -> tuple[PhasedEngine, Counting]:
    short = Counting(lambda: {"step": 0}, calls, "short")
    engine = PhasedEngine(
        short,
        lambda state: Counting(state, calls, "whole"),
        change,
        lambda state: {**state, "was": "short"},
        lambda: calls.append("told"),
    )
    return engine, short


def test_the_second_engine_resumes_where_the_first_was_at_the_change() -> None:
    calls: list[str] = []
    engine, _ = phased(calls)
    engine.begin()
    assert calls == ["whole prepare", "short begin"], "what cannot run is known before any step"
    steps = [engine.advance(9).step for _ in range(5)]
    assert steps == [1, 2, 3, 4, 5] and engine.snapshot()()["step"] == 5
    assert len(calls) == 2, "a checkpoint of the change is the first one's"
    assert engine.advance(9).step == 6
    assert calls[2:] == ["short close", "whole begin", "told"]
    engine.settle()
    assert engine.snapshot()() == {"step": 9, "was": "short"}
    engine.close()
    assert calls[5:] == ["whole close"]


def test_a_nonfinite_step_of_the_first_phase_is_reported_before_the_second() -> None:
    calls: list[str] = []
    engine, short = phased(calls)
    engine.begin()
    for _ in range(5):
        engine.advance(9)
    short.bad = 4
    assert engine.advance(9).first_nonfinite_step == 4
    assert "whole begin" not in calls
    engine.close()
    assert calls[2:] == ["short close", "whole close"]
