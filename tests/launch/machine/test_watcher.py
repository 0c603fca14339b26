"""The watcher on a rented machine: its counters, and its process with fake services."""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

import pytest

from bigbird_ja import storage
from bigbird_ja.launch.files import RunFiles
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.machine import watcher
from bigbird_ja.launch.machine.watcher import Counters, Host, Seen, Terms
from tests.launch import support
from tests.launch.support import wait_until

NODE = "/v2/projects/p/locations/z/nodes/run-1"
TERMS = Terms(
    3, 1000.0, 300.0, "gs://b/r/supervisor", "gs://b/r/model", ended=120.0, stalled=200.0, poll=10.0
)


@pytest.mark.parametrize(
    ("looks", "reason"),
    [
        ([Seen(step=7, renewal=str(n)) for n in range(21)], "stalled"),
        ([Seen()] * 20, "stalled"),  # The bucket does not answer, so no step is known.
        ([Seen(step=n, renewal="once") for n in range(31)], "lease_over"),
        # The machine's age reaches its maximum lifetime of 1,000 seconds.
        ([Seen(step=n, renewal=str(n)) for n in range(100)], "lease_over"),
        ([Seen(step=n, renewal=str(n), has_ended=True) for n in range(12)], "ended"),
        # The file that reports the trainer's end is missing once, as after a reboot. The watcher
        # then counts the seconds since the end from 0 again.
        ([Seen(step=n, renewal=str(n), has_ended=n != 11) for n in range(24)], "ended"),
    ],
)
def test_reason_and_time_of_a_deletion(looks, reason):
    counters = Counters()
    for seen in looks:  # There are ten seconds between two polls.
        assert watcher.must_go(counters, TERMS) == ""
        counters = watcher.update_counters(counters, 10.0, seen)
    assert watcher.must_go(counters, TERMS) == reason


def test_seconds_over_restarts_reboots_and_clocks_that_jump():
    before = Counters(age=50.0, clock=100.0, boot="a", wall=1000.0)
    assert watcher.count_seconds(before, 160.0, "a", 5e9) == 60.0
    assert watcher.count_seconds(before, 40.0, "b", 1300.0) == 300.0
    assert watcher.count_seconds(before, 40.0, "b", 5e9) == 40.0 + watcher.REBOOT_SECONDS
    assert watcher.count_seconds(before, 40.0, "b", 0.0) == 40.0


def test_waiting_in_a_queue_uses_up_life_only_beyond_the_hours_of_the_run():
    terms = replace(TERMS, requested=1000.0)
    assert watcher.compute_age_at_boot(terms, 1060.0) == 60.0
    assert watcher.compute_age_at_boot(terms, 0.0) == watcher.compute_age_at_boot(TERMS, 1e9) == 0.0
    # The run may still use 5,000 seconds, but the machine only 1,000.
    queued = replace(terms, hours_left=5000.0)
    ages = [watcher.compute_age_at_boot(queued, 1000.0 + wait) for wait in (3900.0, 4500.0, 9000.0)]
    assert ages == [0.0, 500.0, 5000.0]


def test_counters_are_overwritten_in_place(tmp_path):
    """Overwrite the counters' file in place, which also works on a full disk."""
    disk, memory = str(tmp_path / "disk"), str(tmp_path / "memory")
    paths = [disk, memory]
    assert watcher.load(paths) == Counters()
    watcher.save(paths, Counters(age=10.0, renewal="1700000000.123", boot="x" * 36))
    inode, size = os.stat(disk).st_ino, os.stat(disk).st_size
    watcher.save(paths, Counters(age=20.0, renewal="1800000000.123", boot="x" * 36))
    assert (os.stat(disk).st_ino, os.stat(disk).st_size) == (inode, size)
    assert watcher.load(paths).age == 20.0
    with open(disk, "r+b") as file:
        file.write(b"damaged")
    assert watcher.load(paths).age == 20.0  # The other copy is intact.
    assert watcher.load([str(tmp_path / "none" / "x")]) == Counters()


def test_bucket_and_metadata_server(bucket, fake_gcs, fake_tpu, tmp_path):
    places = {f"{name}_dir": f"{bucket}/run 1/{name}" for name in ("supervisor", "model")}
    terms = replace(TERMS, **places, metadata=fake_tpu.url, storage=fake_gcs.url)
    report = lambda: json.loads(storage.read_bytes(f"{terms.supervisor_dir}/exit.json"))  # noqa: E731
    machine = Host(terms, str(tmp_path))
    assert machine.poll() == Seen()
    storage.write_text(f"{terms.model_dir}/heartbeat.json", '{"global_step": 40}')
    storage.write_text(f"{terms.supervisor_dir}/lease.json", '{"attempt": 2, "renewed": 5}')
    assert machine.poll() == Seen(step=40)  # The lease belongs to another machine.
    storage.write_text(f"{terms.supervisor_dir}/lease.json", '{"attempt": 3, "renewed": 5}')
    (tmp_path / "ended").touch()
    assert machine.poll() == Seen(40, "5", True)
    (tmp_path / "training.log").write_bytes(b"x" * 100_000 + b"end")
    machine.copy_log()
    log = storage.read_bytes(f"{terms.supervisor_dir}/training.log")
    assert len(log) == watcher.LOG_BYTES and log.endswith(b"xend")
    machine.report(71)
    assert (report()["attempt"], report()["status"]) == (3, 71)
    machine.report(76, "stalled")
    machine.report(75)  # The trainer, which ends with the machine, reports after the watcher.
    assert (report()["status"], report()["reason"]) == (76, "stalled")
    Host(replace(terms, attempt=4), str(tmp_path)).report(75)
    assert report()["attempt"] == 4
    machine.report(71)
    machine.get(f"{terms.supervisor_dir}/exit.json", str(tmp_path / "copy"))
    assert json.loads((tmp_path / "copy").read_text()) == report()
    fake_gcs.fault("heartbeat", "status", code=403, times=-1)
    assert machine.poll().step is None


class SecondHost(Host):
    """Second host of a slice. Its number is in the metadata."""

    def _open(self, request):
        if request.full_url.endswith("/attributes/worker-id"):
            return b"1"
        raise OSError("404")


def test_each_host_of_a_slice_writes_its_own_log(tmp_path):
    (tmp_path / "training.log").write_text("Traceback of host 1\n")
    terms = replace(TERMS, supervisor_dir=str(tmp_path / "supervisor"), hosts=2)
    (tmp_path / "supervisor").mkdir()
    host = SecondHost(terms, str(tmp_path))
    host.copy_log()
    host.report(1)
    assert sorted(os.listdir(tmp_path / "supervisor")) == ["exit.json", "training-1.log"]
    files = RunFiles(LaunchedRun(str(tmp_path.parent), tmp_path.name))
    report = files.read_exit_report()
    assert report is not None and (report.host, report.reason) == (1, "bug")
    assert files.read_log_tail() == "Traceback of host 1"
    SecondHost(replace(terms, hosts=1), str(tmp_path)).copy_log()
    assert (tmp_path / "supervisor/training.log").exists()


# --- as a process, on a machine of the fake service -----------------------------------------------


class Vm:
    """Simulated machine in the folder `root`. A watcher runs in each block `with vm.watched()`."""

    def __init__(self, root, fake, **terms):
        self.root, self.fake = root, fake
        for name in ("disk", "memory", "supervisor", "model"):
            (root / name).mkdir(parents=True)
        support.client(fake).create(support.vm_of("run-1"), "z", 1, {}, 3600.0)
        values = asdict(TERMS) | dict.fromkeys(("limit", "lease", "ended", "stalled"), 1e6)
        values |= {"attempt": 1, "poll": 0.1, "metadata": fake.url, "delete": [f"{fake.url}{NODE}"]}
        values |= {f"{name}_dir": str(root / name) for name in ("supervisor", "model")}
        self.terms = json.dumps(values | terms)

    @contextlib.contextmanager
    def watched(self, path=""):
        with open(watcher.__file__, encoding="utf-8") as file:
            code = file.read()
        variables = {
            "BIGBIRD_JA_VM_DIR": str(self.root / "disk"),
            "BIGBIRD_JA_VM_RUN_DIR": str(self.root / "memory"),
            "PATH": f"{path}:{os.environ['PATH']}",
        }
        process = subprocess.Popen(
            [sys.executable, "-c", code, "watch", self.terms],
            env=variables,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def is_gone(self):
        return self.fake.node_names() == []

    def age(self):
        """Return the machine's age in the counters on its disk."""
        return watcher.load([str(self.root / "disk" / "bigbird-ja-1.counters")]).age


def test_a_watcher_that_is_started_again_continues_to_count(tmp_path, fake_tpu):
    """Restart the watcher repeatedly, as systemd does, until the machine is deleted."""
    vm, last = Vm(tmp_path, fake_tpu, limit=1.0), 0.0
    for _ in range(40):
        with vm.watched():
            wait_until(lambda: last < vm.age() < 1.0 or vm.is_gone())  # noqa: B023
        if vm.is_gone():
            return
        assert vm.age() > last
        last = vm.age()
    raise AssertionError("it was never deleted")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_a_bucket_that_refuses_and_a_gcloud_that_hangs(tmp_path, fake_tpu):
    """Delete the machine although no write succeeds and its command-line tools hang.

    Only the service and the metadata server answer.
    """
    vm = Vm(tmp_path, fake_tpu, limit=0.5, supervisor_dir="/dev/full/x", model_dir="/dev/full/y")
    for tool in ("gcloud", "gsutil", "curl"):
        support.write_tool(f"{tmp_path}/bin/{tool}", "sleep 1000")
    (tmp_path / "disk" / "training.log").symlink_to("/dev/full")
    shutil.rmtree(tmp_path / "memory")
    (tmp_path / "disk" / "bigbird-ja-1.counters").symlink_to("/dev/full")
    with vm.watched(f"{tmp_path}/bin"):
        wait_until(vm.is_gone)


class Endless(contextlib.nullcontext[Any]):
    """HTTP response that never ends. Each read returns at most `enter_result` bytes."""

    def __enter__(self):
        return self

    def read1(self, most):
        return b"x" * min(self.enter_result, most)


@pytest.mark.parametrize(
    ("part", "seconds", "most", "error"),
    [(1, 0.05, 1 << 40, TimeoutError), (1 << 20, 60.0, 1 << 16, ValueError)],
    ids=["slow", "large"],
)
def test_an_endless_answer_is_abandoned(tmp_path, part, seconds, most, error):
    host = Host(replace(TERMS, storage="http://x"), str(tmp_path), seconds, most)
    host._opener.open = lambda *_, **__: Endless(part)  # type: ignore[assignment]
    with pytest.raises(error):
        host.request("GET", "http://elsewhere")


FAULTS = [http.client.BadStatusLine("x"), http.client.IncompleteRead(b"x"), UnicodeError()]
FAULTS += [http.client.InvalidURL("x"), RecursionError(), MemoryError(), KeyError("x")]
NUMBERS = ["9" * 4000, str(2**63), "-1", "5.0", '"5"', "null", "[5]"]
STEPS = [f'{{"global_step": {number}}}'.encode() for number in NUMBERS]
HOSTILE = [b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"7", b"", b" " * 10_000_000]


class _Over(BaseException):
    """Exception that ends the watcher's loop."""


def watched(tmp_path, host, seconds, terms):
    """Run the watcher's loop for some seconds of virtual time, and return its stored counters."""
    paths, clock = [str(tmp_path / "counters")], iter(range(0, 10**6, 10))
    turns = iter(range(seconds // 10))

    def sleep(_):
        if next(turns, None) is None:
            raise _Over

    with contextlib.suppress(_Over):
        watcher.watch(terms, host, paths, lambda: float(next(clock)) / 2, sleep, "boot")
    return watcher.load(paths)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_no_failure_to_read_ends_the_watch(tmp_path, fault):
    addresses = ["http://service/queue", "http://service/node"]
    terms = replace(TERMS, limit=60.0, storage="http://x", delete=addresses)
    host, deleted = Host(terms, str(tmp_path)), []

    def fail(request, **_):
        deleted.extend([request.full_url] * (request.get_method() == "DELETE"))
        raise fault

    host._opener.open = fail  # type: ignore[method-assign]
    host._fetch_token = lambda: "token"  # type: ignore[method-assign]
    assert host.poll() == Seen()
    assert watched(tmp_path, host, 200, terms).age >= 100.0
    # The watcher repeats the deletion in each turn.
    assert deleted[:2] == addresses and len(deleted) > 6


def test_time_is_counted_before_anything_is_read(tmp_path):
    class Hanging(Host):
        def poll(self):
            raise _Over

    # The machine's age counts from the request to create the machine. At boot, the age is the
    # difference of two clocks, which may disagree. It is therefore limited to `CREATION_SECONDS`.
    terms = replace(TERMS, limit=1e6, requested=1.0)
    age = watched(tmp_path, Hanging(terms, str(tmp_path)), 1000, terms).age
    assert age == watcher.CREATION_SECONDS + terms.poll


@pytest.mark.parametrize("content", [*STEPS, *HOSTILE], ids=range(len(STEPS + HOSTILE)))
def test_invalid_content_on_the_bucket_is_no_step_and_time_is_counted(tmp_path, content):
    renewal = {"attempt": TERMS.attempt, "renewed": "\U0001f600" * 5_000}
    lease = json.dumps(renewal).encode() if content in STEPS else content
    for path, data in (("model/heartbeat.json", content), ("supervisor/lease.json", lease)):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_bytes(data)
    places = {f"{name}_dir": str(tmp_path / name) for name in ("model", "supervisor")}
    terms = replace(TERMS, **places)
    host = Host(terms, str(tmp_path))
    seen = host.poll()
    assert seen.step is None and (seen.renewal is None) == (content in HOSTILE)
    assert watched(tmp_path, host, 100, terms).age >= 50.0


def test_nothing_that_a_watcher_reads_copies_or_reports_can_end_it(tmp_path):
    def fail(*_, **__):
        raise RecursionError

    terms, host = replace(TERMS, limit=60.0), Host(TERMS, str(tmp_path))
    deleted = []
    for name in ("poll", "copy_log", "report"):
        setattr(host, name, fail)
    host.delete = lambda: deleted.append(1) or fail()  # type: ignore[method-assign]
    assert watched(tmp_path, host, 200, terms).age >= 100.0
    assert len(deleted) > 3
