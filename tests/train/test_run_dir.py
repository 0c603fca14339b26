"""MODEL_DIR before the first step, and its scratch folder."""

import os
import shutil
from pathlib import Path

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import Meta
from bigbird_ja.train import Dependencies
from bigbird_ja.train.run_dir import RunDir, next_batch
from testkit.configs import fitted, with_data

DEPS = Dependencies(log=lambda text: None)


def config(*sets):
    return fitted(None, sets)


def start(directory):
    """A run that has logged one step."""
    directory.mkdir(exist_ok=True)
    run = RunDir(str(directory))
    with run.locked(DEPS):
        run.write_settings(*with_data(config()), str(directory / "none"))
        run.events.append("started")
        line = {"step": 1, "loss": 1.0, "time": 0.0}
        run_log.append_line(str(directory / run_log.METRICS), line)
    return RunDir(str(directory))


def test_a_directory_without_work_takes_any_config(tmp_path):
    RunDir(str(tmp_path / "none")).check_settings(*with_data(config()))
    run = RunDir(str(tmp_path))
    with run.locked(DEPS):
        run.write_settings(*with_data(config()), str(tmp_path / "none"))
        run.events.append("started")
    RunDir(str(tmp_path)).check_settings(*with_data(config("training.seed=1")))


def test_moving_aside_never_overwrites(tmp_path):
    for number in (1, 2):
        start(tmp_path / "run")
        with RunDir(str(tmp_path / "run"), overwrite=True).locked(DEPS):
            assert (tmp_path / f"run.replaced-{number}" / "config.yaml").exists()
    assert not RunDir(str(tmp_path / "run")).has_work


def test_events_between_opening_and_locking_are_read(tmp_path):
    run = start(tmp_path)
    run_log.EventLog(str(tmp_path)).append("resumed")
    assert run.last_start()["event"] == "started"
    with run.locked(DEPS):
        assert run.last_start()["event"] == "resumed"


def test_a_run_copied_without_its_mark_is_adopted_by_choice_where_its_files_prove_it(
    small_run, run_cli, tmp_path
):
    """`cp run/*`: it was called another tool's folder, and could never be resumed."""
    skips = shutil.ignore_patterns(".*", "events.out.*")
    copy = shutil.copytree(small_run.model_dir, tmp_path / "copy", ignore=skips)
    flags = [f"--data_dir={small_run.data_dir}", f"--model_dir={copy}", "--num_train_steps=7"]
    refused = run_cli("pretrain", *flags)
    assert refused.status == 2 and len(refused.stderr.splitlines()) == 1
    assert "without its .bigbird-ja.json, which `cp RUN/*` leaves out" in refused.stderr
    edited = shutil.copytree(copy, tmp_path / "edited")
    text = (edited / "config.yaml").read_text().replace("weight_decay: 0.01", "weight_decay: 0.02")
    (edited / "config.yaml").write_text(text)
    with pytest.raises(BadInput, match="is not the config that checkpoint"):
        RunDir(str(edited), adopts=True)
    bare = shutil.copytree(copy, tmp_path / "bare", ignore=shutil.ignore_patterns("model.ckpt*"))
    with pytest.raises(BadInput, match="no checkpoint with a sidecar"):
        RunDir(str(bare), adopts=True)
    assert not (edited / ".bigbird-ja.json").exists() and not (bare / ".bigbird-ja.json").exists()
    ended = run_cli("pretrain", *flags, "--adopt", "--json")
    assert ended.status == 0, ended.stderr
    assert run_log.read_events(str(copy))[-1]["event"] == "finished"
    assert RunDir(str(copy)).owned.is_unchanged("config.yaml")


@pytest.mark.parametrize(
    ("batch", "size", "new_size", "expected"),
    [(7, 16, 16, 7), (7, 16, 32, 4), (7, 16, 5, 23), (4, 32, 32, 4), (4, 32, 16, 8)],
)
def test_batches_of_another_size_begin_behind_all_that_was_seen(batch, size, new_size, expected):
    meta = Meta(9, "c", "d", 0.0, 0, 0, 0.0, next_batch=batch, global_batch_size=size)
    assert next_batch(meta, config(f"training.global_batch_size={new_size}")) == expected


def test_on_a_bucket_scratch_is_in_the_systems_place(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with RunDir(f"{bucket}/model").locked(DEPS) as (_, scratch):
        assert Path(scratch).is_relative_to(tmp_path)
    assert os.listdir(tmp_path) == []


def test_on_a_disk_scratch_is_in_model_dir_and_gone_with_the_run(tmp_path):
    """What a kill has left goes at the next start, by the id of the mark in its name."""
    run = start(tmp_path)
    (tmp_path / ".scratch-thesis").mkdir()
    with run.locked(DEPS) as (_, scratch):
        assert os.listdir(scratch) == [] and Path(scratch).is_relative_to(tmp_path)
        left = Path(scratch).name
    (tmp_path / left).mkdir()  # as it was when a kill came
    with RunDir(str(tmp_path)).locked(DEPS):
        assert not (tmp_path / left).exists()
    folders = [path.name for path in tmp_path.iterdir() if path.is_dir()]
    assert folders == [".scratch-thesis"]
