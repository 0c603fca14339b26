"""`down`: shows, asks, deletes, verifies."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from bigbird_ja.launch.run_files import BucketFiles, Run, supervisor_lease
from bigbird_ja.launch.services import RUN_DIR_KEY, TpuSpec
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

NODE_A = "projects/p/locations/us-central1-a/nodes/a"
QUEUED_B = "projects/p/locations/europe-west4-a/queuedResources/b"


@pytest.fixture
def fake(tmp_path: object) -> Iterator[FakeTpu]:
    with FakeTpu(f"{tmp_path}/vms") as server:
        tpus = support.nodes(server)
        tpus.create(TpuSpec("a", "v3-8", "i", "id-a"), "us-central1-a", 1, {}, 3600.0)
        tpus.create(TpuSpec("b", "v3-8", "i", "id-b", queued=True), "europe-west4-a", 1, {}, 3600.0)
        server.preempt("b")
        yield server


def test_all_zones_nodes_and_queues_dead_ones_too(fake: FakeTpu) -> None:
    fake.delete_script += ["unavailable", "permission"]  # the first tries fail
    status, result = support.run(["down", "--project=p", "--yes", "--json"], fake)
    assert status == 0
    assert sorted(result["deleted"]) == [QUEUED_B, NODE_A]
    assert fake.node_names() == fake.queued_names() == []
    status, result = support.run(["down", "--project=p", "--yes", "--json"], fake)
    assert (status, result["deleted"]) == (0, [])


def test_one_run_only(fake: FakeTpu) -> None:
    down = ["down", "--project=p", "--name=b", "--yes", "--json"]
    status, _ = support.run(down, fake)
    assert status == 0
    # Of a name without a TPU nobody can tell whether it is one; a bucket can.
    status, result = support.run(down, fake)
    assert status == 2
    assert "--name=b: no TPU of that run is listed; runs with one: a" in result["error"]
    root = fake.work_dir
    BucketFiles(Run(root, "b")).prepare()
    Run(root, "b", spec=TpuSpec("b", "v3-8", "i", "id-b")).save()
    BucketFiles(Run(root, "damaged")).prepare()
    with open(Run(root, "damaged").supervisor("launch.json"), "w", encoding="utf-8") as file:
        file.write("{")
    status, result = support.run([*down, f"--bucket={root}"], fake)
    assert (status, result["left"]) == (0, [])
    assert [name.rsplit("/")[-1] for name in fake.node_names()] == ["a"]


class Terminal(io.StringIO):
    """Standard input with a person at it."""

    def isatty(self) -> bool:
        return True


def test_nothing_without_a_yes(fake: FakeTpu, monkeypatch: pytest.MonkeyPatch) -> None:
    status, result = support.run(["down", "--project=p", "--json"], fake)
    assert status == 2
    assert "--yes" in result["error"]
    status, result = support.run(["down", "--project=p", "--dry_run", "--json"], fake)
    assert (status, len(result["left"])) == (0, 2)
    for answer in ("n", ""):  # the second: the prompt is closed
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        status, result = support.run(["down", "--project=p", "--json"], fake)
        assert status == 2 and "nothing was deleted" in result["error"]
    assert len(fake.node_names()) == 2


def test_what_cannot_be_deleted_is_reported(fake: FakeTpu) -> None:
    fake.delete_script += ["permission"] * 100
    flags = ["down", "--project=p", "--name=a", "--yes", "--timeout_minutes=0.02", "--json"]
    status, result = support.run(flags, fake)
    assert status == 74
    assert result["left"] == [NODE_A]
    assert "still there" in result["error"]


def test_a_zone_that_nobody_knows_is_no_zone_without_tpus(fake: FakeTpu) -> None:
    flags = ["down", "--project=p", "--yes", "--json"]
    status, result = support.run([*flags, "--zones=us-central9-z"], fake)
    assert status == 2
    assert "no service knows 'us-central9-z'" in result["error"]
    status, result = support.run([*flags, "--zones=us-central1-b"], fake)
    assert (status, result["deleted"]) == (0, [])


def test_a_part_that_does_not_answer_is_not_called_empty(fake: FakeTpu) -> None:
    fake.unreachable.append("projects/p/locations/asia-east1-c")
    status, result = support.run(["down", "--project=p", "--yes", "--json"], fake)
    assert status == 74
    assert "no answer from asia-east1-c" in result["error"]


def test_under_the_hands_of_a_living_launch_nothing_is_deleted(fake: FakeTpu) -> None:
    """Without --bucket: the machine itself says where its run lies."""
    run_dir = f"{fake.work_dir}/bucket/c"
    BucketFiles(Run(f"{fake.work_dir}/bucket", "c")).prepare()
    tpus = support.nodes(fake)
    spec = TpuSpec("c", "v3-8", "i", "id-c")
    tpus.create(spec, "us-central1-a", 1, {RUN_DIR_KEY: run_dir}, 3600.0)
    lock = supervisor_lease(Run(f"{fake.work_dir}/bucket", "c"), print)
    lock.acquire()
    down = ["down", "--project=p", "--name=c", "--yes", "--json"]
    status, result = support.run(down, fake)
    assert status == 2
    assert "c is watched by a `launch`" in result["error"]
    lock.release()
    status, result = support.run(down, fake)
    assert (status, result["deleted"]) == (0, ["projects/p/locations/us-central1-a/nodes/c"])
