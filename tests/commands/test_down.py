"""`down`: shows, asks, deletes, verifies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bigbird_ja.cloud.tpu import GcpTpus, TpuSpec, emulator_client
from bigbird_ja.commands import down
from testkit.fakes.tpu import FakeTpu
from tests.cloud import support


@pytest.fixture
def fake(tmp_path: object) -> Iterator[FakeTpu]:
    with FakeTpu(f"{tmp_path}/vms") as server:
        tpus = GcpTpus("p", emulator_client(server.address))
        tpus.create(TpuSpec("a", "v3-8", "i"), "us-central1-a", 1, {})
        tpus.create(TpuSpec("b", "v3-8", "i", queued=True), "europe-west4-a", 1, {})
        server.preempt("b")
        yield server


def test_all_zones_nodes_and_queues_dead_ones_too(fake: FakeTpu) -> None:
    fake.delete_script += ["unavailable", "permission"]  # the first tries fail
    status, result = support.run(["down", "--project=p", "--yes", "--json"], fake)
    assert status == 0
    assert sorted(result["deleted"]) == ["europe-west4-a/b", "us-central1-a/a"]
    assert fake.node_names() == fake.queued_names() == []
    status, result = support.run(["down", "--project=p", "--yes", "--json"], fake)
    assert (status, result["deleted"]) == (0, [])


def test_one_run_only(fake: FakeTpu) -> None:
    status, _ = support.run(["down", "--project=p", "--name=b", "--yes", "--json"], fake)
    assert status == 0
    assert [name.rsplit("/")[-1] for name in fake.node_names()] == ["a"]


def test_nothing_without_a_yes(fake: FakeTpu, monkeypatch: pytest.MonkeyPatch) -> None:
    status, result = support.run(["down", "--project=p", "--json"], fake)
    assert status == 2
    assert "--yes" in result["error"]
    status, result = support.run(["down", "--project=p", "--dry_run", "--json"], fake)
    assert (status, len(result["left"])) == (0, 2)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda text: "n")
    status, result = support.run(["down", "--project=p", "--json"], fake)
    assert "nothing was deleted" in result["error"]
    assert len(fake.node_names()) == 2


def test_what_cannot_be_deleted_is_said(fake: FakeTpu) -> None:
    fake.delete_script += ["permission"] * 100
    flags = ["down", "--project=p", "--name=a", "--yes", "--timeout_minutes=0.02", "--json"]
    status, result = support.run(flags, fake)
    assert status == 74
    assert result["left"] == ["us-central1-a/a"]
    assert "still there" in result["error"]


def test_project_is_needed(fake: FakeTpu) -> None:
    status, result = support.run(["down", "--json"], fake)
    assert status == 2
    assert "--project" in result["error"]


def test_waiting_needs_no_real_time() -> None:
    class Empty:
        def list(self, zone: str) -> list[object]:
            return []

    assert down.delete_all(Empty(), [], 1.0, lambda: 0.0, lambda seconds: None) == []  # type: ignore[arg-type]
