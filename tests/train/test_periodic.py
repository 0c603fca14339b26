"""Periodic tasks, with a clock passed in."""

import pytest

from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.train.job import Dependencies
from bigbird_ja.train.periodic import Periodic


def test_each_task_has_its_own_interval_and_a_failure_is_logged_once_and_retried():
    now, done, logged = [0.0], [], []

    def fail():
        done.append("b")
        raise OSError("503")

    tasks = {"a": (10.0, lambda: done.append("a")), "b": (25.0, fail)}
    periodic = Periodic(tasks, Dependencies(log=logged.append, monotonic=lambda: now[0]))
    for now[0] in range(0, 51, 5):
        periodic.run_due()
        periodic.poll()
    assert (done.count("a"), done.count("b")) == (5, 2)
    assert logged == ["b failed, will be tried again: 503"]


def test_a_lost_lock_ends_the_run_and_no_more_heartbeats_are_written():
    now, beats = [0.0], []

    def lose():
        raise LeaseLost("gone")

    tasks = {"lock": (1.0, lose), "heartbeat": (1.0, lambda: beats.append(now[0]))}
    periodic = Periodic(tasks, Dependencies(monotonic=lambda: now[0]))
    for now[0] in range(5):
        periodic.run_due()
    assert beats == []
    with pytest.raises(LeaseLost):
        periodic.poll()
