"""One owner at a time: with clocks and owners passed in, and with real processes and kills."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage import lease as lease_lib
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

BUSY = "{owner} is at work here"
ELSEWHERE = Holder(
    host="far-away",
    machine="another boot",
    pid=7,
    started=1,
    id="other",
    format_version=FORMAT_VERSION,
)


class Time:
    """A clock that only sleeping moves; `then` is called after each sleep."""

    def __init__(self):
        self.now, self.then = 1000.0, lambda: None

    def sleep(self, seconds):
        self.now += seconds
        self.then()


def make(path, time=None, owner=None):
    """A lease, and what it logs."""
    time, logged = time or Time(), []
    lease = Lease(path, BUSY, logged.append, clock=lambda: time.now, sleep=time.sleep, owner=owner)
    return lease, logged


@pytest.fixture
def path(base):
    return f"{base}/lock.json"


def test_it_is_taken_renewed_and_released(path):
    lease, logged = make(path)
    assert lease.acquire() is None
    lease.renew()
    lease.renew()
    lease.check()
    holder = holder_of(path)
    assert holder is not None and holder.pid == os.getpid() and not holder.has_ended
    lease.release()
    assert holder_of(path) is None and not storage.exists(path) and not logged


def test_a_silent_owner_elsewhere_is_taken_over_after_a_while(path):
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


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 1e9])
def test_an_owner_elsewhere_that_renews_is_left_alone_whatever_its_clock_says(path, skew):
    now = Time()
    living, _ = make(path, now, ELSEWHERE)
    living._wall = lambda: 1.7e9 + skew  # the file's time, which nothing may rely on
    living.acquire()
    now.then = living.renew
    with pytest.raises(BadInput, match="far-away"):
        make(path, now)[0].acquire()
    living.check()
    refused, now.then = now.now, living.release
    make(path, now)[0].acquire()
    assert now.now < refused + STALE_SECONDS, "one that ends makes room at once"


def test_a_lease_that_vanished_is_lost(path):
    lease, _ = make(path)
    lease.acquire()
    storage.write_bytes(path, b"rubbish")
    with pytest.raises(LeaseLost):
        lease.check()
    storage.delete(path)
    for ask in (lease.check, lease.renew, lease.check):
        with pytest.raises(LeaseLost):
            ask()


def test_lost_answers_and_a_failing_bucket_are_no_loss(bucket, fake_gcs, monkeypatch):
    lease, logged = make(f"{bucket}/lock.json")
    fake_gcs.fault(match="POST .*upload", do="lost_reply", times=1)
    assert lease.acquire() is None
    fake_gcs.fault(match="POST .*upload", do="lost_reply", times=1)
    lease.renew()
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", "0.2")
    fake_gcs.fault(match=".*", do="status", code=503, times=-1)
    with pytest.raises(StorageError) as result:
        lease.renew()
    assert not isinstance(result.value, LeaseLost)
    fake_gcs.clear()
    lease.renew()
    lease.check()
    assert not logged


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json",
        "\xff\xfe",
        json.dumps({**dataclasses.asdict(ELSEWHERE), "pid": "7"}),
        json.dumps({**dataclasses.asdict(ELSEWHERE), "format_version": ""}),
    ],
)
def test_what_is_no_lease_of_this_version_is_refused_and_left(path, content):
    storage.write_bytes(path, content.encode("latin-1"))
    with pytest.raises(BadInput, match=r"lock\.json.* not a lock file of ours.* then remove it"):
        make(path)[0].acquire()
    assert storage.read_bytes(path) == content.encode("latin-1")
    assert holder_of(path) is None


def test_a_link_is_never_followed_and_nothing_special_is_opened(tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-thesis").symlink_to("thesis")
    (tmp_path / "to-none").symlink_to("none")
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "folder", "to-thesis", "to-none"):
        with pytest.raises(BadInput, match=r"not a lock file of ours|a FIFO"):
            make(f"{tmp_path}/{name}")[0].acquire()
    assert (tmp_path / "to-thesis").is_symlink() and not (tmp_path / "none").exists()
    assert (tmp_path / "thesis").read_text() == "years of work"


@pytest.mark.parametrize("is_stale", [False, True])
def test_of_several_at_once_one_wins(path, is_stale):
    start = threading.Barrier(4)

    def contend(lease):
        start.wait(60)
        try:
            lease.acquire()
        except BadInput:
            return 0
        return 1

    for _ in range(10):
        if is_stale:  # its process id is used again
            make(path, owner=dataclasses.replace(this_owner(), started=1))[0].acquire()
        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(contend, [make(path)[0] for _ in range(4)])) == 1
        storage.delete(path)


def test_a_killed_owner_makes_room_at_once(path, fake_gcs):
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
    for _ in range(2):
        with pytest.raises(BadInput, match=f"process {child.pid} .* is at work here"):
            make(path)[0].acquire()
        os.kill(child.pid, signal.SIGSTOP)  # frozen is not gone
    killed = holder_of(path)
    child.kill()
    deadline = time.monotonic() + 30
    while not killed.has_ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert killed.has_ended, "before its parent waits for it, too"
    child.communicate()
    now = Time()
    lease, logged = make(path, now)
    taken_from = lease.acquire()
    assert taken_from is not None and taken_from.pid == child.pid
    assert now.now == 1000.0 and "took over" in logged[-1]


@pytest.mark.parametrize("hides", ["who asks", "who holds it"])
def test_a_process_that_the_system_hides_is_judged_by_its_renewals(tmp_path, monkeypatch, hides):
    path, now, stat = f"{tmp_path}/lock", Time(), f"/proc/{os.getpid()}/stat"

    def hidden(name, *args, **how):
        if name == stat:  # as of another user, where /proc is mounted with hidepid
            raise FileNotFoundError(name)
        return open(name, *args, **how)

    with monkeypatch.context() as context:
        if hides == "who holds it":
            context.setattr(lease_lib, "open", hidden, raising=False)
        owner = dataclasses.replace(this_owner(), id="other")
    living, _ = make(path, now, owner)
    living.acquire()
    monkeypatch.setattr(lease_lib, "open", hidden, raising=False)
    now.then = living.renew
    with pytest.raises(BadInput, match=f"process {os.getpid()} "):
        make(path, now)[0].acquire()
    now.then = lambda: None
    assert make(path, now)[0].acquire().id == "other", "silent for long enough"
    assert now.now >= 1000.0 + STALE_SECONDS


def test_a_clone_of_the_machine_is_another_machine(tmp_path, monkeypatch):
    path, now = f"{tmp_path}/lock", Time()
    with monkeypatch.context() as context:  # with the same kernel since the same boot
        context.setattr(socket, "gethostname", lambda: "clone-2")
        owner = dataclasses.replace(this_owner(), pid=4_000_000, id="other")
    living, _ = make(path, now, owner)
    living.acquire()
    now.then = living.renew
    with pytest.raises(BadInput, match="process 4000000 on host clone-2"):
        make(path, now)[0].acquire()


def test_a_thread_renews_while_the_block_runs_and_the_loser_notices(path):
    lease = Lease(path, BUSY, print)
    stolen = json.dumps(dataclasses.asdict(ELSEWHERE)).encode()
    with pytest.raises(LeaseLost, match="far-away has taken over"), held(lease, seconds=0.01):
        for _ in range(2):
            _, before = storage.read_with_token(path)
            while storage.read_with_token(path)[1] == before:
                time.sleep(0.01)
        lease.check()
        while not storage.replace_if(path, stolen, storage.read_with_token(path)[1]):
            pass  # renewed this moment
        lease.check()
    assert holder_of(path) == ELSEWHERE  # neither renewed nor released by the loser
