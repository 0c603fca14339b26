"""`pretrain` as users run it: real processes, a tiny model, every way to end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bigbird_ja.cli import main
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore
from bigbird_ja.run.model import load_parameters
from bigbird_ja.train.engines import choice
from testkit import killing, profiles, synthetic
from testkit.fakes.gcs_process import FakeGcs
from testkit.runs import ENGINE
from testkit.zygote import Ended, Zygote

STEPS = 30


@pytest.fixture(scope="module")
def flags(inputs: tuple[str, str]) -> list[str]:
    config, data = inputs
    return [
        "pretrain", ENGINE, "--config", config, "--data_dir", data, "--num_train_steps", str(STEPS)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def finished(
    zygote: Zygote, flags: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Ended]:
    """A run that was left alone."""
    model = tmp_path_factory.mktemp("finished") / "model"
    ended = zygote.run(*flags, "--model_dir", str(model), "--json")
    assert ended.status == 0, ended.err
    return model, ended


def copy(finished: tuple[Path, Ended], directory: Path) -> Path:
    return Path(shutil.copytree(finished[0], directory / "model"))


def events(model: Path) -> list[str]:
    return [event["event"] for event in run_log.read_events(str(model))]


def test_a_run_leaves_what_the_contract_names(finished: tuple[Path, Ended]) -> None:
    model, ended = finished
    result = ended.result
    assert (result["global_step"], result["reason"]) == (STEPS, "finished")
    records = run_log.read_metrics(str(model))
    assert [r["step"] for r in records] == [4, 8, 12, 16, 20, 24, 28, STEPS]
    assert records[-1]["loss"] == result["loss"] > 0
    for key in ("masked_lm_accuracy", "learning_rate", "tokens_per_second", "time"):
        assert all(isinstance(record[key], float) for record in records)
    beat = run_log.read_heartbeat(str(model))
    assert beat is not None
    assert (beat["global_step"], beat["state"], beat["reason"]) == (STEPS, "stopped", "finished")
    assert {"run", "time", "tokens_per_second", "host", "pid"} <= beat.keys()
    assert events(model) == ["started"] + ["saved"] * 6 + ["finished"]
    names = {path.name for path in model.iterdir()}
    assert {"config.yaml", "tokenizer.model", "checkpoint", "heartbeat.json"} <= names
    assert not [name for name in names if name.startswith(".") or name == "lock.json"]
    assert CheckpointStore(str(model)).steps() == [25, 30]
    line = ended.err.splitlines()[-2]  # the last one says what comes next
    for part in (f"step {STEPS} of {STEPS}", "100.0%", "loss", "accuracy", "tokens/s", "ETA"):
        assert part in line
    assert "Traceback" not in ended.err


def test_tensorflow_and_tensorboard_find_their_files(finished: tuple[Path, Ended]) -> None:
    import tensorflow as tf
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model, ended = finished
    assert tf.train.latest_checkpoint(str(model)) == str(model / f"model.ckpt-{STEPS}")
    board = EventAccumulator(str(model))
    board.Reload()
    last = board.Scalars("train/loss")[-1]
    assert last.step == STEPS and last.value == pytest.approx(ended.result["loss"])
    assert "speed/tokens_per_second" in board.Tags()["scalars"]


def test_parameters_load_without_the_optimisers_state(finished: tuple[Path, Ended]) -> None:
    config, params, meta = load_parameters(str(finished[0]))
    assert meta.step == STEPS and meta.tokens_seen > 0 and meta.train_seconds > 0
    assert config.model.vocab_size == 200
    assert params["bert/embeddings/word_embeddings"].shape == (200, 32)
    assert not [name for name in params if "adam" in name or name == "global_step"]


def test_on_finished_work_it_says_so(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended]
) -> None:
    again = zygote.run(*flags, "--model_dir", str(finished[0]), "--json")
    assert again.status == 0 and "nothing left to do" in again.err
    assert again.result["loss"] == finished[1].result["loss"]
    assert events(finished[0]).count("finished") == 1


def test_sigterm_saves_and_the_same_command_continues_bit_for_bit(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    here = [*flags, "--model_dir", str(model), "--json"]
    running = zygote.start(*here)
    running.wait_for(model / "metrics.jsonl", '"step": 4')
    running.send(signal.SIGTERM)
    ended = running.wait()
    if ended.status == 0:
        pytest.skip("this machine was done before the signal came")
    assert ended.status == 75, ended.err
    step = ended.result["global_step"]
    assert ended.result["reason"] == "interrupted" and ended.result["loss"] > 0
    assert CheckpointStore(str(model)).steps()[-1] == step
    assert "SIGTERM" in ended.err.splitlines()[-1]
    beat = run_log.read_heartbeat(str(model))
    assert beat is not None and beat["reason"] == "interrupted"
    resumed = zygote.run(*here, "--engine=auto")
    assert resumed.status == 0 and resumed.result["interruptions"] == 1
    assert not choice.has_estimator() or "(auto: this run was begun under it" in resumed.err
    assert resumed.result["train_seconds"] > ended.result["train_seconds"]
    assert killing.digest(str(model)) == killing.digest(str(finished[0]))
    steps = [record["step"] for record in run_log.read_metrics(str(model))]
    assert steps == sorted({4, 8, 12, 16, 20, 24, 28, STEPS, step})


def test_a_time_limit_saves_and_the_same_command_continues_bit_for_bit(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    here = [*flags, "--model_dir", str(model), "--json", "--max_train_minutes", "7.5"]
    step = killing.stopped_by_its_time_limit(zygote, here, model)
    ended = zygote.run(*here)
    assert ended.status == 0 and ended.result["interruptions"] == 1, ended.err
    assert 8 <= step < STEPS and killing.digest(str(model)) == killing.digest(str(finished[0]))


def test_a_hang_up_during_start_up_is_75_and_trains_nothing(
    zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    running = zygote.start(*flags, "--model_dir", str(model), "--json", hang_at=["start-up", 1])
    running.wait_for(running.hung)
    running.send(signal.SIGHUP)
    running.wait_for(running.hung.with_name("err"), "SIGHUP: ")
    running.hung.unlink()
    ended = running.wait()
    assert ended.status == 75 and ended.result["reason"] == "interrupted", ended.err
    assert CheckpointStore(str(model)).steps() == []


def test_a_log_whose_reader_goes_away_saves_and_ends_with_75(
    flags: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    running = subprocess.Popen(
        [sys.executable, "-m", "bigbird_ja", *flags, "--model_dir", str(model), "--json",
         "--num_train_steps", "100000", "--set", "checkpoints.save_every_steps=0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert running.stdout and running.stderr
    for line in running.stderr:
        if line.startswith("step "):
            break
    running.stderr.close()
    result = json.loads(running.stdout.read())
    assert running.wait(timeout=120) == 75 and result["reason"] == "interrupted"
    assert "reader of the log" in result["error"]
    assert CheckpointStore(str(model)).steps() == [result["global_step"]]


def test_a_second_ctrl_c_leaves_at_once(zygote: Zygote, flags: list[str], tmp_path: Path) -> None:
    model = tmp_path / "model"
    running = zygote.start(*flags, "--model_dir", str(model), "--json", hang_at=["step", 14])
    running.wait_for(running.hung)
    running.wait_for(model / "events.jsonl", '"global_step": 10')
    running.send(signal.SIGINT)
    running.wait_for(running.hung.with_name("err"), "Ctrl-C again leaves at once")
    running.send(signal.SIGINT)
    ended = running.wait()
    assert ended.status == 75 and ended.result["reason"] == "interrupted"
    assert CheckpointStore(str(model), str(tmp_path)).latest_good().meta.step == 10  # type: ignore[union-attr]


def test_the_watchdog_ends_a_frozen_run_with_stacks(
    zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    model = str(tmp_path / "model")
    ended = zygote.run(
        *flags, "--model_dir", model, "--json", "--set", "training.stall_minutes=0.2",
        hang_at=["step", 3],
    )  # fmt: skip
    assert ended.status == 76 and ended.result["reason"] == "stalled"
    assert "zygote.py" in ended.err and "most recent call first" in ended.err
    beat = run_log.read_heartbeat(model)
    assert beat is not None and (beat["state"], beat["reason"]) == ("stopped", "stalled")
    assert run_log.read_events(model)[-1]["reason"] == "stalled"


def test_two_trainers_on_one_model_dir_the_second_is_refused(
    zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    here = [*flags, "--model_dir", str(model), "--json"]
    first = zygote.start(*here, hang_at=["step", 2])
    first.wait_for(first.hung)
    second = zygote.run(*here)
    assert second.status == 2 and f"process {first.pid}" in second.err
    first.send(signal.SIGKILL)
    assert first.wait().status == -signal.SIGKILL
    third = zygote.run(*here)
    assert third.status == 0 and "took over the stale lock" in third.err
    assert "lock_taken_over" in events(model)


def test_a_nan_is_named_with_its_step(zygote: Zygote, flags: list[str], tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    # An epsilon that float32 cannot hold: zero by zero for every row that had no gradient.
    ended = zygote.run(
        *flags, "--model_dir", model, "--json", "--set", "training.adam_epsilon=1e-46",
        "--set", "training.weight_decay=0",
    )  # fmt: skip
    assert ended.status == 70 and ended.result["reason"] == "diverged"
    assert "step 2: " in ended.err and "Traceback" not in ended.err
    assert run_log.read_events(model)[-1]["reason"] == "diverged"


def test_a_disk_that_fills_ends_with_74_and_the_last_checkpoint_intact(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = copy(finished, tmp_path)
    flags = [*flags[:-1], str(STEPS + 10), "--model_dir", str(model), "--json"]
    before = killing.digest(str(model))
    full = zygote.run(*flags, limits={"FSIZE": 200_000})
    assert full.status == 74 and full.result["reason"] == "io_error", full.err
    assert "Traceback" not in full.err
    assert killing.digest(str(model)) == before
    assert [n for n in os.listdir(model) if n.startswith((".", "incomplete"))] == []
    assert zygote.run(*flags).result["global_step"] == STEPS + 10


def test_a_model_that_does_not_fit_into_memory_is_refused_with_71_before_the_first_step(
    zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    here = [*flags, "--model_dir", str(model), "--json"]
    for ended in (
        zygote.run(*here, "--set", "model.intermediate_size=1000000",
                   "--set", "model.num_layers=99", "--set", "model.hidden_size=1024"),
        zygote.run(*here, "--set", "model.hidden_size=1024", limits={"AS": 100 << 20}),
    ):  # fmt: skip
        assert ended.status == 71 and ended.result["reason"] == "out_of_memory", ended.err
        assert "needs about" in ended.err and "training.global_batch_size" in ended.err
        assert "Traceback" not in ended.err and not model.exists()


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_used(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = copy(finished, tmp_path)
    data = model / f"model.ckpt-{STEPS}.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[1000] ^= 1
    data.write_bytes(bytes(content))
    ended = zygote.run(*flags, "--model_dir", str(model), "--json")
    assert ended.status == 0 and "checkpoint 30 is damaged" in ended.err
    assert (model / f"damaged-{data.name}").exists()
    assert "set_aside" in events(model)
    assert run_log.read_events(str(model))[-7:][0]["event"] != "started"
    assert killing.digest(str(model)) == killing.digest(str(finished[0]))


def test_with_no_good_checkpoint_left_it_stops(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = copy(finished, tmp_path)
    for step in (25, 30):
        os.truncate(model / f"model.ckpt-{step}.index", 100)
    for _ in range(2):  # and the second time too, when all are set aside already
        ended = zygote.run(*flags, "--model_dir", str(model), "--json")
        assert ended.status == 74 and "no good checkpoint is left" in ended.err
    assert "Traceback" not in ended.err


def test_on_a_bucket_killed_and_resumed_the_weights_are_the_same(
    zygote: Zygote, flags: list[str], inputs: tuple[str, str], finished: tuple[Path, Ended],
    fake_gcs: FakeGcs, bucket: str,
) -> None:  # fmt: skip
    for path in Path(inputs[1]).iterdir():
        fake_gcs.put(f"{bucket}/data/{path.name}", path.read_bytes())
    model = f"{bucket}/model"
    here = [*flags, "--data_dir", f"{bucket}/data", "--model_dir", model, "--json"]
    running = zygote.start(*here, hang_at=["step", 20])
    running.wait_for(running.hung)
    while not run_log.read_events(model)[-1].get("global_step"):
        pass
    running.send(signal.SIGKILL)
    running.wait()
    fake_gcs.fault("upload", "status", code=503, times=3)
    fake_gcs.fault("alt=media", "truncate", bytes=1000, times=2)
    ended = zygote.run(*here)
    assert ended.status == 0, ended.err
    assert ended.result["interruptions"] == 1
    assert killing.digest(model) == killing.digest(str(finished[0]))
    steps = [record["step"] for record in run_log.read_metrics(model)]
    assert steps == [4, 8, 12, 16, 20, 24, 28, STEPS]
    names = [name.rpartition("/")[2] for name in fake_gcs.names(bucket.removeprefix("gs://"))]
    assert [name for name in names if name.startswith("events.out.")]
    assert "lock.json" not in names


def test_a_bucket_that_goes_on_refusing_ends_the_run_with_the_cause(
    zygote: Zygote, flags: list[str], fake_gcs: FakeGcs, bucket: str
) -> None:
    model = f"{bucket}/model"
    running = zygote.start(*flags, "--model_dir", model, "--json", hang_at=["step", 3])
    running.wait_for(running.hung)
    fake_gcs.fault("/upload/", "status", code=503, times=-1)
    running.hung.unlink()
    ended = running.wait()
    fake_gcs.clear()
    assert ended.status == 74 and ended.result["reason"] == "io_error", ended.err
    assert "model.ckpt-5" in ended.err.splitlines()[-1] and "Traceback" not in ended.err
    assert CheckpointStore(model).steps() == []


def test_data_that_can_no_longer_be_read_ends_the_run_instead_of_starting_it_again(
    zygote: Zygote, flags: list[str], inputs: tuple[str, str], fake_gcs: FakeGcs, bucket: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    for path in Path(inputs[1]).iterdir():
        fake_gcs.put(f"{bucket}/data/{path.name}", path.read_bytes())
    fake_gcs.fault("GET storage.googleapis.com/.*tfrecord", "status", code=503, times=-1)
    ended = zygote.run(
        *flags, "--data_dir", f"{bucket}/data", "--model_dir", str(tmp_path / "model"), "--json"
    )
    assert ended.status == 74 and ended.result["reason"] == "io_error", ended.err


def test_a_bucket_that_cannot_be_listed_is_no_fresh_start(
    zygote: Zygote, flags: list[str], fake_gcs: FakeGcs, bucket: str
) -> None:
    for code in (403, 503):
        fake_gcs.fault("GET .*/o\\?.*prefix=", "status", code=code, times=-1)
        ended = zygote.run(*flags, "--model_dir", f"{bucket}/model", "--json")
        fake_gcs.clear()
        assert ended.status in (2, 74) and "Traceback" not in ended.err, ended.err
    assert fake_gcs.names(bucket.removeprefix("gs://")) == []


def test_a_profile_is_captured_and_summed_up(
    zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    ended = zygote.run(*flags, "--model_dir", str(model), "--profile_steps", "10:14", "--json")
    assert ended.status == 0, ended.err
    assert b"MatMul" in profiles.opened(model)
    at = ended.err.index("profile of 5 steps")
    lines = ended.err[at:].splitlines()[:10]
    assert "MatMul" in ended.err[at:] and "is the limit" in lines[9]


@pytest.mark.nightly
def test_sigterm_in_an_evaluation_saves_and_the_next_start_makes_it(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    """In one on the way, and in that of the last step, after which nothing is left to train."""
    model = tmp_path / "model"
    here = [
        *flags, "--model_dir", str(model), "--json", "--mode", "train_and_eval",
        "--set", "training.eval_every_steps=16", "--set", "training.eval_max_batches=1",
    ]  # fmt: skip
    for number, step in ((1, 16), (2, STEPS)):  # the second start makes up for the first
        running = zygote.start(*here, hang_at=["evaluate", number])
        running.wait_for(running.hung)
        running.send(signal.SIGTERM)
        running.wait_for(running.hung.with_name("err"), "SIGTERM: ")
        running.hung.unlink()
        ended = running.wait()
        assert (ended.status, ended.result["global_step"]) == (75, step), ended.err
        assert CheckpointStore(str(model)).steps()[-1] == step
        assert len(run_log.read_evaluations(str(model))) == number - 1
    ended = zygote.run(*here)
    assert ended.status == 0 and "nothing left to do" in ended.err, ended.err
    found = run_log.read_evaluations(str(model))
    assert [(line["step"], line["max_batches"]) for line in found] == [(16, 1), (STEPS, 1)]  # type: ignore[typeddict-item]
    assert killing.digest(str(model)) == killing.digest(str(finished[0]))
    assert run_log.read_events(str(model))[-1]["event"] == "finished"


def test_train_and_eval_evaluates_on_the_way_and_at_the_end(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = str(tmp_path / "model")
    ended = zygote.run(
        *flags, "--model_dir", model, "--mode", "train_and_eval", "--json",
        "--set", "training.eval_every_steps=20",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    records = run_log.read_evaluations(str(model))
    assert [record["step"] for record in records] == [20, STEPS]
    assert all(record["masked_lm_loss"] > 0 for record in records)
    assert len(list(Path(model, "eval").iterdir())) == 2
    assert killing.digest(model) == killing.digest(str(finished[0]))


def test_init_from_starts_from_another_models_parameters(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = str(tmp_path / "model")
    ended = zygote.run(
        *flags, "--model_dir", model, "--init_from", str(finished[0]), "--json",
        "--num_train_steps", "4",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    assert "bert/embeddings/word_embeddings" in ended.err
    first = run_log.read_metrics(model)[0]["loss"]
    assert first < run_log.read_metrics(str(finished[0]))[0]["loss"]


def refused(flags: list[str], capsys: pytest.CaptureFixture, *words: str) -> None:
    """The command ends with 2 and one line that holds `words`."""
    assert main.run_command_line(flags) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if "bigbird-ja:" in line]
    assert len(error) == 1
    for word in words:
        assert word in error[0]


def test_bad_input_is_refused_before_anything_is_written(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = tmp_path / "model"
    here = [*flags, "--model_dir", str(model)]
    odd = ["training.global_batch_size=6", "training.gradient_accumulation_steps=4"]
    refused([*here, "--set", odd[0], "--set", odd[1]], capsys, "not divisible")
    cores = [*here, "--use_tpu", "--set", "tpu.num_cores=8"]
    refused([*cores, "--engine", "estimator"], capsys, "4", "8 cores", "use 8")
    # Under auto, where another engine counts the devices that it finds.
    refused([*cores, "--engine", "auto"], capsys, "no TPU")
    refused([*here, "--data_dir", str(tmp_path / "none")], capsys, "none")
    refused([*here, "--set", "model.vocab_size=300"], capsys, "vocab_size=300", "200")
    refused([*here, "--set", "make_data.seq_length=128"], capsys, "seq_length=128", "64")
    refused([*here, "--profile_steps", "9"], capsys, "FIRST:LAST")
    refused([*here, "--mode", "eval"], capsys, "mode")
    refused(flags, capsys, "--model_dir")
    refused([*here, "--set", "trainig.seed=1"], capsys, "training")
    assert not model.exists()
    (tmp_path / "file").write_text("x")
    refused([*flags, "--model_dir", str(tmp_path / "file")], capsys, "file")
    refused([*flags, "--model_dir", "/proc/model"], capsys, "/proc/model")


def test_a_truncated_shard_is_named(
    inputs: tuple[str, str], flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    data = Path(shutil.copytree(inputs[1], tmp_path / "data"))
    shard = sorted(data.glob("train-*"))[1]
    os.truncate(shard, shard.stat().st_size - 10)
    model = tmp_path / "model"
    refused([*flags, "--data_dir", str(data), "--model_dir", str(model)], capsys, shard.name)
    assert not model.exists()


def test_a_model_dir_of_another_run_is_refused(
    inputs: tuple[str, str], flags: list[str], finished: tuple[Path, Ended], tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    model = copy(finished, tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    here = [*flags, "--model_dir", str(model)]
    refused([*here, "--set", "training.seed=7"], capsys, "training.seed: 12345 -> 7")
    synthetic.write(tmp_path / "other", (40, 40, 40, 40), seed=1)
    refused([*here, "--data_dir", str(tmp_path / "other")], capsys, "other data")
    assert {path.name: path.stat().st_mtime_ns for path in model.iterdir()} == before


def test_other_settings_are_refused_with_what_serves(
    flags: list[str], finished: tuple[Path, Ended], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    here = [*flags, "--model_dir", str(finished[0])]
    change = ["--set", "training.learning_rate=1e-3"]
    refused([*here, *change], capsys, "--continue_with training.learning_rate=0.001")
    refused([*here, "--set", "data.seed=7"], capsys, f"--init_from {finished[0]}")
    refused([*here, "--continue_with", "model.num_layers=3"], capsys, "training", "--init_from")
    refused([*here, "--continue_with", "training.log_every_steps=3"], capsys, "--set")
    new = [*flags, "--model_dir", str(tmp_path / "new")]
    refused([*new, "--continue_with", "training.clip_norm=2"], capsys, "no run to go on with")


def test_a_run_goes_on_with_another_rate_and_batch_and_without_its_config(
    zygote: Zygote, inputs: tuple[str, str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = copy(finished, tmp_path)
    here = ["pretrain", "--data_dir", inputs[1], "--model_dir", str(model), "--json"]
    changes = {"training.learning_rate": [0.002, 0.001], "training.global_batch_size": [4, 8]}
    asked = [f"--continue_with={key}={new}" for key, (_, new) in changes.items()]
    ended = zygote.run(*here, "--num_train_steps=35", *asked)
    assert ended.status == 0, ended.err
    assert "ends at step 35, no longer at 30" in ended.err and str(model) in ended.err
    # The run's own settings are what the change is told against; not all of them are listed.
    assert "training.global_batch_size = 8  (run 4; from --continue_with)" in ended.err
    assert "model.num_layers" not in ended.err
    recorded = [e for e in run_log.read_events(str(model)) if e["event"] == "continued_with"]
    assert [(e["global_step"], e["settings"]) for e in recorded] == [(30, changes)]
    store = CheckpointStore(str(model))
    meta, before = store.read_meta(35), store.read_meta(30)
    assert (before.next_batch, before.global_batch_size) == (30, 4)
    assert (meta.next_batch, meta.global_batch_size) == (20, 8)  # 15 of 8 were seen, and 5 more
    assert meta.tokens_seen == pytest.approx(before.tokens_seen * (1 + 10 / 30), abs=2)
    rates = [m["learning_rate"] for m in run_log.read_metrics(str(model)) if m["step"] > 30]
    assert max(rates) < 0.001 * 6 / 30
    load_parameters(str(model), 30)  # of before the change: the same model
    # Again, without and with the change: it goes on as it is.
    for flags in (here, [*here, *asked]):
        again = zygote.run(*flags, "--num_train_steps=35")
        assert again.status == 0 and "nothing left to do" in again.err, again.err
    assert len([e for e in events(model) if e == "continued_with"]) == 1


def test_an_end_names_the_folder_the_loss_and_the_next_command(
    finished: tuple[Path, Ended], inputs: tuple[str, str]
) -> None:
    model, ended = finished
    (line,) = [line for line in ended.err.splitlines() if "finished: " in line]
    assert f"step 30, loss {ended.result['loss']:.4f}, in {model}; next: bigbird-ja " in line


def test_overwrite_moves_the_old_run_aside(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = copy(finished, tmp_path)
    ended = zygote.run(
        *flags, "--model_dir", str(model), "--set", "training.seed=7", "--overwrite", "--json"
    )
    assert ended.status == 0 and "replaced-1" in ended.err
    assert killing.digest(str(model) + ".replaced-1") == killing.digest(str(finished[0]))
    assert killing.digest(str(model)) != killing.digest(str(finished[0]))


def test_overwrite_leaves_a_run_alone_that_is_being_trained(
    zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    here = [*flags, "--model_dir", str(model), "--json"]
    first = zygote.start(*here, hang_at=["step", 12])
    first.wait_for(first.hung)
    first.wait_for(model / "events.jsonl", '"global_step": 10')
    second = zygote.run(*here, "--overwrite", "--set", "training.seed=7")
    assert second.status == 2 and f"process {first.pid}" in second.err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    first.hung.unlink()
    assert first.wait().result["global_step"] == STEPS


def test_overwrite_moves_only_what_a_run_of_ours_made(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = tmp_path / "theirs"
    model.mkdir()
    for name in ("model.ckpt-100.index", "model.ckpt-100.data-00000-of-00001", "thesis.txt"):
        (model / name).write_text("x")
    refused([*flags, "--model_dir", str(model), "--overwrite"], capsys, "not there")
    assert len(list(model.iterdir())) == 3 and len(list(tmp_path.iterdir())) == 1


def test_overwrite_follows_a_link_and_stays_out_of_the_working_directory(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path,
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    model = copy(finished, tmp_path)
    with monkeypatch.context() as patch:
        patch.chdir(model)
        refused([*flags, "--model_dir", ".", "--overwrite"], capsys, "working directory")
    (tmp_path / "link").symlink_to(model)
    here = ["--model_dir", str(tmp_path / "link"), "--overwrite", "--num_train_steps", "4"]
    assert zygote.run(*flags, *here).status == 0
    assert killing.digest(f"{model}.replaced-1") == killing.digest(str(finished[0]))
    assert CheckpointStore(str(model)).steps() == [4] and (tmp_path / "link").is_symlink()


def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    inputs: tuple[str, str], flags: list[str], finished: tuple[Path, Ended], tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    import numpy as np

    from bigbird_ja.run.checkpoints import read_variables, write_variables

    here = [*flags, "--model_dir", str(tmp_path / "model")]
    refused([*here, "--use_tpu"], capsys, "--use_tpu", "TPU VM")
    refused([*here, "--set", "model.block_size=3"], capsys, "model.block_size")
    values = read_variables(str(finished[0] / f"model.ckpt-{STEPS}"))
    name = "bert/encoder/layer_0/intermediate/dense/kernel"
    values[name][3, 4] = np.nan
    write_variables(str(tmp_path / "diverged"), values)
    refused([*here, "--init_from", str(tmp_path / "diverged")], capsys, name, "NaN")
    data = Path(shutil.copytree(inputs[1], tmp_path / "data"))
    shard = sorted(data.glob("train-*"))[1]
    shard.chmod(0)
    if not os.access(shard, os.R_OK):  # root reads everything
        refused([*here, "--data_dir", str(data)], capsys, shard.name, "permission")
    assert not (tmp_path / "model").exists()


def test_a_run_is_masked_as_its_data_set_says_unless_it_began_otherwise(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    import yaml

    data = tmp_path / "data"
    synthetic.write(data, (40, 40, 40, 40), mask_unit="subword")
    here = [*flags, "--data_dir", str(data), "--json"]
    by_manifest = tmp_path / "by-manifest"
    assert zygote.run(*here, "--model_dir", str(by_manifest)).status == 0
    config = yaml.safe_load((by_manifest / "config.yaml").read_text())
    assert config["data"]["mask_unit"] == "subword"
    assert killing.digest(str(by_manifest)) != killing.digest(str(finished[0]))


def test_static_data_of_any_unit_trains_with_nothing_said_about_it(
    zygote: Zygote, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    data, model = tmp_path / "data", tmp_path / "model"
    synthetic.write(data, (40, 40, 40, 40), masking="static", mask_unit="span")
    here = [*flags, "--data_dir", str(data), "--model_dir", str(model), "--num_train_steps", "4"]
    refused([*here, "--set", "data.mask_unit=subword"], capsys, "static", "span")
    assert not model.exists()
    ended = zygote.run(*here)
    assert ended.status == 0, ended.err


def test_the_help_shows_defaults_and_an_example(capsys: pytest.CaptureFixture) -> None:
    with contextlib.suppress(SystemExit):
        assert main.run_command_line(["pretrain", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--num_train_steps" in text and "Example:" in text


def test_results_are_one_json_object(finished: tuple[Path, Ended]) -> None:
    assert json.loads(finished[1].out) == finished[1].result
