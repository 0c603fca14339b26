"""One owner at a time: with clocks and owners passed in, and with real processes and kills."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage.lease import (
    STALE_SECONDS,
    Holder,
    Lease,
    LeaseLost,
    Owner,
    held,
    holder_of,
    this_owner,
)
from tests.storage import odd_paths

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


BUSY = "{owner} is at work here"


def make(path: str, time: Time, owner: Owner | None = None) -> tuple[Lease, list[str]]:
    said: list[str] = []
    lease = Lease(
        path, BUSY, said.append, clock=time.clock, sleep=time.sleep, owner=owner or this_owner()
    )
    return lease, said


@pytest.fixture(params=["disk", "bucket"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    where = str(tmp_path) if request.param == "disk" else request.getfixturevalue("bucket")
    return storage.join(where, "lock.json")


def test_it_is_taken_renewed_and_released(path: str) -> None:
    lease, said = make(path, Time())
    assert lease.acquire() is None
    lease.renew()
    lease.renew()
    lease.check()
    holder = holder_of(path)
    assert holder is not None and holder.pid == os.getpid() and not holder.has_ended
    lease.release()
    assert holder_of(path) is None and not storage.exists(path) and not said


def test_a_living_owner_on_this_machine_refuses_others(path: str) -> None:
    first, _ = make(path, Time())
    first.acquire()
    second, _ = make(path, Time())
    with pytest.raises(BadInput, match=f"process {os.getpid()} .* is at work here"):
        second.acquire()
    first.check()


def test_a_dead_owner_on_this_machine_is_taken_over_at_once(path: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead = dataclasses.replace(this_owner(), pid=child.pid)
    make(path, Time(), dead)[0].acquire()
    time = Time()
    lease, said = make(path, time)
    taken_from = lease.acquire()
    assert taken_from is not None and taken_from.pid == child.pid
    assert time.now == 1000.0 and "took over" in said[-1]


def test_a_process_id_that_is_used_again_is_no_owner(path: str) -> None:
    reused = dataclasses.replace(this_owner(), started=1)
    make(path, Time(), reused)[0].acquire()
    assert make(path, Time())[0].acquire() is not None


def test_a_silent_owner_elsewhere_is_taken_over_after_a_while(path: str) -> None:
    time = Time()
    silent, _ = make(path, time, ELSEWHERE)
    silent.acquire()
    lease, said = make(path, time)
    assert lease.acquire() is not None
    assert time.now >= 1000.0 + STALE_SECONDS
    assert "far-away" in said[0]
    for _ in range(2):
        with pytest.raises(LeaseLost, match="has taken over"):
            silent.check()
        with pytest.raises(LeaseLost):
            silent.renew()
    silent.release()  # no longer his to give back
    lease.check()


@pytest.mark.parametrize("skew", [-3600.0, -300.0, 0.0, 300.0, 1e9])
def test_an_owner_elsewhere_that_renews_is_left_alone_whatever_its_clock_says(
    path: str, skew: float
) -> None:
    time = Time()
    living, _ = make(path, time, ELSEWHERE)
    living._wall = lambda: 1.7e9 + skew  # the file's time, which nothing may rely on
    living.acquire()
    time.then = living.renew
    with pytest.raises(BadInput, match="far-away"):
        make(path, time)[0].acquire()
    living.check()


def test_an_owner_elsewhere_that_ends_makes_room(path: str) -> None:
    time = Time()
    ending, _ = make(path, time, ELSEWHERE)
    ending.acquire()
    time.then = ending.release
    make(path, time)[0].acquire()
    assert time.now < 1000.0 + STALE_SECONDS


def test_a_lease_that_vanished_is_lost(path: str) -> None:
    lease, _ = make(path, Time())
    lease.acquire()
    storage.write_bytes(path, b"rubbish")
    with pytest.raises(LeaseLost):
        lease.check()
    storage.delete(path)
    for ask in (lease.check, lease.renew, lease.check):
        with pytest.raises(LeaseLost):
            ask()


def test_an_answer_that_is_lost_is_no_theft(bucket: str, fake_gcs) -> None:
    lease, said = make(f"{bucket}/lock.json", Time())
    fake_gcs.fault(match="POST .*upload", do="lost_reply", times=1)
    assert lease.acquire() is None
    fake_gcs.fault(match="POST .*upload", do="lost_reply", times=1)
    lease.renew()
    lease.check()
    lease.release()
    assert not said


# What files of earlier versions say: `pretrain`, `launch`, `make-data` on a bucket.
EARLIER = (
    {"host": "far-away", "machine": "m", "pid": 7, "started": 1, "id": "x", "renewed": 1.0},
    {"host": "far-away", "machine": "m", "pid": 7, "token": "x", "beat": 3, "time": 1.0},
    {"host": "far-away", "pid": 7, "time": 9e9},
)  # fmt: skip


@pytest.mark.parametrize("values", EARLIER, ids=("pretrain", "launch", "make-data"))
def test_files_of_earlier_versions_are_understood(path: str, values: dict) -> None:
    storage.write_text(path, json.dumps(values))
    holder = holder_of(path)
    assert (
        holder is not None
        and "far-away" in holder.name
        and holder.renewed == values.get("renewed", values.get("time"))
    )
    time = Time()
    time.then = lambda: storage.write_text(path, json.dumps({**values, "beat": time.now}))
    with pytest.raises(BadInput, match="process 7 on host far-away is at work"):
        make(path, time)[0].acquire()
    time.then = lambda: None
    assert make(path, time)[0].acquire() is not None


def test_a_file_that_an_earlier_make_data_keeps_locked(tmp_path: Path) -> None:
    path = tmp_path / ".make-data.lock"
    path.write_text("process 7 on host far-away\n")
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match="process 7 on host far-away is at work"):
            make(str(path), Time())[0].acquire()
    time = Time()
    assert make(str(path), time)[0].acquire() is not None  # the kernel dropped it: its owner died
    assert time.now == 1000.0


@pytest.mark.parametrize(
    "content",
    ["", "not json", "[]", '{"pid": "7", "host": "x"}', '{"pid": 7}', "[" * 10_000, "\xff\xfe",
     '{"pid": 7, "host": null}', '{"host": "x", "pid": 7, "renewed": NaN}'],
)  # fmt: skip
def test_rubbish_is_said_and_left(path: str, content: str) -> None:
    storage.write_bytes(path, content.encode("latin-1"))
    with pytest.raises(BadInput, match=r"lock\.json.* not a lock file of ours.* then remove it"):
        make(path, Time())[0].acquire()
    assert storage.read_bytes(path) == content.encode("latin-1")
    assert holder_of(path) is None


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("years of work")
    for target in ("thesis", "none"):
        link = tmp_path / f"to-{target}"
        link.symlink_to(target)
        with pytest.raises(BadInput, match="not a lock file of ours"):
            make(str(link), Time())[0].acquire()
        assert link.is_symlink()
    assert (tmp_path / "thesis").read_text() == "years of work"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", sorted({"fifo", "socket", "device"} & odd_paths.KINDS.keys()))
def test_nothing_special_is_opened(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a lock file of ours"):
        make(odd_paths.make(kind, tmp_path), Time())[0].acquire()
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="not a lock file of ours"):
        make(str(tmp_path / "folder"), Time())[0].acquire()


def _contend(path: str, start, wins, release) -> None:
    start.wait(60)
    lease = Lease(path, BUSY, lambda text: None)
    try:
        lease.acquire()
    except BadInput:
        wins.put(0)
        return
    wins.put(1)
    release.wait(60)


@pytest.mark.parametrize("is_stale", [False, True])
def test_of_several_processes_one_wins(path: str, is_stale: bool) -> None:
    if is_stale:
        make(path, Time(), dataclasses.replace(this_owner(), started=1))[0].acquire()
    context = multiprocessing.get_context("spawn")
    start, wins, release = context.Event(), context.Queue(), context.Event()
    all_of_them = [
        context.Process(target=_contend, args=(path, start, wins, release)) for _ in range(4)
    ]
    for process in all_of_them:
        process.start()
    start.set()
    assert sum(wins.get(timeout=60) for _ in all_of_them) == 1
    release.set()
    for process in all_of_them:
        process.join(60)
    assert make(path, Time())[0].acquire() is not None  # the winner ended without releasing


def test_a_killed_owner_makes_room_at_once(path: str, fake_gcs) -> None:
    program = (
        "import sys, time\n"
        "from bigbird_ja.storage.lease import Lease, held\n"
        "with held(Lease(sys.argv[1], '{owner}', print)):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, path], stdout=subprocess.PIPE, env=fake_gcs.environ()
    )
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    with pytest.raises(BadInput, match=f"process {child.pid}"):
        make(path, Time())[0].acquire()
    os.kill(child.pid, signal.SIGSTOP)  # frozen is not gone
    with pytest.raises(BadInput, match=f"process {child.pid}"):
        make(path, Time())[0].acquire()
    child.kill()
    child.wait()
    child.stdout.close()
    time = Time()
    assert make(path, time)[0].acquire() is not None
    assert time.now == 1000.0


def test_a_thread_renews_while_the_block_runs_and_the_loser_is_told(path: str) -> None:
    lease, _ = make(path, Time())
    with pytest.raises(LeaseLost), held(lease, seconds=0.01):
        first = storage.read_with_token(path)[1]
        moved = threading.Event()
        while storage.read_with_token(path)[1] == first:
            moved.wait(0.01)
        lease.check()
        thief, _ = make(path, Time(), ELSEWHERE)
        storage.delete(path)
        thief.acquire()
        lease.check()
    assert holder_of(path) == dataclasses.replace(
        Holder(**ELSEWHERE.as_dict()),
        renewed=holder_of(path).renewed,  # type: ignore[union-attr]
    )


def test_a_failing_bucket_is_no_loss(bucket: str, fake_gcs, monkeypatch) -> None:
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", "0.2")
    lease, _ = make(f"{bucket}/lock.json", Time())
    lease.acquire()
    fake_gcs.fault(match=".*", do="status", code=503, times=-1)
    with pytest.raises(storage.StorageError) as found:
        lease.renew()
    assert not isinstance(found.value, LeaseLost)
    fake_gcs.clear()
    lease.renew()
    lease.check()
