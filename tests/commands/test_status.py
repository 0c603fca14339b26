"""`status` lists the runs on a bucket and the TPUs of a project."""

import time

import pytest

from bigbird_ja.launch.service import RUN_DIR_KEY
from bigbird_ja.launch.state import Ending, Phase
from testkit.fakes import trainer
from tests.launch import support


def test_runs_and_their_tpus(tmp_path, fake_tpu):
    bucket = f"{tmp_path}/bucket"
    training = support.make_run(
        bucket,
        "a",
        phase=Phase.RUNNING,
        has_stepped=True,
        preemptions=3,
        cost_usd=7.5,
        saved_at=time.time(),
        best_step=10,
    )
    trainer.beat(training.model_dir, 400, "training")
    support.make_run(bucket, "b", phase=Phase.ENDED, ending=Ending.GAVE_UP)
    tpus = support.client(fake_tpu)
    tpus.create(
        support.vm_of("a", "id-a"), "us-central1-a", 1, {RUN_DIR_KEY: f"{bucket}/a"}, 3600.0
    )
    tpus.create(support.vm_of("stray", "id-x"), "us-central1-a", 1, {}, 3600.0)
    flags = ["status", f"--bucket={bucket}", "--project=p"]
    status, result = support.run(flags, fake_tpu)
    assert status == 0
    first, second = result["runs"]
    assert (first["name"], first["state"], first["step"]) == ("a", "training", 400)
    assert (first["preemptions"], first["cost_usd"]) == (3, pytest.approx(7.5, abs=0.1))
    assert first["tpus"] == ["v3-8 READY in us-central1-a"]
    assert (second["name"], second["state"], second["tpus"]) == ("b", "gave_up", [])
    assert {tpu["run"] for tpu in result["tpus"]} == {"a", "stray"}
    (tmp_path / "bucket/b/supervisor/state.json").write_text("{")
    _, result = support.run(flags, fake_tpu)
    assert [one["state"] for one in result["runs"]] == ["training", "unreadable"]
    assert "state.json" in result["runs"][1]["message"]
