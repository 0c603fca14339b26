"""One owner at a time: with clocks and owners passed in, and with real processes and kills."""

from __future__ import annotations

import dataclasses
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
from bigbird_ja.storage.decode import FORMAT_VERSION
from bigbird_ja.storage.lease import (
    STALE_SECONDS,
    Holder,
    Lease,
    LeaseLost,
    held,
    holder_of,
    this_owner,
)
from tests.storage import odd_paths

ELSEWHERE = Holder(
    host="far-away", machine="another boot", pid=7, started=1, id="other",
    format_version=FORMAT_VERSION,
)  # fmt: skip


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


def make(path: str, time: Time, owner: Holder | None = None) -> tuple[Lease, list[str]]:
    logged: list[str] = []
    lease = Lease(
        path, BUSY, logged.append, clock=time.clock, sleep=time.sleep, owner=owner or this_owner()
    )
    return lease, logged


@pytest.fixture(params=["disk", "bucket"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    where = str(tmp_path) if request.param == "disk" else request.getfixturevalue("bucket")
    return storage.join(where, "lock.json")


def test_it_is_taken_renewed_and_released(path: str) -> None:
    lease, logged = make(path, Time())
    assert lease.acquire() is None
    lease.renew()
    lease.renew()
    lease.check()
    holder = holder_of(path)
    assert holder is not None and holder.pid == os.getpid() and not holder.has_ended
    lease.release()
    assert holder_of(path) is None and not storage.exists(path) and not logged


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
    for changes in ({"pid": child.pid}, {"started": 1}):  # gone; its process id is used again
        make(path, Time(), dataclasses.replace(this_owner(), **changes))[0].acquire()
        now = Time()
        lease, logged = make(path, now)
        taken_from = lease.acquire()
        assert taken_from is not None and changes.items() <= dataclasses.asdict(taken_from).items()
        assert now.now == 1000.0 and "took over" in logged[-1]
        lease.release()


def test_a_silent_owner_elsewhere_is_taken_over_after_a_while(path: str) -> None:
    now = Time()
    silent, _ = make(path, now, ELSEWHERE)
    silent.acquire()
    lease, logged = make(path, now)
    assert lease.acquire() is not None
    assert now.now >= 1000.0 + STALE_SECONDS
    assert "far-away" in logged[0]
    for ask in (silent.renew, silent.check, silent.renew):  # the first still knows its own token
        with pytest.raises(LeaseLost, match="has taken over"):
            ask()
        lease.check()
    silent.release()  # no longer his to give back
    lease.check()


@pytest.mark.parametrize("skew", [-3600.0, -300.0, 0.0, 300.0, 1e9])
def test_an_owner_elsewhere_that_renews_is_left_alone_whatever_its_clock_says(
    path: str, skew: float
) -> None:
    now = Time()
    living, _ = make(path, now, ELSEWHERE)
    living._wall = lambda: 1.7e9 + skew  # the file's time, which nothing may rely on
    living.acquire()
    now.then = living.renew
    with pytest.raises(BadInput, match="far-away"):
        make(path, now)[0].acquire()
    living.check()


def test_an_owner_elsewhere_that_ends_makes_room(path: str) -> None:
    now = Time()
    ending, _ = make(path, now, ELSEWHERE)
    ending.acquire()
    now.then = ending.release
    make(path, now)[0].acquire()
    assert now.now < 1000.0 + STALE_SECONDS


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
    lease, logged = make(f"{bucket}/lock.json", Time())
    fake_gcs.fault(match="POST .*upload", do="lost_reply", times=1)
    assert lease.acquire() is None
    fake_gcs.fault(match="POST .*upload", do="lost_reply", times=1)
    lease.renew()
    lease.check()
    lease.release()
    assert not logged


@pytest.mark.parametrize(
    "content",
    ["", "not json", "[]", '{"pid": 7}', "[" * 10_000, "\xff\xfe",
     json.dumps({**dataclasses.asdict(ELSEWHERE), "pid": "7"}),
     json.dumps({**dataclasses.asdict(ELSEWHERE), "renewed": None}),
     json.dumps({**dataclasses.asdict(ELSEWHERE), "format_version": ""})],
)  # fmt: skip
def test_what_is_no_lease_of_this_version_is_refused_and_left(path: str, content: str) -> None:
    storage.write_bytes(path, content.encode("latin-1"))
    with pytest.raises(BadInput, match=r"lock\.json.* not a lock file of ours.* then remove it"):
        make(path, Time())[0].acquire()
    assert storage.read_bytes(path) == content.encode("latin-1")
    assert holder_of(path) is None


def test_a_link_is_never_followed_and_nothing_special_is_opened(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / "folder").mkdir()
    links = [tmp_path / f"to-{name}" for name in ("thesis", "none")]
    for link in links:
        link.symlink_to(link.name.removeprefix("to-"))
    special = sorted({"fifo", "socket", "device"} & odd_paths.KINDS.keys())
    for kind in special:
        (tmp_path / kind).mkdir()
    odd = [odd_paths.make(kind, tmp_path / kind) for kind in special]
    for path in [*odd, *map(str, links), str(tmp_path / "folder")]:
        with pytest.raises(BadInput, match="not a lock file of ours"):
            make(path, Time())[0].acquire()
    assert all(link.is_symlink() for link in links) and not (tmp_path / "none").exists()
    assert (tmp_path / "thesis").read_text() == "years of work"


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
    now = Time()
    assert make(path, now)[0].acquire() is not None
    assert now.now == 1000.0


class Paced(Lease):
    """Renews once for each `turn`, or `freely`; `done` counts the renewals."""

    def __init__(self, path: str) -> None:
        super().__init__(path, BUSY, lambda text: None)
        self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.freely = threading.Event()

    def renew(self) -> None:
        if not self.freely.is_set():
            self.turn.acquire()
        try:
            super().renew()
        finally:
            self.done.release()


def test_a_thread_renews_while_the_block_runs_and_the_loser_notices(path: str) -> None:
    lease = Paced(path)
    stolen = json.dumps(dataclasses.asdict(ELSEWHERE)).encode()
    with pytest.raises(LeaseLost, match="far-away has taken over"), held(lease, seconds=0):
        for _ in range(2):
            before = storage.read_with_token(path)[1]
            lease.turn.release()
            assert lease.done.acquire(timeout=60)
            assert storage.read_with_token(path)[1] != before
        lease.check()
        # Nobody renews meanwhile: the thread waits for its turn.
        assert storage.replace_if(path, stolen, storage.read_with_token(path)[1])
        lease.freely.set()
        lease.turn.release()
        assert lease.done.acquire(timeout=60)
        lease.check()
    assert holder_of(path) == ELSEWHERE  # neither renewed nor released by the loser


def test_a_failing_bucket_is_no_loss(bucket: str, fake_gcs, monkeypatch) -> None:
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", "0.2")
    lease, _ = make(f"{bucket}/lock.json", Time())
    lease.acquire()
    fake_gcs.fault(match=".*", do="status", code=503, times=-1)
    with pytest.raises(storage.StorageError) as result:
        lease.renew()
    assert not isinstance(result.value, LeaseLost)
    fake_gcs.clear()
    lease.renew()
    lease.check()
