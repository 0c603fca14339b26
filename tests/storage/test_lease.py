"""A lease has only one holder at a time, with simulated clocks and with real processes."""

import dataclasses
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.storage.decode import FORMAT_VERSION
from bigbird_ja.storage.environment import get_lease_seconds, get_storage_timeout
from bigbird_ja.storage.lease import Holder, Lease, LeaseLost, keep_lease, read_holder
from testkit import ROOT

BUSY = "{owner} is at work here"
ELSEWHERE = Holder(host="far-away", pid=7, id="other", format_version=FORMAT_VERSION)
_HOLD = (
    "import sys, time\n"
    "from bigbird_ja.storage.lease import Lease, keep_lease\n"
    "with keep_lease(Lease(sys.argv[1], '{owner}', print)):\n"
    "    print('held', flush=True)\n"
    "    time.sleep(600)\n"
)


class Time:
    """Simulated clock that advances only by `sleep`. Each `sleep` ends with a call of `then`."""

    def __init__(self):
        self.now, self.then = 1000.0, lambda: None

    def sleep(self, seconds):
        self.now += seconds
        self.then()


def make(path, time=None, owner=None):
    """Return a lease, and the list of its log messages."""
    time, logged = time or Time(), []
    lease = Lease(path, BUSY, logged.append, clock=lambda: time.now, sleep=time.sleep, owner=owner)
    return lease, logged


@pytest.fixture
def path(base):
    return f"{base}/lock.json"


@pytest.fixture
def remote(bucket):
    return f"{bucket}/lock.json"


def test_a_lease_is_taken_renewed_and_released(path):
    lease, logged = make(path)
    assert lease.acquire() is None
    before = storage.read_bytes(path)
    lease._wall = lambda: 1.0
    lease.renew()
    lease.check()
    holder = read_holder(path)
    assert holder is not None and (holder.pid, holder.renewed) == (os.getpid(), 1.0)
    assert storage.read_bytes(path) != before and lease.renew_seconds == get_lease_seconds() / 4
    lease.release()
    assert read_holder(path) is None and not storage.exists(path) and not logged


def test_a_silent_holder_on_a_bucket_is_taken_over_after_the_timeout(remote):
    now = Time()
    silent, _ = make(remote, now, ELSEWHERE)
    silent.acquire()
    lease, logged = make(remote, now, dataclasses.replace(ELSEWHERE, id="second"))
    # Even a holder on the same host counts as dead only after the timeout.
    assert lease.acquire() is not None
    assert now.now >= 1000.0 + get_lease_seconds()
    assert "far-away" in logged[0]
    # The first call uses the old token of `silent`. Later calls have no token, and read the file.
    for ask in (silent.renew, silent.check, silent.renew):
        with pytest.raises(LeaseLost, match="has taken over"):
            ask()
        lease.check()
    silent.release()  # This does not release the lease of the other holder.
    lease.check()


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 1e9])
def test_a_holder_on_a_bucket_that_renews_keeps_the_lease_whatever_its_clock(remote, skew):
    now = Time()
    living, _ = make(remote, now, ELSEWHERE)
    living._wall = lambda: 1.7e9 + skew  # The time in the file must not matter.
    living.acquire()
    now.then = living.renew
    with pytest.raises(BadInput, match="far-away"):
        make(remote, now)[0].acquire()
    living.check()
    refused, now.then = now.now, living.release
    make(remote, now)[0].acquire()
    assert now.now < refused + get_lease_seconds(), "one that ends makes room at once"


def test_one_of_two_takes_over_from_a_silent_holder(remote, monkeypatch):
    now = Time()
    make(remote, now, ELSEWHERE)[0].acquire()
    winner, _ = make(remote, now, dataclasses.replace(ELSEWHERE, host="near", id="winner"))
    replace_if = storage.replace_if

    def late(path, content, token):
        if not token:
            return replace_if(path, content, token)
        monkeypatch.setattr(storage, "replace_if", replace_if)
        winner._token = replace_if(path, winner._encode(), token)
        now.then = winner.renew
        return replace_if(path, content, token)

    monkeypatch.setattr(storage, "replace_if", late)
    with pytest.raises(BadInput, match="near"):
        make(remote, now)[0].acquire()
    winner.check()


def test_a_lease_whose_file_vanished_or_was_replaced_is_lost(path):
    lease, _ = make(path)
    lease.acquire()
    storage.write_bytes(path, b"rubbish")
    with pytest.raises(LeaseLost):
        lease.check()
    lease.release()
    assert storage.read_bytes(path) == b"rubbish", "not ours to delete"
    storage.delete(path)
    for ask in (lease.check, lease.renew, lease.check):
        with pytest.raises(LeaseLost):
            ask()


def test_release_keeps_the_lock_of_a_new_holder(remote, monkeypatch):
    lease, _ = make(remote)
    lease.acquire()
    delete_if, theirs = storage.delete_if, json.dumps(dataclasses.asdict(ELSEWHERE)).encode()

    def taken_over(path, token):
        assert storage.replace_if(path, theirs, token) is not None
        return delete_if(path, token)

    monkeypatch.setattr(storage, "delete_if", taken_over)
    lease.release()
    assert read_holder(remote) == ELSEWHERE


def test_a_failing_bucket_does_not_lose_the_lease(remote, fake_gcs, monkeypatch):
    lease, _ = make(remote)
    lease.acquire()
    monkeypatch.setenv("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", "0.2")
    fake_gcs.fault(match=".*", do="status", code=503, times=-1)
    with pytest.raises(StorageError) as result:
        lease.renew()
    assert not isinstance(result.value, LeaseLost)
    fake_gcs.clear()
    lease.renew()
    lease.check()


@pytest.mark.parametrize(
    "content", ["not json", json.dumps({**dataclasses.asdict(ELSEWHERE), "format_version": ""})]
)
def test_a_foreign_lock_file_is_refused_and_kept(path, content):
    storage.write_bytes(path, content.encode("latin-1"))
    with pytest.raises(BadInput, match=r"lock\.json (is not valid|has format) .*remove it"):
        make(path)[0].acquire()
    assert storage.read_bytes(path) == content.encode("latin-1")
    assert read_holder(path) is None


def test_links_folders_and_fifos_are_refused(tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-thesis").symlink_to("thesis")
    (tmp_path / "to-none").symlink_to("none")
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "folder", "to-thesis", "to-none"):
        with pytest.raises(BadInput, match="not a lock file of bigbird-ja"):
            make(f"{tmp_path}/{name}")[0].acquire()
    assert (tmp_path / "thesis").read_text() == "years of work"
    assert not (tmp_path / "none").exists()


def test_one_of_several_concurrent_processes_acquires(tmp_path):
    path, start = str(tmp_path / "lock.json"), threading.Barrier(4)

    def contend(lease):
        start.wait(60)
        try:
            lease.acquire()
        except BadInput:
            return None
        return lease

    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            (winner,) = filter(None, pool.map(contend, [make(path)[0] for _ in range(4)]))
        winner.release()
        assert not storage.exists(path)


def test_a_lock_on_a_disk_is_free_after_a_kill_and_not_while_its_holder_is_stopped(tmp_path):
    path = str(tmp_path / "lock.json")
    child = subprocess.Popen([sys.executable, "-c", _HOLD, path], stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    for _ in range(2):
        with pytest.raises(BadInput, match=f"process {child.pid} .* is at work here"):
            make(path)[0].acquire()
        os.kill(child.pid, signal.SIGSTOP)
    assert read_holder(path).pid == child.pid
    child.kill()
    child.communicate()
    now = Time()
    lease, logged = make(path, now)
    assert lease.acquire().pid == child.pid
    assert now.now == 1000.0 and "took over" in logged[-1]
    lease.release()
    assert os.listdir(tmp_path) == []


def test_a_lock_file_of_0_1_0_is_taken_over(tmp_path):
    path = tmp_path / "lock.json"
    old = {**dataclasses.asdict(ELSEWHERE), "machine": "boot.4026531836", "started": 1}
    path.write_text(json.dumps(old) + "\n" + " " * 2000)
    lease, _ = make(str(path))
    assert lease.acquire() == ELSEWHERE
    assert read_holder(str(path)).id == lease.owner.id


def test_a_thread_renews_while_the_block_runs_and_the_block_sees_a_lost_lease(remote):
    lease = Lease(remote, BUSY, print, stale_seconds=0.04)
    stolen = json.dumps(dataclasses.asdict(ELSEWHERE)).encode()
    with pytest.raises(LeaseLost, match="far-away has taken over"), keep_lease(lease):
        for _ in range(2):
            _, before = storage.read_with_token(remote)
            while storage.read_with_token(remote)[1] == before:
                time.sleep(0.01)
        lease.check()
        while not storage.replace_if(remote, stolen, storage.read_with_token(remote)[1]):
            pass  # The lease was renewed between the read and the write.
        lease.check()
    assert read_holder(remote) == ELSEWHERE  # The former holder did not change the lease.


@pytest.mark.parametrize("name", ["STORAGE_TIMEOUT", "LEASE"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "soon", "1e9"])
def test_a_variable_out_of_range_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(f"BIGBIRD_JA_{name}_SECONDS", value)
    with pytest.raises(BadInput, match=f"BIGBIRD_JA_{name}_SECONDS='{value}' in the environment"):
        (get_lease_seconds if name == "LEASE" else get_storage_timeout)()


def test_a_holder_that_was_cut_off_changes_nothing_after_its_lease(remote, bucket, monkeypatch):
    now, other = Time(), f"{bucket}/other"
    lease, _ = make(remote, now, ELSEWHERE)
    lease.acquire()
    storage.write_bytes(f"{bucket}/made", b"1")
    storage.write_bytes(other, b"1")
    now.now += 0.6 * get_lease_seconds()  # The next write renews the lease.
    storage.write_bytes(other, b"2")
    lease.check()
    now.now += get_lease_seconds()
    theirs = json.dumps(dataclasses.asdict(dataclasses.replace(ELSEWHERE, id="new"))).encode()
    # Another holder takes over the lease.
    assert storage.replace_if(remote, theirs, storage.stat(remote).token)
    before = storage.list_stats(bucket)
    for write in (
        lambda: storage.write_bytes(other, b"3"),
        lambda: storage.write_bytes(f"{bucket}/new", b"3"),
        lambda: storage.replace_if(other, b"3", before["other"].token),
        lambda: storage.delete(other),
        lambda: storage.rename(f"{bucket}/made", f"{bucket}/moved"),
        lambda: storage.create_exclusive(f"{bucket}/new", b"3"),
    ):
        with pytest.raises(LeaseLost, match="has taken over"):
            write()
    lease.release()
    with pytest.raises(LeaseLost):
        storage.write_bytes(other, b"3")
    assert storage.list_stats(bucket) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: storage.write_bytes(f"{folder}/file", b"2"),
        lambda folder: storage.delete(f"{folder}/file"),
        lambda folder: storage.find_place(folder).copy(f"{folder}/old", f"{folder}/file"),
    ],
    ids=["write", "delete", "copy"],
)
def test_a_request_that_arrives_late_changes_nothing(change, remote, bucket, fake_gcs):
    """Refuse a late request by the object's generation. The lease was valid when it was sent."""
    lease, _ = make(remote)
    lease.acquire()
    storage.write_bytes(f"{bucket}/old", b"1")
    storage.write_bytes(f"{bucket}/file", b"1")
    fake_gcs.put(f"{bucket}/file", b"theirs")
    fake_gcs.put(remote, json.dumps(dataclasses.asdict(ELSEWHERE)).encode())
    with pytest.raises(LeaseLost):
        change(bucket)
    assert storage.read_bytes(f"{bucket}/file") == b"theirs"


def test_the_holder_deletes_and_copies_what_others_wrote(remote, bucket, fake_gcs):
    """Delete and replace objects that the holder has written, found, or not expected."""
    lease, _ = make(remote)
    for name in "ab":
        fake_gcs.put(f"{bucket}/{name}", b"found")
    lease.acquire()
    storage.write_bytes(f"{bucket}/c", b"written")
    fake_gcs.put(f"{bucket}/c", b"of a user")
    storage.rename(f"{bucket}/a", f"{bucket}/b")
    storage.rename(f"{bucket}/b", f"{bucket}/c")
    assert storage.read_bytes(f"{bucket}/c") == b"found"
    storage.delete(f"{bucket}/c")
    storage.delete(f"{bucket}/missing")
    storage.write_bytes(f"{bucket}/c", b"again")
    assert sorted(storage.list_stats(bucket)) == ["c", "lock.json"]


def test_a_file_that_the_holder_did_not_make_is_replaced(remote, bucket, fake_gcs):
    now = Time()
    lease, _ = make(remote, now)
    fake_gcs.put(f"{bucket}/a", b"1")
    fake_gcs.put(f"{bucket}/b", b"1")
    lease.acquire()
    lease.expect({f"{bucket}/a": storage.stat(f"{bucket}/a").token})
    fake_gcs.log(clear=True)
    for name, requests in (("a", 1), ("b", 4), ("b", 1)):
        storage.write_bytes(f"{bucket}/{name}", b"2")
        assert len(fake_gcs.log(clear=True)) == requests, name
    fake_gcs.put(f"{bucket}/a", b"of a user")
    storage.write_bytes(f"{bucket}/a", b"3")
    assert storage.read_bytes(f"{bucket}/a") == b"3"
    lease.release()
    now.now += get_lease_seconds()
    storage.write_bytes(f"{bucket}/a", b"4")  # After the release, any process may write.


def test_a_lock_that_a_full_disk_left_empty_is_stale(tmp_path):
    """Take over a lock file that contains only zero bytes."""
    path = str(tmp_path / "lock.json")
    full = make(path)[0]
    with pytest.raises(OSError, match="No space left"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: fail(errno.ENOSPC))
        full.acquire()
    assert (tmp_path / "lock.json").read_bytes() == bytes(1024)
    again = make(path)[0]
    assert again.acquire() is None
    again.check()


def fail(number):
    raise OSError(number, os.strerror(number))


def test_a_worker_writes_while_its_parent_renews(remote, bucket, fake_gcs):
    """Check that a worker reads the lock only occasionally, to save requests."""
    lease = Lease(remote, BUSY, print, stale_seconds=2.0)
    lease.acquire()
    share = pickle.loads(pickle.dumps(lease.make_share()))
    share.add_fence()
    fake_gcs.log(clear=True)
    for number in range(5):
        storage.write_bytes(f"{bucket}/{number}", b"1")
    assert len(fake_gcs.log(clear=True)) == 6
    renewing = threading.Timer(0.5, lease.renew)
    time.sleep(2.1)
    renewing.start()
    storage.write_bytes(f"{bucket}/0", b"2")
    renewing.join()
    fake_gcs.put(remote, json.dumps(dataclasses.asdict(ELSEWHERE)).encode())
    time.sleep(1.1)
    with pytest.raises(LeaseLost, match="far-away has taken over"):
        storage.write_bytes(f"{bucket}/0", b"3")
    assert storage.read_bytes(f"{bucket}/0") == b"2"
