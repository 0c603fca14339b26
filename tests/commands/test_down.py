"""`down` lists TPUs, asks for confirmation, deletes them, and verifies that they are deleted."""

import io
import time
from pathlib import Path

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.launch import leftovers
from bigbird_ja.launch.files import make_lock
from bigbird_ja.launch.launched_run import Machine
from bigbird_ja.launch.service import RUN_DIR_KEY
from testkit import emulated
from testkit.fakes.compute import FakeCompute
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

DOWN = ["down", "--project=p", "--yes"]
ZONE = "us-central1-a"
NODE_A = f"projects/p/locations/{ZONE}/nodes/a"
QUEUED_B = "projects/p/locations/europe-west4-a/queuedResources/b"


@pytest.fixture
def fake(tmp_path, fake_tpu):
    """Create a node `a`, and in another zone a queued resource `b` that was preempted."""
    tpus = support.client(fake_tpu)
    metadata = {RUN_DIR_KEY: f"{tmp_path}/bucket/a"}
    tpus.create(support.vm_of("a", "id-a"), ZONE, 1, metadata, 3600.0)
    tpus.create(support.vm_of("b", "id-b", queued=True), "europe-west4-a", 1, {}, 3600.0)
    fake_tpu.preempt("b")
    return fake_tpu


def test_nodes_and_queued_resources_of_all_zones_are_deleted(fake):
    # The first two requests to delete fail.
    fake.delete_script += ["unavailable", "permission"]
    status, result = support.run(DOWN, fake)
    assert (status, sorted(result["deleted"])) == (0, [QUEUED_B, NODE_A])
    assert fake.node_names() == fake.queued_names() == []
    status, result = support.run(DOWN, fake)
    assert (status, result["deleted"]) == (0, [])


def test_only_the_tpus_of_the_named_run_or_bucket_are_deleted(fake):
    assert support.run([*DOWN, "--name=b"], fake)[0] == 0
    assert fake.node_names() == [NODE_A]
    # `b` is deleted, but machine `a` exists. The name may be a misspelling, so the status is 2.
    status, result = support.run([*DOWN, "--name=b"], fake)
    assert status == 2
    assert f"b: no TPU is listed for this; TPUs exist for a in {ZONE}" in result["error"]
    status, result = support.run([*DOWN, "--bucket=gs://other"], fake)
    assert status == 2 and "gs://other: no TPU is listed" in result["error"]
    flags = [f"--bucket={Path(fake.work_dir).parent}/bucket"]
    assert support.run([*DOWN, *flags], fake)[1]["deleted"] == [NODE_A]
    # No machine is left, so that the name cannot be a misspelling. The status is therefore 0.
    status, result = support.run([*DOWN, "--name=a"], fake)
    assert (status, result["left"]) == (0, [])


def test_only_the_listed_machine_is_deleted_and_not_its_namesakes(tmp_path):
    """Keep two nodes of another owner in the machine's zone. One of them has the machine's name."""
    with FakeCompute(f"{tmp_path}/c") as newer, FakeTpu(f"{tmp_path}/t") as older:
        support.client(newer).create(support.vm_of("a", "id-1", "v6e-8"), ZONE, 1, {}, 1e5)
        for name in ("a", "serving"):
            support.client(older).create(support.vm_of(name), ZONE, 1, {}, 1e5)
            older.machine(name).resource["labels"] = {"owner": "someone-else"}
        vm = f"projects/p/zones/{ZONE}/instances/a"
        status, result = support.run([*DOWN, "--name=a"], newer, older)
        assert (status, result["deleted"]) == (0, [vm])
        assert newer.node_names() == [] and len(older.node_names()) == 2


def test_a_machine_is_found_in_the_project_that_its_run_had(fake):
    bucket = f"{Path(fake.work_dir).parent}/bucket"
    support.make_run(bucket, "a", attempt=1, machine=Machine.of(support.vm_of("a")))
    elsewhere = ["down", "--project=q", "--yes"]
    assert support.run(elsewhere, fake)[1]["deleted"] == []
    assert support.run([*elsewhere, f"--bucket={bucket}"], fake)[1]["deleted"] == [NODE_A]


def watch(bucket, renewed):
    """Acquire the lock of run `a` as a running `launch` does.

    `renewed` is the time of the last renewal that the lock file states.
    """
    run = support.make_run(bucket, "a")
    watching = make_lock(run, print, wall=lambda: renewed)
    watching.acquire()
    return watching


def test_a_machine_that_a_running_launch_watches_is_kept(fake):
    """Keep a machine whose run is supervised by a running `launch`, which would create it again.

    The machine's metadata contain the folder of the run.
    """
    watching = watch(f"{Path(fake.work_dir).parent}/bucket", time.time())
    status, result = support.run(DOWN, fake)
    assert (status, result["deleted"]) == (2, [QUEUED_B]) and NODE_A in fake.node_names()
    assert f"a by {watching.owner.name}" in result["error"]


@pytest.mark.parametrize("hours", [-0.1, 0.1, 1e5])
def test_a_lock_with_another_time_does_not_keep_a_machine(hours, fake):
    watch(f"{Path(fake.work_dir).parent}/bucket", time.time() + hours * 3600)
    status, result = support.run(DOWN, fake)
    assert (status, sorted(result["deleted"])) == (0, [QUEUED_B, NODE_A])


DAMAGE = [b"", b"\0" * 1024, b"{", b"7", b"[" * 100_000, b"\xff", b'{"renewed": 1e999}']


@pytest.mark.parametrize("name", ["lock.json", "state.json", "launch.json"])
def test_a_damaged_record_does_not_keep_a_machine(name, fake):
    bucket = f"{Path(fake.work_dir).parent}/bucket"
    path = Path(support.make_run(bucket, "a").supervisor(name))
    for damage in DAMAGE:
        path.write_bytes(damage)
        with pytest.raises(BadInput, match="confirmation: set `yes`"), emulated.serving(fake):
            leftovers.down(project="p", bucket=bucket)
    assert support.run([*DOWN, f"--bucket={bucket}"], fake)[1]["deleted"] == [NODE_A]


@pytest.mark.parametrize("place", ["gs://", "s3://b/a", "\0", "/dev/fd/0", "//"])
def test_no_metadata_keep_a_machine(place, fake):
    fake.machine("a").resource["metadata"][RUN_DIR_KEY] = place
    status, result = support.run(DOWN, fake)
    assert (status, sorted(result["deleted"])) == (0, [QUEUED_B, NODE_A])


def test_listed_machines_are_deleted_although_a_zone_or_a_service_does_not_answer(tmp_path, fake):
    with FakeCompute(f"{tmp_path}/c") as newer:
        support.client(newer).create(support.vm_of("c", "id-c", "v6e-8"), ZONE, 1, {}, 1e5)
        status, result = support.run(["status", "--project=p"], newer, fake)
        assert (status, {tpu["run"] for tpu in result["tpus"]}) == (0, {"a", "b", "c"})
        fake.unreachable.append("projects/p/locations/asia-east1-c")
        status, result = support.run(["status", "--project=p"], newer, fake)
        assert (status, len(result["tpus"])) == (74, 3)
        status, result = support.run(DOWN, newer, fake)
        assert (status, len(result["deleted"])) == (74, 3)
        assert "no answer from asia-east1-c), and may contain machines" in result["error"]
        assert newer.node_names() == fake.node_names() == []


class Terminal(io.StringIO):
    """Standard input that contains an answer, and reports that it is a terminal."""

    def isatty(self):
        return True


def test_nothing_is_deleted_without_a_yes(tmp_path, fake, monkeypatch, capsys):
    down = ["down", "--project=p"]
    status, result = support.run(down, fake)
    assert status == 2
    assert "--yes" in result["error"]
    node = (
        f"a: v3-8 READY in {ZONE}, the Cloud TPU API: {NODE_A} (run {tmp_path}/bucket/a, id id-a)"
    )
    assert node in capsys.readouterr().err
    for answer in ("n", ""):  # "" means that standard input ends without an answer.
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        status, result = support.run(down, fake)
        assert status == 2 and "nothing was deleted" in result["error"]
    assert "delete these 2 TPUs? [y/N]" in capsys.readouterr().err
    assert len(fake.node_names()) == 2


def test_machines_that_cannot_be_deleted_are_reported(fake, monkeypatch):
    monkeypatch.setattr(leftovers, "DELETE_SECONDS", 1.0)
    fake.delete_script += ["permission"] * 100
    status, result = support.run([*DOWN, "--name=a"], fake)
    assert (status, result["left"]) == (74, [NODE_A])
    assert "not deleted and perhaps billed" in result["error"]
