"""Outcomes and refusals of `pretrain`, in real processes."""

import collections
import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from bigbird_ja import cli, storage
from bigbird_ja.errors import BadInput
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.model_dir.model import load_parameters
from bigbird_ja.storage.ownership import MANIFEST_NAME
from bigbird_ja.train import train as train_lib
from bigbird_ja.train.engines import host_memory
from testkit import command_line, killing
from testkit.fakes.gcs_process import TOKEN
from testkit.fakes.network import Network
from testkit.machines import PretendedMachine
from tests.commands.pretraining import STEPS, events, refused, resumed_at_last

RECORDS = ("config.yaml", "events.jsonl", "heartbeat.json")


def test_finished_run_says_so_and_stays_as_it_is(runs, tmp_path, run):
    """Keep the files of a finished run, even if fewer steps are requested."""
    start = runs.copied(tmp_path)
    kept = {name: (tmp_path / "model" / name).read_bytes() for name in RECORDS}
    again = run(*start)
    assert again.status == 0 and "nothing left to do" in again.stderr
    assert again.json["loss"] == runs.ended.result["loss"]
    shorter = run(*start, f"--num_train_steps={STEPS - 5}")
    assert shorter.status == 0 and shorter.json["global_step"] == STEPS
    assert f"step {STEPS}, past training.num_train_steps={STEPS - 5}" in shorter.stderr
    assert kept == {name: (tmp_path / "model" / name).read_bytes() for name in RECORDS}


@pytest.mark.parametrize("how", ["SIGHUP", "--max_train_minutes=1"])
def test_stop_during_start_up_ends_with_75_and_no_checkpoint(runs, tmp_path, how):
    model = tmp_path / "model"
    flags = [how] if how.startswith("--") else []
    running = runs.hung(*runs.flags, "--model_dir", str(model), *flags, at=("start-up", 1))
    if not flags:
        running.send(signal.SIGHUP)
    ended = resumed_at_last(running, how.replace("=", " ") + ": ")
    assert ended.status == 75 and ended.result["reason"] == "interrupted", ended.err
    assert "no step was finished" in ended.err and CheckpointStore(str(model)).list_steps() == []


def test_a_log_without_a_reader_saves_and_ends_with_75(runs, tmp_path):
    words = [sys.executable, "-m", "bigbird_ja", *runs.new(tmp_path), "--num_train_steps=100000"]
    line = f"{shlex.join(words)} 2>&1 >{tmp_path}/out | sed '/^step /q'; exit ${{PIPESTATUS[0]}}"
    ended = command_line.run("bash", "-c", line)
    result = json.loads((tmp_path / "out").read_text())
    assert ended.status == 75 and result["reason"] == "interrupted", ended
    assert CheckpointStore(str(tmp_path / "model")).list_steps()[-1] == result["global_step"] > 0


def test_second_ctrl_c_ends_without_waiting_for_the_save(runs, tmp_path):
    """Exit at once on a second Ctrl-C, and lose the checkpoint of step 10 that is being saved."""
    running = runs.hung(*runs.new(tmp_path), at=("save", 2))
    running.send(signal.SIGINT)
    running.wait_for(running.hung.with_name("err"), "press Ctrl-C again to exit now")
    running.send(signal.SIGINT)
    ended = running.wait()
    assert ended.status == 75 and ended.result["reason"] == "interrupted"
    assert CheckpointStore(str(tmp_path / "model")).list_steps() == [5]


def test_the_watchdog_ends_a_frozen_run_with_stacks(runs, tmp_path):
    ended = runs.zygote.run(
        *runs.new(tmp_path), "--set", "training.stall_minutes=0.2", hang_at=["step", 3]
    )
    assert ended.status == 76 and ended.result["reason"] == "stalled"
    assert "zygote.py" in ended.err and "most recent call first" in ended.err
    model = str(tmp_path / "model")
    beat = run_log.read_heartbeat(model)
    assert beat is not None and (beat["state"], beat["reason"]) == ("stopped", "stalled")
    assert run_log.read_events(model)[-1]["reason"] == "stalled"


def test_second_trainer_on_a_model_dir_is_refused(runs, tmp_path):
    """Refuse a second trainer while the first one runs, even with --overwrite.

    After the first trainer was killed, a third one takes over the lock.
    """
    start = runs.new(tmp_path)
    first = runs.hung(*start, at=("save", 2))
    for flags in ([], ["--overwrite", "--set", "training.seed=7"]):
        second = runs.zygote.run(*start, *flags)
        assert second.status == 2 and f"process {first.pid}" in second.err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    first.send(signal.SIGKILL)
    assert first.wait().status == -signal.SIGKILL
    third = runs.zygote.run(*start)
    assert third.status == 0 and "took over the stale lock" in third.err
    assert killing.digest(str(tmp_path / "model")) == killing.digest(str(runs.finished))


def test_full_disk_ends_with_74_and_the_last_checkpoint_intact(runs, tmp_path):
    start = [*runs.copied(tmp_path), "--num_train_steps", str(STEPS + 5)]
    model = str(tmp_path / "model")
    before = killing.digest(model)
    full = runs.zygote.run(*start, limits={"FSIZE": 200_000})
    assert full.status == 74 and full.result["reason"] == "io_error", full.err
    assert "Traceback" not in full.err
    assert killing.digest(model) == before
    assert [n for n in os.listdir(model) if n.startswith(".")] == [MANIFEST_NAME]
    assert runs.zygote.run(*start).result["global_step"] == STEPS + 5


def test_refusing_bucket_ends_the_run_with_the_cause(runs, fake_gcs, bucket):
    """Exit with the status of an I/O error, since a later start may have valid credentials."""
    model = f"{bucket}/model"
    running = runs.hung(*runs.flags, "--model_dir", model, at=("save", 1))
    fake_gcs.fault("/b/b-", "status", code=403, times=-1)
    running.hung.unlink()
    ended = running.wait()
    fake_gcs.clear()
    assert ended.status == 74 and ended.result["reason"] == "io_error", ended.err
    # The message names the first request that failed, which is for the lock. Requests of the
    # clean-up fail later.
    assert f"{model}/lock.json" in ended.err.splitlines()[-1] and "Traceback" not in ended.err
    assert CheckpointStore(model).list_steps() == []


@pytest.mark.parametrize("fault", [{"code": 503}, {"do": "short", "bytes": 2000}], ids=str)
def test_unreadable_data_ends_the_run(fault, runs, inputs, fake_gcs, bucket, tmp_path):
    for path in Path(inputs[1]).iterdir():
        fake_gcs.put(f"{bucket}/data/{path.name}", path.read_bytes())
    # Fail the requests of TensorFlow for shards.
    shards = "GET storage.googleapis.com/.*tfrecord"
    fake_gcs.fault(shards, times=-1, **{"do": "status", **fault})
    ended = runs.zygote.run(*runs.new(tmp_path), "--data_dir", f"{bucket}/data")
    assert ended.status == 74 and ended.result["reason"] == "io_error", ended.err
    assert "Traceback" not in ended.err and TOKEN not in ended.err + ended.out
    assert "record" in ended.err.splitlines()[-1]  # This is a message of TensorFlow.


@pytest.mark.parametrize(("code", "status"), [(403, 2), (503, 74)])
def test_bucket_that_cannot_be_listed_is_not_a_new_run(
    code, status, runs, fake_gcs, bucket, capsys
):
    fake_gcs.fault("GET .*/o\\?.*prefix=", "status", code=code, times=-1)
    refused([*runs.flags, "--model_dir", f"{bucket}/model"], capsys, bucket, status=status)
    fake_gcs.clear()
    assert fake_gcs.names(bucket.removeprefix("gs://")) == []


def test_run_continues_with_another_rate_and_batch_size(runs, inputs, tmp_path, capsys):
    runs.copied(tmp_path)
    model = tmp_path / "model"
    here = ["pretrain", "--data_dir", inputs[1], "--model_dir", str(model), "--json"]
    changes = {"training.learning_rate": [0.002, 0.001], "training.global_batch_size": [4, 8]}
    flags = [f"--set={key}={new}" for key, (_, new) in changes.items()]
    ended = runs.zygote.run(*here, "--num_train_steps=35", *flags)
    assert ended.status == 0, ended.err
    # Only the changed settings are listed, each with the run's previous value.
    assert "training.global_batch_size = 8  (run 4; from --set)" in ended.err
    assert "model.num_layers" not in ended.err
    recorded = [e for e in run_log.read_events(str(model)) if e["event"] == "continued_with"]
    assert [(e["global_step"], e["settings"]) for e in recorded] == [(30, changes)]  # type: ignore[typeddict-item]
    store = CheckpointStore(str(model))
    meta, before = store.read_meta(35), store.read_meta(30)
    assert (before.next_batch, before.global_batch_size) == (30, 4)
    # 30 batches of 4 are 15 batches of 8, and 5 more batches follow.
    assert (meta.next_batch, meta.global_batch_size) == (20, 8)
    assert meta.tokens_seen == pytest.approx(before.tokens_seen * (1 + 10 / 30), abs=2)
    rates = [m["learning_rate"] for m in run_log.read_metrics(str(model)) if m["step"] > 30]
    assert max(rate or 1 for rate in rates) < 0.001 * 6 / 30
    load_parameters(str(model), 30)  # The checkpoint before the change can still be loaded.
    # A rerun continues with the changed settings, whether it states them again or not.
    for more in ([], flags):
        assert cli.run_command_line([*here, *more, "--num_train_steps=35"]) == 0
        assert "nothing left to do" in capsys.readouterr().err
    assert len([e for e in events(model) if e == "continued_with"]) == 1


def test_overwrite_moves_the_old_run_aside_and_follows_a_link(runs, tmp_path, capsys, monkeypatch):
    start, model = runs.copied(tmp_path), tmp_path / "model"
    with monkeypatch.context() as patch:
        patch.chdir(model)
        refused([*runs.flags, "--model_dir", ".", "--overwrite"], capsys, "working directory")
    (tmp_path / "link").symlink_to(model)
    here = ["--model_dir", str(tmp_path / "link"), "--overwrite", "--num_train_steps", "4"]
    ended = runs.zygote.run(*start, *here, "--set", "training.seed=7")
    assert ended.status == 0 and "replaced-1" in ended.err, ended.err
    assert killing.digest(f"{model}.replaced-1") == killing.digest(str(runs.finished))
    assert CheckpointStore(str(model)).list_steps() == [4] and (tmp_path / "link").is_symlink()


def test_num_cores_in_a_users_file_are_refused_under_pjrt(runs, tmp_path, capsys, monkeypatch):
    """Refuse `tpu.num_cores` in a user's file that contains only this setting.

    Accept it in a preset, and in a file with all settings of a preset.
    """
    here = [*runs.flags, "--model_dir", str(tmp_path / "model")]
    file = tmp_path / "mine.yaml"
    file.write_text("tpu: {num_cores: 8}")
    refused([*here, f"--config={file}"], capsys, f"tpu.num_cores ({file})", "--engine pjrt")
    assert cli.run_command_line(["config", "base-4096"]) == 0
    file.write_text(capsys.readouterr().out)

    def train(*_):
        raise BadInput("here it would train")

    monkeypatch.setattr(train_lib, "train", train)
    for config in ("base-4096", str(file)):
        refused([*here, f"--config={config}"], capsys, "here it would train")


def test_resume_on_a_bucket_lists_the_folder_once_and_reads_each_file_once(
    runs, bucket, fake_gcs, inputs
):
    for folder, name in ((Path(inputs[1]), "data"), (runs.finished, "model")):
        for path in filter(Path.is_file, folder.rglob("*")):
            fake_gcs.put(f"{bucket}/{name}/{path.relative_to(folder)}", path.read_bytes())
    fake_gcs.log(clear=True)
    places = [f"--data_dir={bucket}/data", f"--model_dir={bucket}/model"]
    # The lease is renewed once an hour, so that a slow machine does not make more requests.
    hour = {"BIGBIRD_JA_LEASE_SECONDS": "14400"}
    more = ["--set=checkpoints.save_every_steps=100", f"--num_train_steps={STEPS + 2}"]
    ended = runs.zygote.run(*runs.flags, *places, *more, environ=hour)
    assert ended.status == 0, ended.err
    asked = [entry["request"] for entry in fake_gcs.log()]
    assert not [one for one in asked if "googleapis" in one and "upload" in one], "TensorFlow"
    names = [re.sub(r".*/o/|.*/b-[^/]*/", "", one.split("?")[0]) for one in asked]
    data = collections.Counter(name for name in names if name.startswith("data/"))
    print(f"{len(asked)} requests of a resume: {data}")
    assert len(data) >= 4 and max(data.values()) == 1, "each shard that is needed, by one request"
    assert len(asked) <= 70  # At the time of writing there are 62 requests.
    start = asked[: next(i for i, one in enumerate(asked) if "data/train-" in one)]
    assert len([one for one in start if "prefix=model/&" in one]) == 1, "MODEL_DIR is listed once"
    read = collections.Counter(
        re.sub(r".*/o/", "", one.split("?")[0]) for one in start if "alt=media" in one
    )
    del read["model/lock.json"]  # The lock is read several times.
    assert read["model/.bigbird-ja.json"] == 1 and max(read.values()) == 1, read


@pytest.mark.parametrize("instant", [("between-files", 4), ("between-files", 6), ("save", 2)])
def test_a_trainer_that_was_cut_off_changes_nothing_of_the_run_that_another_finished(
    runs, bucket, fake_gcs, instant
):
    """Disconnect the first trainer during its second save, until after its lease has expired.

    A second trainer finishes the run before the first one is connected again.
    """
    model, lease = f"{bucket}/model", {"BIGBIRD_JA_LEASE_SECONDS": "2"}
    command = [*runs.flags, f"--model_dir={model}"]
    with Network(fake_gcs.url) as network:
        # With this timeout, the first trainer still retries when the second one has finished.
        apart = {"STORAGE_EMULATOR_HOST": network.url, "BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS": "300"}
        first = runs.zygote.start(*command, hang_at=instant, environ=lease | apart)
        first.wait_for(first.hung)
        network.cut()
        second = runs.zygote.run(*command, environ=lease)
        assert second.status == 0 and "took over the stale lock" in second.err, second.err
        finished = {name: storage.stat(f"{model}/{name}") for name in storage.list_tree(model)}
        network.restore()
        first.hung.unlink()
        ended = first.wait()
    assert ended.status == 74 and "This process stops writing" in ended.err, ended.err
    left = {name: storage.stat(f"{model}/{name}") for name in storage.list_tree(model)}
    assert left == finished


def test_missing_device_is_refused_before_tensorflow_is_imported(
    runs, tmp_path, monkeypatch, capsys
):
    PretendedMachine(monkeypatch, {"jax": "99"}, ())
    monkeypatch.setitem(sys.modules, "bigbird_ja.train.train", None)
    here = [*runs.flags, f"--model_dir={tmp_path / 'model'}", "--use_tpu"]
    refused(here, capsys, "this machine has no TPU")
    assert not (tmp_path / "model").exists()


def test_step_that_does_not_fit_is_refused_by_the_compilers_figures(
    runs, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(host_memory, "find_available_bytes", lambda: 10_000)
    # This model compiles fast.
    small = ["--set=model.num_layers=1", "--set=model.hidden_dropout_prob=0"]
    here = [*runs.flags, f"--model_dir={tmp_path / 'model'}", *small]
    refused(here, capsys, "needs about", "training.global_batch_size", status=71)
    assert not (tmp_path / "model").exists()
