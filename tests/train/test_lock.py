"""The lock of a MODEL_DIR, with clocks and owners passed in."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.train.lock import STALE_SECONDS, LockLost, Owner, RunLock, this_owner

ELSEWHERE = Owner("far-away", "another boot", 7, 1, id="other")


class Time:
    """A clock that only sleeping moves; `then` is called after each sleep."""

    def __init__(self) -> None:
        self.now, self.then = 1000.0, lambda: None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


def make(place: str, time: Time, owner: Owner | None = None) -> tuple[RunLock, list[str]]:
    said: list[str] = []
    return RunLock(place, said.append, time.clock, time.sleep, owner or this_owner()), said


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "disk" else request.getfixturevalue("bucket")


def test_it_is_taken_renewed_and_released(place: str) -> None:
    lock, said = make(place, Time())
    assert lock.acquire() is None
    lock.renew()
    lock.renew()
    lock.check()
    assert storage.exists(storage.join(place, "lock.json"))
    lock.release()
    assert not storage.exists(storage.join(place, "lock.json")) and not said


def test_a_living_owner_on_this_machine_refuses_others(place: str) -> None:
    first, _ = make(place, Time())
    first.acquire()
    second, _ = make(place, Time())
    with pytest.raises(BadInput, match=f"process {os.getpid()}"):
        second.acquire()
    first.check()


def test_a_dead_owner_on_this_machine_is_taken_over_at_once(place: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead = dataclasses.replace(this_owner(), pid=child.pid)
    make(place, Time(), dead)[0].acquire()
    time = Time()
    lock, said = make(place, time)
    taken_from = lock.acquire()
    assert taken_from is not None and taken_from["pid"] == child.pid
    assert time.now == 1000.0 and "took over" in said[-1]


def test_a_process_id_that_is_used_again_is_no_owner(tmp_path: Path) -> None:
    reused = dataclasses.replace(this_owner(), started=1)
    make(str(tmp_path), Time(), reused)[0].acquire()
    assert make(str(tmp_path), Time())[0].acquire() is not None


def test_a_silent_owner_elsewhere_is_taken_over_after_a_while(place: str) -> None:
    time = Time()
    silent, _ = make(place, time, ELSEWHERE)
    silent.acquire()
    lock, said = make(place, time)
    assert lock.acquire() is not None
    assert time.now >= 1000.0 + STALE_SECONDS
    assert "far-away" in said[0]
    with pytest.raises(LockLost):
        silent.renew()
    silent.release()  # no longer his to give back
    lock.check()


def test_an_owner_elsewhere_that_renews_is_left_alone(place: str) -> None:
    time = Time()
    living, _ = make(place, time, ELSEWHERE)
    living.acquire()
    time.then = living.renew
    with pytest.raises(BadInput, match="far-away"):
        make(place, time)[0].acquire()


def test_an_owner_elsewhere_that_ends_makes_room(place: str) -> None:
    time = Time()
    ending, _ = make(place, time, ELSEWHERE)
    ending.acquire()
    time.then = ending.release
    make(place, time)[0].acquire()
    assert time.now < 1000.0 + STALE_SECONDS


def test_a_lock_that_vanished_is_lost(tmp_path: Path) -> None:
    lock, _ = make(str(tmp_path), Time())
    lock.acquire()
    (tmp_path / "lock.json").unlink()
    with pytest.raises(LockLost):
        lock.check()


def test_rubbish_in_the_file_is_a_stale_lock(tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_text("not json")
    make(str(tmp_path), Time())[0].acquire()
    assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()
