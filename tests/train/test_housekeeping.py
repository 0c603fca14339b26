"""Chores beside the steps, with the clock passed in."""

from __future__ import annotations

import pytest

from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.train.housekeeping import Chore, Housekeeping


def test_each_chore_has_its_own_interval() -> None:
    now, done = [0.0], []
    chores = [
        Chore("a", 10.0, lambda: done.append("a"), 10.0),
        Chore("b", 25.0, lambda: done.append("b"), 25.0),
    ]
    house = Housekeeping(chores, print, lambda: now[0])
    for now[0] in range(0, 51, 5):
        house.do_due()
    assert (done.count("a"), done.count("b")) == (5, 2)


def test_a_failure_is_said_once_and_tried_again() -> None:
    now, said, tries = [0.0], [], []

    def fail() -> None:
        tries.append(1)
        raise OSError("503")

    house = Housekeeping([Chore("heartbeat", 1.0, fail)], said.append, lambda: now[0])
    for now[0] in range(5):
        house.do_due()
        house.poll()
    assert len(tries) == 5 and said == ["heartbeat failed, will be tried again: 503"]


def test_a_lost_lock_ends_the_run() -> None:
    def lose() -> None:
        raise LeaseLost("gone")

    house = Housekeeping([Chore("lock", 1.0, lose)], print, lambda: 5.0)
    house.do_due()
    with pytest.raises(LeaseLost):
        house.poll()


def test_who_lost_the_lock_writes_no_more_heartbeats() -> None:
    now, beats = [0.0], []

    def lose() -> None:
        raise LeaseLost("gone")

    chores = [Chore("lock", 1.0, lose), Chore("heartbeat", 1.0, lambda: beats.append(now[0]))]
    house = Housekeeping(chores, print, lambda: now[0])
    for now[0] in range(5):
        house.do_due()
    assert beats == []
