"""The threads beside the steps, with the clock passed in."""

from __future__ import annotations

import threading

import pytest

from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.train.watchdog import Periodic, Task, Watchdog


@pytest.mark.parametrize(
    ("limit", "at", "silences"), [(60.0, 59.0, []), (60.0, 61.0, [61.0]), (0.0, 1e9, [])]
)
def test_the_watchdog_acts_after_its_limit_and_zero_is_off(
    limit: float, at: float, silences: list[float]
) -> None:
    now, called = [0.0], threading.Event()
    seen: list[float] = []

    def on_stall(silence: float) -> None:
        seen.append(silence)
        called.set()

    with Watchdog(limit, on_stall, clock=lambda: now[0], poll=0.01) as watchdog:
        now[0] = at
        called.wait(10 if silences else 0.1)
        watchdog.tick()
    assert seen == silences


def test_each_task_has_its_own_interval() -> None:
    now, done = [0.0], []
    tasks = [
        Task("a", 10.0, lambda: done.append("a"), 10.0),
        Task("b", 25.0, lambda: done.append("b"), 25.0),
    ]
    periodic = Periodic(tasks, print, lambda: now[0])
    for now[0] in range(0, 51, 5):
        periodic.run_due()
    assert (done.count("a"), done.count("b")) == (5, 2)


def test_a_failure_is_logged_once_and_retried() -> None:
    now, logged, tries = [0.0], [], []

    def fail() -> None:
        tries.append(1)
        raise OSError("503")

    periodic = Periodic([Task("heartbeat", 1.0, fail)], logged.append, lambda: now[0])
    for now[0] in range(5):
        periodic.run_due()
        periodic.poll()
    assert len(tries) == 5 and logged == ["heartbeat failed, will be tried again: 503"]


def test_a_lost_lock_ends_the_run_and_no_more_heartbeats_are_written() -> None:
    now, beats = [0.0], []

    def lose() -> None:
        raise LeaseLost("gone")

    tasks = [Task("lock", 1.0, lose), Task("heartbeat", 1.0, lambda: beats.append(now[0]))]
    periodic = Periodic(tasks, print, lambda: now[0])
    for now[0] in range(5):
        periodic.run_due()
    assert beats == []
    with pytest.raises(LeaseLost):
        periodic.poll()
