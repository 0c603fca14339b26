"""Whose machine it is: only what carries the run's id is adopted, counted, shown or deleted."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.run_state import Ending, Phase
from bigbird_ja.launch.services import ATTEMPT_LABEL, ID_LABEL, RUN_DIR_KEY, RUN_LABEL, TpuSpec
from bigbird_ja.launch.supervise import Detached, Stop
from bigbird_ja.process.errors import StorageError
from bigbird_ja.storage.lease import LeaseLost
from testkit.fakes.compute import FakeCompute
from testkit.fakes.tpu import FakeTpu
from testkit.simulated_cloud import SimulatedCloud
from tests.launch import support
from tests.launch.test_machine_lease import DAYS, HOUR
from tests.launch.test_supervisor import SPEC, TRAINER, names, run, settings_with

ZONE = "us-central1-a"
COLLEAGUE = {RUN_LABEL: "run", ID_LABEL: "id-of-a-colleague", ATTEMPT_LABEL: "1"}
FOREIGN = pytest.mark.parametrize(
    "labels", [{}, {"owner": "someone-else", "purpose": "production-serving"}, COLLEAGUE]
)


@FOREIGN
@pytest.mark.parametrize("zone", ["zone-a", "zone-c"])
def test_1_a_name_taken_by_another_ends_the_run_and_is_left_alone(
    labels: Mapping[str, str], zone: str
) -> None:
    cloud = SimulatedCloud(TRAINER, foreign={zone: labels})
    state = run(cloud)
    assert (state.ending, state.ending_reason) == (Ending.GAVE_UP, "bad_input")
    assert all(value in state.ending_message for value in labels.values())
    assert f"zones/{zone}/run" in state.ending_message
    assert (cloud.creations, cloud.foreign_touched) == (0, 0)


@FOREIGN
def test_1_launch_refuses_a_taken_name_before_anything_is_written(
    tmp_path: Path, labels: Mapping[str, str]
) -> None:
    root = str(tmp_path)
    with FakeTpu(f"{root}/vms") as fake:
        support.nodes(fake).create(TpuSpec("run-1", "v3-8", "i"), ZONE, 1, {}, 3600.0)
        machine = fake.machine("run-1")
        machine.node["labels"] = labels
        status, result = support.run(support.command(root, fake), fake)
        assert status == 2 and f"{ZONE}/nodes/run-1 is not of this run" in result["error"]
        assert all(value in result["error"] for value in labels.values())
        assert fake.machine("run-1") is machine and len(fake.created) == 1
        assert not [request for request in fake.requests if request.startswith("DELETE")]
        assert not os.path.exists(f"{root}/bucket")


def test_2_down_deletes_what_it_showed_and_nothing_of_that_name_elsewhere(tmp_path: Path) -> None:
    """A node of the other service, and one without our label, have the same name and zone."""
    root = str(tmp_path)
    with FakeCompute(f"{root}/c") as newer, FakeTpu(f"{root}/t") as older:
        both = {**support.environment(newer), **support.environment(older)}
        spec = TpuSpec("run-1", "v6e-8", "i", "id-1")
        support.engine(newer).create(spec, ZONE, 1, {RUN_DIR_KEY: "gs://b/run-1"}, 1e5)
        for name in ("run-1", "serving"):
            support.nodes(older).create(TpuSpec(name, "v3-8", "i"), ZONE, 1, {}, 1e5)
            older.machine(name).node["labels"] = {"owner": "someone-else"}
        down = ["down", "--project=p", "--name=run-1", "--json"]
        status, result = support.run_with([*down, "--dry_run"], both)
        assert result["left"] == [f"projects/p/zones/{ZONE}/instances/run-1"]
        status, shown = support.run_with(["status", "--project=p", "--json"], both)
        assert [tpu["run_id"] for tpu in shown["tpus"]] == ["id-1"]
        status, result = support.run_with([*down, "--yes"], both)
        assert (status, result["deleted"]) == (0, [f"projects/p/zones/{ZONE}/instances/run-1"])
        assert newer.node_names() == [] and len(older.node_names()) == 2


def test_2_down_asks_with_service_zone_and_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeTpu(str(tmp_path)) as fake:
        spec = TpuSpec("run-1", "v3-8", "i", "id-1")
        support.nodes(fake).create(spec, ZONE, 1, {RUN_DIR_KEY: "gs://mine/run-1"}, 1e5)
        questions: list[str] = []
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or "n")
        assert support.run(["down", "--project=p", "--json"], fake)[0] == 2
        for words in ("the Cloud TPU API", ZONE, "gs://mine/run-1"):
            assert words in questions[0]


@pytest.mark.parametrize(
    ("kind", "accelerator_type"),
    [(FakeTpu, "v3-8"), (FakeCompute, "v6e-8"), (FakeCompute, "v6e-16")],
)
def test_a_service_deletes_only_what_still_is_the_machine_that_was_listed(
    tmp_path: Path, kind: type[support.Fake], accelerator_type: str
) -> None:
    with kind(str(tmp_path)) as fake:
        service = support.nodes(fake) if kind is FakeTpu else support.engine(fake)
        service.create(TpuSpec("run-1", accelerator_type, "i", "id-2"), ZONE, 1, {}, 1e5)
        (theirs,) = service.list(ZONE)
        ours = {**theirs.labels, ID_LABEL: "id-1"}
        for other in ({"labels": ours}, {"created": theirs.created - 60}):
            with pytest.raises(ServiceFault) as caught:
                service.delete(type(theirs)(**{**vars(theirs), **other}))
            assert caught.value.kind is Kind.NOT_FOUND
        assert fake.node_names()
        service.delete(theirs)


def test_3_one_empty_listing_at_the_end_is_not_believed() -> None:
    """It used to say that the TPU is deleted, which trained on for twelve hours."""
    cloud = SimulatedCloud(DAYS, fast=True, wake=(HOUR,))
    cloud.blinks = lambda zone, now: HOUR <= now < HOUR + 120
    state = run(cloud, stop=lambda: Stop.DELETE if cloud.now >= HOUR else Stop.NO)
    assert (state.phase, state.ending) == (Phase.ENDED, Ending.INTERRUPTED)
    assert cloud.nodes == [] and "deleted" in names(cloud)


@pytest.mark.parametrize("seconds", [20.0, 600.0, 2 * HOUR])
def test_3_a_listing_that_blinks_is_no_preemption_and_makes_no_second_machine(
    seconds: float,
) -> None:
    cloud = SimulatedCloud(TRAINER)
    cloud.blinks = lambda zone, now: HOUR <= now % (4 * HOUR) < HOUR + seconds
    state = run(cloud)
    assert (state.ending, state.preemptions) == (Ending.FINISHED, 0)
    assert (cloud.creations, cloud.most_at_once) == (1, 1)


def test_3_a_look_at_the_name_that_shows_nothing_once_is_not_believed() -> None:
    cloud = SimulatedCloud(TRAINER)
    cloud.blinks = lambda zone, now: HOUR <= now < HOUR + 20
    real = cloud.find
    cloud.find = lambda zone, name: (  # type: ignore[method-assign]
        None if HOUR <= cloud.now < HOUR + 20 else real(zone, name)
    )
    state = run(cloud)
    assert (state.ending, state.preemptions, cloud.creations) == (Ending.FINISHED, 0, 1)


@pytest.mark.parametrize("hours", [-9.0, 9.0, 12.0])
@pytest.mark.parametrize("limits", [{"max_usd": 40.0}, {"max_seconds": 30 * HOUR}])
def test_4_clocks_that_differ_change_neither_hours_nor_money(
    limits: dict[str, float], hours: float
) -> None:
    """Two supervisors, the second ten hours later on another machine with a wrong clock."""
    cloud = SimulatedCloud(DAYS)
    settings = settings_with(target_step=DAYS.target_step, **limits)
    with pytest.raises(Detached):
        run(cloud, settings, stop=lambda: Stop.DETACH if cloud.now >= 5 * HOUR else Stop.NO)
    cloud.advance(cloud.now + 10 * HOUR)
    cloud.wall_offset = hours * HOUR
    state = run(cloud, settings)
    assert state.ending is Ending.BUDGET
    spent = 2.4 * cloud.rented_seconds / HOUR
    assert spent <= limits.get("max_usd", math.inf) + 0.5
    assert cloud.now <= limits.get("max_seconds", math.inf) + 0.2 * HOUR
    assert state.cost_usd == pytest.approx(spent, rel=0.05)
    most = min(limits.get("max_usd", math.inf) / 2.4, limits.get("max_seconds", math.inf) / HOUR)
    assert cloud.rented_seconds / HOUR > 0.9 * most  # and ends no run before


def test_nothing_is_rented_that_the_bucket_did_not_take_in_that_very_turn() -> None:
    cloud = SimulatedCloud(TRAINER)
    saves: list[float] = []

    def interfere(act: str, zone: str) -> None:
        if act == "write" and cloud.state is None:
            saves.append(cloud.now)
            if len(saves) < 5:
                raise StorageError("the bucket fails")
        if act == "create":
            assert cloud.state is not None and cloud.state["phase"] == "creating"

    cloud.interfere = interfere
    assert run(cloud).ending is Ending.FINISHED
    assert len(saves) == 5


def test_the_lock_is_asked_again_before_renting() -> None:
    """Another supervisor took over between this turn's look and its decision."""
    cloud = SimulatedCloud(TRAINER)
    beats = iter(range(2))

    def beat() -> None:
        if next(beats, None):
            raise LeaseLost("another has taken over")

    with pytest.raises(LeaseLost):
        run(cloud, beat=beat)
    assert cloud.creations == 0


def test_of_two_machines_of_a_run_one_is_deleted() -> None:
    cloud = SimulatedCloud(TRAINER)
    for zone in ("zone-b", "zone-c"):
        cloud.create(SPEC, zone, 1, {}, math.inf)
    state = run(cloud, stop=lambda: Stop.DELETE if cloud.now > HOUR else Stop.NO)
    assert state.ending is Ending.INTERRUPTED
    assert sorted(node.ends_at > HOUR for node in cloud.past_nodes) == [False, True]

    cloud = SimulatedCloud(TRAINER)

    def interfere(act: str, zone: str) -> None:
        if cloud.now > HOUR and cloud.creations == 1:
            cloud.creations += 1
            cloud._add_node(SPEC, "zone-a", 1, "ok", math.inf)

    cloud.interfere = interfere
    assert run(cloud).ending is Ending.FINISHED
    assert cloud.past_nodes[0].ends_at < 2 * HOUR


def test_the_id_is_stored_before_anything_else_and_stays(tmp_path: Path) -> None:
    root = str(tmp_path)
    with FakeTpu(f"{root}/vms", dict(os.environ), keep_disk=True) as fake:
        ids = []
        for steps in (10, 20):
            assert support.run(support.command(root, fake, steps=steps), fake)[0] == 0
            with open(f"{root}/bucket/run-1/supervisor/launch.json", encoding="utf-8") as file:
                ids.append(json.load(file)["spec"]["run_id"])
        assert ids[0] == ids[1] and len(ids[0]) == 16


@pytest.mark.parametrize(
    "flag",
    [
        "--data_dir=gs://b/d?access_token=ya29.secret",
        "--data_dir=gs://me:secret@b/d",
        "--bucket=gs://b?x=secret",
        "--project=my secret",
        "--network=$(secret)",
        "--vm_python=python3; secret",
    ],
)
def test_what_is_stored_and_sent_has_no_free_text(tmp_path: Path, flag: str) -> None:
    status, result = support.run_with(["launch", "--dry_run", "--json", flag], {})
    assert status == 2 and "belong there" in result["error"]
    assert "secret" not in result["error"]
