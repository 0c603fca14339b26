"""`status`: runs on a bucket, TPUs of a project, the story drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bigbird_ja.launch.run_state import Ending, Phase
from bigbird_ja.launch.services import TpuSpec
from testkit.fakes import trainer
from testkit.fakes.tpu import FakeTpu
from tests.launch import support


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeTpu]:
    with FakeTpu(f"{tmp_path}/vms") as server:
        yield server


def test_runs_and_their_tpus(tmp_path: Path, fake: FakeTpu) -> None:
    bucket = f"{tmp_path}/bucket"
    training = support.make_run(
        bucket, "a", phase=Phase.RUNNING, has_stepped=True, preemptions=3, cost_usd=7.5,
        saved_at=time.time(), best_step=10,
    )  # fmt: skip
    trainer.beat(training.model_dir, 400, "training")
    support.make_run(bucket, "b", phase=Phase.ENDED, ending=Ending.GAVE_UP)
    tpus = support.client(fake)
    tpus.create(TpuSpec("a", "v3-8", "i", "id-a"), "us-central1-a", 1, {}, 3600.0)
    tpus.create(TpuSpec("stray", "v3-8", "i", "id-x"), "us-central1-a", 1, {}, 3600.0)
    flags = ["status", f"--bucket={bucket}", "--project=p"]
    status, result = support.run(flags, fake)
    assert status == 0
    first, second = result["runs"]
    assert (first["name"], first["state"], first["step"]) == ("a", "training", 400)
    assert (first["preemptions"], first["cost_usd"]) == (3, pytest.approx(7.5, abs=0.1))
    assert first["tpus"] == ["v3-8 READY in us-central1-a"]
    assert (second["name"], second["state"], second["tpus"]) == ("b", "gave_up", [])
    assert {tpu["run"] for tpu in result["tpus"]} == {"a", "stray"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--bucket or --project"),
        (["--bucket=/nonexistent", "--name=x"], "no run 'x'"),
        (["--project=p", "--name=x", "--events=3"], "--events"),
    ],
)
def test_bad_input(fake: FakeTpu, flags: list[str], words: str) -> None:
    status, result = support.run(["status", *flags], fake)
    assert status == 2
    assert words in result["error"]


def test_api_that_is_off(fake: FakeTpu) -> None:
    fake.list_script.append("disabled")
    status, result = support.run(["status", "--project=p"], fake)
    assert status == 2
    assert "gcloud services enable" in result["error"]
