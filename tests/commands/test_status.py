"""`status`: runs on a bucket, TPUs of a project, the story drawn."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from bigbird_ja.launch import run_story
from bigbird_ja.launch.run_files import BucketFiles, Run
from bigbird_ja.launch.run_state import Ending, Phase, RunState, Settings
from bigbird_ja.launch.services import TpuSpec
from testkit.fakes import trainer
from testkit.fakes.tpu import FakeTpu
from tests.launch import support

NOW = 1_800_000_000.0


@pytest.fixture
def root(tmp_path: object) -> str:
    return str(tmp_path)


@pytest.fixture
def fake(root: str) -> Iterator[FakeTpu]:
    with FakeTpu(f"{root}/vms") as server:
        yield server


def make_run(root: str, name: str, **state: object) -> Run:
    run = Run(f"{root}/bucket", name, settings=Settings((), 1000, 2.4))
    files = BucketFiles(run)
    files.prepare()
    run.save()
    files.save_state(RunState(name, **state))  # type: ignore[arg-type]
    return run


def test_runs_and_their_tpus(root: str, fake: FakeTpu) -> None:
    training = make_run(
        root, "a", phase=Phase.RUNNING, has_stepped=True, preemptions=3, cost_usd=7.5,
        saved_wall=time.time(), best_step=10,
    )  # fmt: skip
    trainer.beat(training.model_dir, 400, "training")
    make_run(root, "b", phase=Phase.ENDED, ending=Ending.GAVE_UP, ending_message="out of luck")
    tpus = support.nodes(fake)
    tpus.create(TpuSpec("a", "v3-8", "i"), "us-central1-a", 1, {}, 3600.0)
    tpus.create(TpuSpec("stray", "v3-8", "i"), "us-central1-a", 1, {}, 3600.0)
    flags = ["status", f"--bucket={root}/bucket", "--project=p", "--json"]
    status, result = support.run(flags, fake)
    assert status == 0
    first, second = result["runs"]
    assert (first["name"], first["state"], first["step"]) == ("a", "training", 400)
    assert (first["preemptions"], first["cost_usd"]) == (3, pytest.approx(7.5, abs=0.1))
    assert first["tpus"] == ["v3-8 READY in us-central1-a"]
    assert (second["name"], second["state"], second["tpus"]) == ("b", "gave_up", [])
    assert {tpu["run"] for tpu in result["tpus"]} == {"a", "stray"}


def test_an_unwatched_tpu_still_costs(root: str) -> None:
    from bigbird_ja.launch.services import Presence, Tpu

    make_run(root, "a", phase=Phase.RUNNING, billing=True, cost_usd=1.0, saved_wall=NOW - 3600)
    ready = Tpu("a", "z", Presence.READY, "READY")
    story = run_story.read(f"{root}/bucket", "a", [ready], 0, NOW)
    assert story.cost_usd == pytest.approx(1.0 + 2.4)
    assert story.watched_by is None


def test_eta_from_the_rate(root: str) -> None:
    paths = make_run(root, "a", phase=Phase.RUNNING)
    trainer.beat(paths.model_dir, 400, "training")  # 1,000 tokens per second
    story = run_story.read(f"{root}/bucket", "a", [], 500, NOW)
    assert story.eta_seconds == pytest.approx(600 * 500 / 1000)


def test_events_of_a_preempted_run(root: str) -> None:
    with FakeTpu(f"{root}/real", dict(os.environ), keep_disk=True) as fake:

        def preempt() -> None:
            support.wait_until(lambda: support.step_of(root) >= 30)
            fake.preempt("run-1")

        support.in_background(preempt)
        status, _ = support.run(support.command(root, fake), fake)
        assert status == 0
        flags = [f"--bucket={root}/bucket", "--name=run-1", "--events=20"]
        status, result = support.run(["status", *flags, "--json"], fake)
    assert status == 0
    assert result["runs"][0]["state"] == "finished"
    assert result["runs"][0]["preemptions"] == 1
    events = run_story.events(f"{root}/bucket", "run-1")
    assert [event["event"] for event in events].count("preempted") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--bucket or --project"),
        (["--bucket=/nonexistent", "--name=x"], "no run 'x'"),
        (["--project=p", "--events=3"], "--events"),
    ],
)
def test_bad_input(fake: FakeTpu, flags: list[str], words: str) -> None:
    status, result = support.run(["status", *flags, "--json"], fake)
    assert status == 2
    assert words in result["error"]


def test_api_that_is_off(fake: FakeTpu) -> None:
    fake.list_script.append("disabled")
    status, result = support.run(["status", "--project=p", "--json"], fake)
    assert status == 2
    assert "gcloud services enable" in result["error"]
