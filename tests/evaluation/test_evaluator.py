"""Following a run ends by itself, whatever the run does."""

from __future__ import annotations

from typing import Any

import pytest

from bigbird_ja.evaluation import evaluator


class World:
    """A run as a script of instants: at each time new checkpoints and a heartbeat."""

    def __init__(self, script: dict[float, tuple[list[int], dict[str, Any] | None]]) -> None:
        self.now = 1000.0
        self._script = script
        self.slept = 0

    def _state(self) -> tuple[list[int], dict[str, Any] | None]:
        past = [t for t in self._script if 1000 + t <= self.now]
        return self._script[max(past)] if past else ([], None)

    def steps(self) -> list[int]:
        return self._state()[0]

    def heartbeat(self) -> dict[str, Any] | None:
        return self._state()[1]

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        assert self.slept < 10_000, "it waits for ever"
        self.now += seconds

    def follow(self, stale_minutes: float = 60.0) -> list[int]:
        steps = evaluator.follow(
            self.steps, self.heartbeat, stale_minutes=stale_minutes, clock=lambda: self.now,
            sleep=self.sleep,
        )  # fmt: skip
        return list(steps)


def _beat(time: float, state: str = "training", reason: str | None = None, step: int = 0) -> dict:
    return {"time": 1000 + time, "state": state, "reason": reason, "global_step": step}


def test_each_checkpoint_once_and_the_last_one_after_the_end(capsys):
    world = World(
        {
            0: ([10], _beat(0)),
            60: ([10, 20], _beat(60)),
            100: ([20, 30], _beat(100, "stopped", "finished", 30)),
        }
    )
    assert world.follow() == [10, 20, 30]
    assert "finished at step 30" in capsys.readouterr().err


@pytest.mark.parametrize(
    "heartbeat",
    [None, _beat(0), _beat(0, "stopped", "interrupted"), _beat(0, "stopped", "bug")],
    ids=["none", "silent", "interrupted", "crashed"],
)
def test_a_run_without_a_heartbeat_is_given_up(heartbeat, capsys):
    world = World({0: ([10], heartbeat)})
    assert world.follow(stale_minutes=30) == [10]
    assert 30 * 60 <= world.now - 1000 < 30 * 60 + 2 * evaluator.POLL_SECONDS
    assert "no heartbeat for 30 minutes" in capsys.readouterr().err


def test_an_interrupted_run_that_comes_back_is_followed_on():
    world = World(
        {
            0: ([10], _beat(0, "stopped", "interrupted")),
            1200: ([10, 20], _beat(1200)),
            1300: ([20, 30], _beat(1300, "stopped", "finished", 30)),
        }
    )
    assert world.follow(stale_minutes=30) == [10, 20, 30]


def test_a_heartbeat_from_the_future_does_not_hold_for_ever():
    assert evaluator.why_ended(_beat(10_000), started=1000.0, now=1000.0, stale_minutes=5) is None
    world = World({0: ([], _beat(2000))})
    assert world.follow(stale_minutes=5) == [] and world.now < 1000 + 2000 + 400
