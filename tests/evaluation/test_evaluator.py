"""Following a run ends by itself, whatever the run does."""

from __future__ import annotations

from typing import Any

import pytest

from bigbird_ja.evaluation import evaluator


def follow(script: dict[float, tuple[list[int], dict[str, Any] | None]]) -> tuple[list[int], float]:
    """The steps that were evaluated of a run, and after how many seconds that ended.

    Args:
        script: seconds since the beginning -> from then on, the checkpoints and the heartbeat.
    """
    now = 0.0

    def latest() -> tuple[list[int], dict[str, Any] | None]:
        return script[max(time for time in script if time <= now)]

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        assert now < 100_000, "it waits for ever"

    steps = evaluator.follow(
        lambda: latest()[0], lambda: latest()[1], stale_minutes=30, clock=lambda: now, sleep=sleep
    )
    return list(steps), now


def beat(time: float, state: str = "training", reason: str | None = None) -> dict[str, Any]:
    return {"time": time, "state": state, "reason": reason, "global_step": 30}


def test_each_checkpoint_once_and_the_last_one_after_the_end(capsys):
    finished = beat(100, "stopped", "finished")
    script = {0: ([10], beat(0)), 60: ([10, 20], beat(60)), 100: ([20, 30], finished)}
    assert follow(script)[0] == [10, 20, 30]
    assert "finished at step 30" in capsys.readouterr().err


@pytest.mark.parametrize(
    "heartbeat",
    [None, beat(0), beat(0, "stopped", "interrupted"), beat(0, "stopped", "bug")],
    ids=["none", "silent", "interrupted", "crashed"],
)
def test_a_run_without_a_heartbeat_is_given_up(heartbeat, capsys):
    steps, waited = follow({0: ([10], heartbeat)})
    assert steps == [10]
    assert 30 * 60 <= waited < 30 * 60 + 2 * evaluator.POLL_SECONDS
    assert "no heartbeat for 30 minutes" in capsys.readouterr().err


def test_an_interrupted_run_that_comes_back_is_followed_on():
    stopped, finished = beat(0, "stopped", "interrupted"), beat(1300, "stopped", "finished")
    script = {0: ([10], stopped), 1200: ([10, 20], beat(1200)), 1300: ([20, 30], finished)}
    assert follow(script)[0] == [10, 20, 30]


def test_a_heartbeat_from_the_future_does_not_hold_for_ever():
    steps, waited = follow({0: ([], beat(2000))})
    assert steps == [] and waited < 2000 + 30 * 60 + 2 * evaluator.POLL_SECONDS
