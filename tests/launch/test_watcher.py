"""The watcher on a rented machine: what it counts, and as a real process on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja import storage
from bigbird_ja.launch import watcher
from bigbird_ja.launch.run_files import BucketFiles, Run
from bigbird_ja.launch.watcher import Counters, Machine, Notes, Seen, Terms
from testkit.fakes.gcs_process import FakeGcs
from testkit.fakes.tpu import FakeTpu
from tests.launch import support
from tests.launch.support import wait_until

TERMS = Terms(3, 1000.0, 300.0, 120.0, 200.0, 10.0, "gs://b/r/supervisor", "gs://b/r/model")


def after(*looks: Seen, seconds: float = 10.0, start: Counters | None = None) -> Counters:
    start = start or Counters()
    for seen in looks:
        start = watcher.turn(start, seconds, seen)
    return start


def test_only_another_step_is_progress() -> None:
    still = [Seen(step=7, renewal=str(n)) for n in range(20)]
    counters = after(*still)
    assert counters.quiet == 190 and watcher.must_go(counters, TERMS) == ""
    assert watcher.must_go(after(Seen(7, "x"), start=counters), TERMS) == "stalled"
    assert after(Seen(8, "x"), start=counters).quiet == 0


def test_a_machine_that_nobody_wants_any_more_goes() -> None:
    steps = [Seen(step=n, renewal="once") for n in range(31)]
    assert watcher.must_go(after(*steps[:30]), TERMS) == ""
    assert watcher.must_go(after(*steps), TERMS) == "lease_over"
    renewed = [Seen(step=n, renewal=str(n)) for n in range(100)]
    assert watcher.must_go(after(*renewed[:99]), TERMS) == ""
    assert watcher.must_go(after(*renewed), TERMS) == "lease_over"  # no renewal moves the limit


def test_a_bucket_that_does_not_answer_keeps_nothing_alive() -> None:
    assert watcher.must_go(after(*[Seen()] * 20), TERMS) == "stalled"


def test_an_end_that_nobody_comes_for() -> None:
    ended = [Seen(step=n, renewal=str(n), has_ended=True) for n in range(12)]
    assert watcher.must_go(after(*ended[:11]), TERMS) == ""
    assert watcher.must_go(after(*ended), TERMS) == "ended"


def test_seconds_over_restarts_reboots_and_clocks_that_jump() -> None:
    before = Counters(age=50.0, clock=100.0, boot="a", wall=1000.0)
    assert watcher.since(before, 160.0, "a", 5e9) == 60.0
    assert watcher.since(before, 40.0, "b", 1300.0) == 300.0
    assert watcher.since(before, 40.0, "b", 5e9) == 40.0 + watcher.REBOOT_SECONDS
    assert watcher.since(before, 40.0, "b", 0.0) == 40.0


def test_counters_are_overwritten_in_place(tmp_path: Path) -> None:
    """So that a disk that fills up later does not stop them."""
    disk, memory = str(tmp_path / "disk"), str(tmp_path / "memory")
    notes = Notes([disk, memory])
    assert notes.load() == Counters()
    notes.save(Counters(age=10.0, renewal="1700000000.123", boot="x" * 36))
    inode, size = os.stat(disk).st_ino, os.stat(disk).st_size
    notes.save(Counters(age=20.0, renewal="1800000000.123", boot="x" * 36))
    assert (os.stat(disk).st_ino, os.stat(disk).st_size) == (inode, size)
    assert notes.load().age == 20.0
    with open(disk, "r+b") as file:
        file.write(b"damaged")
    assert notes.load().age == 20.0  # the other one is whole
    assert Notes([str(tmp_path / "none" / "x")]).load() == Counters()


def test_bucket_and_metadata_server(bucket: str, fake_gcs: FakeGcs, tmp_path: Path) -> None:
    with FakeTpu(str(tmp_path / "vms")) as fake:
        terms = replace(
            TERMS,
            supervisor_dir=f"{bucket}/run 1/supervisor",
            model_dir=f"{bucket}/run 1/model",
            metadata=fake.url,
            storage=fake_gcs.url,
        )
        machine = Machine(terms, str(tmp_path))
        assert machine.look() == Seen()
        storage.write_text(f"{terms.model_dir}/heartbeat.json", '{"global_step": 40}')
        storage.write_text(f"{terms.supervisor_dir}/lease.json", '{"attempt": 2, "renewed": 5}')
        assert machine.look() == Seen(step=40)  # that lease is of another machine
        storage.write_text(f"{terms.supervisor_dir}/lease.json", '{"attempt": 3, "renewed": 5}')
        (tmp_path / "ended").touch()
        assert machine.look() == Seen(40, "5", True)
        (tmp_path / "training.log").write_bytes(b"x" * 100_000 + b"end")
        machine.tell()
        log = storage.read_bytes(f"{terms.supervisor_dir}/training.log")
        assert len(log) == watcher.LOG_BYTES and log.endswith(b"xend")
        machine.report(71, "", False)
        report = json.loads(storage.read_bytes(f"{terms.supervisor_dir}/exit.json"))
        assert (report["attempt"], report["status"], report["self_deleted"]) == (3, 71, False)
        machine.get(f"{terms.supervisor_dir}/exit.json", str(tmp_path / "copy"))
        assert json.loads((tmp_path / "copy").read_text()) == report
        fake_gcs.fault("heartbeat", "status", code=403, times=-1)
        assert machine.look().step is None


class Hosts(Machine):
    """A host of a slice, whose metadata say which."""

    number = "1"

    def _open(self, request: Any, seconds: float) -> bytes:
        if request.full_url.endswith("/attributes/worker-id"):
            return self.number.encode()
        raise OSError("404")


def test_each_host_of_a_slice_tells_for_itself(tmp_path: Path) -> None:
    (tmp_path / "training.log").write_text("Traceback of host 1\n")
    terms = replace(TERMS, supervisor_dir=str(tmp_path / "supervisor"), hosts=2)
    (tmp_path / "supervisor").mkdir()
    host = Hosts(terms, str(tmp_path))
    host.tell()
    host.report(1, "", False)
    assert sorted(os.listdir(tmp_path / "supervisor")) == ["exit.json", "training-1.log"]
    files = BucketFiles(Run(str(tmp_path.parent), tmp_path.name))
    report = files.exit_report()
    assert report is not None and (report.host, report.reason) == (1, "bug")
    assert files.log_tail() == "Traceback of host 1"
    first = Hosts(replace(terms, hosts=1), str(tmp_path))
    first.tell()
    assert (tmp_path / "supervisor/training.log").exists()


class _Done(Exception):
    """Ends a watch."""


@pytest.mark.parametrize(("hosts", "left"), [(1, 300.0), (4, watcher.REPLACED_SECONDS)])
def test_a_replaced_host_waits_shorter_for_a_renewal(
    tmp_path: Path, hosts: int, left: float
) -> None:
    """It does not know how long the others have waited already."""
    lease = 300.0 if hosts == 1 else 10 * watcher.REPLACED_SECONDS
    late = time.time() - 2 * watcher.CREATION_SECONDS
    terms = replace(TERMS, limit=1e9, lease=lease, poll=10.0, asked=late, hosts=hosts)
    machine = Hosts(replace(terms, supervisor_dir=str(tmp_path)), str(tmp_path))
    machine.look = lambda: Seen()  # type: ignore[method-assign]
    notes = Notes([str(tmp_path / "notes")])
    turns = iter(range(2))

    def sleep(seconds: float) -> None:
        if next(turns, None) is None:
            raise _Done

    with pytest.raises(_Done):
        watcher.watch(machine._terms, machine, notes, lambda: 0.0, sleep, "boot")
    assert lease - notes.load().unrenewed == pytest.approx(left - 10.0)


class Vm:
    """The watcher as a process, on a machine of the fake service."""

    def __init__(self, root: Path, fake: FakeTpu, **terms: Any) -> None:
        from bigbird_ja.launch.services import TpuSpec

        self.root, self.fake = root, fake
        for name in ("disk", "memory", "supervisor", "model", "bin"):
            (root / name).mkdir()
        service = support.nodes(fake)
        service.create(TpuSpec("run-1", "v3-8", "i"), "z", 1, {}, 3600.0)
        values = asdict(TERMS) | {
            "attempt": 1, "limit": 1e6, "lease": 1e6, "ended": 1e6, "stalled": 1e6, "poll": 0.1,
            "supervisor_dir": str(root / "supervisor"), "model_dir": str(root / "model"),
            "delete": [f"{fake.url}/v2/projects/p/locations/z/nodes/run-1"],
            "metadata": fake.url, **terms,
        }  # fmt: skip
        self.terms = json.dumps(values)
        with open(watcher.__file__, encoding="utf-8") as file:
            self.code = file.read()

    def start(self, path: str = "") -> subprocess.Popen[bytes]:
        variables = {
            "BIGBIRD_JA_VM_DIR": str(self.root / "disk"),
            "BIGBIRD_JA_VM_RUN_DIR": str(self.root / "memory"),
            "PATH": f"{path}:{os.environ['PATH']}",
        }
        return subprocess.Popen(
            [sys.executable, "-c", self.code, "watch", self.terms], env=variables,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def beat(self, step: int, moment: float) -> None:
        text = json.dumps({"global_step": step, "time": moment})
        (self.root / "model" / "heartbeat.json.tmp").write_text(text)
        os.replace(self.root / "model" / "heartbeat.json.tmp", self.root / "model/heartbeat.json")

    def is_gone(self) -> bool:
        return self.fake.node_names() == []

    def counters(self) -> Counters:
        return Notes([str(self.root / "disk" / "bigbird-ja-1.counters")]).load()


def beat_until_gone(vm: Vm, step_at: Callable[[int], int]) -> None:
    """A watched machine whose trainer beats for ten seconds; it must go before."""
    process = vm.start()
    try:
        for moment in range(200):
            vm.beat(step_at(moment), moment)
            if vm.is_gone():
                break
            time.sleep(0.05)
    finally:
        ended(process)
    assert vm.is_gone()


def ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_detached_from_everybody_it_goes_at_the_end_of_its_lease(tmp_path: Path) -> None:
    """A healthy trainer, and no supervisor: it used to be billed for ever."""
    with FakeTpu(str(tmp_path / "vms")) as fake:
        beat_until_gone(Vm(tmp_path, fake, lease=1.0), lambda moment: moment)
        report = json.loads((tmp_path / "supervisor" / "exit.json").read_text())
        assert (report["reason"], report["self_deleted"]) == ("lease_over", True)


def test_a_machine_that_never_gave_a_sign_goes(tmp_path: Path) -> None:
    with FakeTpu(str(tmp_path / "vms")) as fake:
        vm = Vm(tmp_path, fake, stalled=0.3)
        process = vm.start()
        try:
            wait_until(vm.is_gone)
        finally:
            ended(process)
        report = json.loads((tmp_path / "supervisor" / "exit.json").read_text())
        assert (report["status"], report["reason"]) == (76, "stalled")


def test_a_life_begins_when_it_is_asked_for(tmp_path: Path) -> None:
    """Whose creation took long has less left; clocks that differ take half an hour at most."""
    with FakeTpu(str(tmp_path / "vms")) as fake:
        vm = Vm(tmp_path, fake, limit=1000.0, asked=time.time() - 999.5)
        process = vm.start()
        try:
            wait_until(vm.is_gone)
        finally:
            ended(process)
    with FakeTpu(str(tmp_path / "more")) as fake:
        (tmp_path / "2").mkdir()
        vm = Vm(tmp_path / "2", fake, limit=1e6, asked=1.0)
        process = vm.start()
        try:
            wait_until(lambda: vm.counters().age > 0)
        finally:
            ended(process)
        assert watcher.CREATION_SECONDS <= vm.counters().age < 1.1 * watcher.CREATION_SECONDS


def test_started_again_and_again_it_goes_on_counting(tmp_path: Path) -> None:
    """As systemd does with what dies: 20 restarts used to mean 0 deletions."""
    with FakeTpu(str(tmp_path / "vms")) as fake:
        vm = Vm(tmp_path, fake, limit=1.5)
        last = 0.0
        for _ in range(40):
            process = vm.start()
            try:
                wait_until(lambda: vm.counters().age > last or vm.is_gone())  # noqa: B023
            finally:
                ended(process)
            if vm.is_gone():
                return
            assert vm.counters().age > last
            last = vm.counters().age
        raise AssertionError("it never went")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_a_bucket_that_refuses_and_a_gcloud_that_hangs(tmp_path: Path) -> None:
    """With nothing that can be written, and nothing that answers but service and metadata."""
    with FakeTpu(str(tmp_path / "vms")) as fake:
        vm = Vm(tmp_path, fake, limit=1.0, supervisor_dir="/dev/full/x", model_dir="/dev/full/y")
        for name in ("gcloud", "gsutil", "curl"):
            tool = tmp_path / "bin" / name
            tool.write_text("#!/bin/bash\nsleep 1000\n")
            tool.chmod(0o755)
        (tmp_path / "disk" / "training.log").symlink_to("/dev/full")
        shutil.rmtree(tmp_path / "memory")
        (tmp_path / "disk" / "bigbird-ja-1.counters").symlink_to("/dev/full")
        process = vm.start(str(tmp_path / "bin"))
        try:
            wait_until(vm.is_gone)
        finally:
            ended(process)


def test_a_deletion_that_fails_is_tried_again(tmp_path: Path) -> None:
    with FakeTpu(str(tmp_path / "vms")) as fake:
        vm = Vm(tmp_path, fake, limit=0.1)
        fake.http_script += [503, 500, 403]
        process = vm.start()
        try:
            wait_until(vm.is_gone)
        finally:
            ended(process)
        assert fake.http_script == []


def test_all_addresses_are_asked_whatever_the_first_answers(tmp_path: Path) -> None:
    with FakeTpu(str(tmp_path / "vms")) as fake:
        node = f"{fake.url}/v2/projects/p/locations/z/nodes/run-1"
        vm = Vm(tmp_path, fake, limit=0.1, delete=[f"{fake.url}/v2/nowhere", node])
        process = vm.start()
        try:
            wait_until(vm.is_gone)
        finally:
            ended(process)


def test_a_server_that_sends_a_byte_now_and_then_has_a_deadline(tmp_path: Path) -> None:
    class Slow:
        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: object) -> None: ...

        def read1(self, most: int) -> bytes:
            return b"x"

    class Opener:
        def open(self, request: object, timeout: float) -> Slow:
            return Slow()

    machine = Machine(replace(TERMS, storage="http://x"), str(tmp_path))
    machine._opener = Opener()  # type: ignore[assignment]
    with pytest.raises(TimeoutError):
        machine.request("GET", "http://elsewhere", None, 0.05)
