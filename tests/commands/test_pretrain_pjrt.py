"""`pretrain --engine=pjrt` as users run it: the same files, ends and weights, whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja.cli import main
from bigbird_ja.process.errors import OutOfMemory
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore, read_variables
from testkit import command_line, engine_runs, killing, profiles
from testkit.fakes.gcs_process import FakeGcs
from testkit.zygote import Ended, Zygote

jax = pytest.importorskip("jax")

STEPS = 24
KEEPS_PROGRAMS = jax.__version_info__ >= (0, 7)  # of a CPU; see `engines.compiled`


@pytest.fixture(scope="module")
def flags(inputs: tuple[str, str]) -> list[str]:
    config, data = inputs
    return [
        "pretrain", "--config", config, "--data_dir", data, "--num_train_steps", str(STEPS),
        "--engine", "pjrt", "--json",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def finished(
    zygote: Zygote, flags: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Ended]:
    """A run that was left alone, with evaluations."""
    model = tmp_path_factory.mktemp("finished") / "model"
    ended = zygote.run(
        *flags, "--model_dir", str(model), "--mode", "train_and_eval",
        "--set", "training.eval_every_steps=16",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    return model, ended


def test_a_run_leaves_what_the_contract_names(finished: tuple[Path, Ended]) -> None:
    model, ended = finished
    assert (ended.result["global_step"], ended.result["reason"]) == (STEPS, "finished")
    records = run_log.read_metrics(str(model))
    assert [record["step"] for record in records] == [4, 8, 12, 16, 20, STEPS]
    assert records[-1]["loss"] == ended.result["loss"]
    assert all(record["tokens_per_second"] >= 0 for record in records)
    events = run_log.read_events(str(model))
    assert [e["event"] for e in events] == ["started"] + ["saved"] * 5 + ["finished"]
    assert (events[0]["engine"], events[0]["replicas"]) == ("pjrt", 1)
    assert "engine: pjrt on 1 x " in ended.err and "Traceback" not in ended.err
    names = {path.name for path in model.iterdir()}
    assert {"config.yaml", "tokenizer.model", "checkpoint", "heartbeat.json"} <= names
    assert not [name for name in names if name.startswith(".") or name == "lock.json"]
    assert CheckpointStore(str(model)).steps() == [20, STEPS]


def test_evaluation_on_the_devices_is_evaluation(
    finished: tuple[Path, Ended], inputs: tuple[str, str]
) -> None:
    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.evaluation import masked_lm
    from bigbird_ja.evaluation.forward import Forward
    from bigbird_ja.run.model import load_parameters

    found = run_log.read_evaluations(str(finished[0]))
    assert [line["step"] for line in found] == [16, STEPS]
    config, params, _ = load_parameters(str(finished[0]), STEPS)
    manifest = manifest_lib.load(inputs[1])
    expected = masked_lm.evaluate_model(Forward(config, params), inputs[1], manifest)
    assert found[-1]["masked_lm_loss"] == pytest.approx(expected["masked_lm_loss"], rel=1e-5)
    assert found[-1]["masked_lm_accuracy"] == expected["masked_lm_accuracy"]


def test_a_missed_last_evaluation_is_made_on_the_devices(
    finished: tuple[Path, Ended], flags: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: Any,
) -> None:  # fmt: skip
    """After a kill in it: nothing is left to train, and no TensorFlow model beside the devices."""
    from bigbird_ja.evaluation import forward

    def refuse(*_: Any) -> None:
        raise AssertionError("evaluated in TensorFlow")

    model = tmp_path / "model"
    shutil.copytree(finished[0], model)
    expected = run_log.read_evaluations(str(model))[-1]
    (model / run_log.EVAL).unlink()
    monkeypatch.setattr(forward.Forward, "metrics", refuse)
    monkeypatch.setattr(forward.Forward, "log_probabilities", refuse)
    again = [*flags, "--model_dir", str(model), "--mode", "train_and_eval"]
    before = jax.config.jax_platforms
    status = main.run_command_line([*again, "--set", "training.eval_every_steps=16"])
    jax.config.update("jax_platforms", before)
    assert status == 0, capsys.readouterr().err
    (made,) = run_log.read_evaluations(str(model))
    assert made["step"] == STEPS
    assert made["masked_lm_loss"] == pytest.approx(expected["masked_lm_loss"], rel=1e-6)


@pytest.mark.nightly
def test_killed_in_every_phase_it_ends_with_the_same_weights(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    here = [*flags, "--model_dir", str(model)]
    places = [("start-up", 1), ("input", 1), ("step", 4), ("between-files", 2), ("save", 2)]
    for phase, count in places:
        running = zygote.start(*here, hang_at=[phase, count])
        running.wait_for(running.hung)
        running.send(signal.SIGKILL)
        assert running.wait().status == -signal.SIGKILL
    ended = zygote.run(*here)
    assert ended.status == 0, ended.err
    assert killing.digest(str(model)) == killing.digest(str(finished[0]))
    steps = [record["step"] for record in run_log.read_metrics(str(model))]
    assert steps == [4, 8, 12, 16, 20, STEPS]
    if KEEPS_PROGRAMS:
        kept = [path.name for path in (model / "compiled").rglob("*replica_step*-cache")]
        assert len(kept) == 1, "each restart compiles again"


def test_a_time_limit_saves_and_the_same_command_continues(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    here = [*flags, "--model_dir", str(model), "--max_train_minutes", "7.5"]
    step = killing.stopped_by_its_time_limit(zygote, here, model)
    ended = zygote.run(*here)
    assert ended.status == 0 and ended.result["interruptions"] == 1, ended.err
    assert 8 <= step < STEPS and killing.digest(str(model)) == killing.digest(str(finished[0]))


def test_a_time_limit_during_start_up_trains_nothing(
    zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    running = zygote.start(
        *flags, "--model_dir", str(model), "--max_train_minutes", "1", hang_at=["start-up", 1]
    )
    running.wait_for(running.hung)
    running.hung.unlink()
    ended = running.wait()
    assert ended.status == 75 and "no step was made" in ended.err, ended.err
    assert CheckpointStore(str(model)).steps() == []


@pytest.mark.estimator
def test_sigterm_saves_and_the_other_engine_goes_on(
    zygote: Zygote, flags: list[str], finished: tuple[Path, Ended], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    here = [*flags, "--model_dir", str(model)]
    running = zygote.start(*here, hang_at=["step", 9])
    running.wait_for(running.hung)
    running.send(signal.SIGTERM)
    running.wait_for(running.hung.with_name("err"), "SIGTERM: finishing the step and saving")
    running.hung.unlink()
    ended = running.wait()
    assert ended.status == 75, ended.err
    step = ended.result["global_step"]
    assert 8 <= step < STEPS and CheckpointStore(str(model)).steps()[-1] == step
    ended = zygote.run(*here, "--engine", "estimator")
    assert ended.status == 0 and "goes on under estimator" in ended.err, ended.err
    changed = [e for e in run_log.read_events(str(model)) if e["event"] == "engine_changed"]
    assert [(e["was"], e["now"], e["global_step"]) for e in changed] == [  # type: ignore[typeddict-item]
        ("pjrt", "estimator", step)
    ]
    ours = read_variables(str(model / f"model.ckpt-{STEPS}"))
    theirs = read_variables(str(finished[0] / f"model.ckpt-{STEPS}"))
    name = "bert/encoder/layer_0/output/dense/kernel"
    assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6)


def test_a_nan_is_named_with_its_step(zygote: Zygote, flags: list[str], tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    ended = zygote.run(
        *flags, "--model_dir", model, "--set", "training.adam_epsilon=1e-46",
        "--set", "training.weight_decay=0",
    )  # fmt: skip
    assert ended.status == 70 and ended.result["reason"] == "diverged"
    assert "step 2: " in ended.err and "Traceback" not in ended.err
    assert CheckpointStore(model).steps() == []


def test_a_profile_is_captured_as_tensorboard_reads_it(
    zygote: Zygote, flags: list[str], tmp_path: Path
) -> None:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    model = tmp_path / "model"
    ended = zygote.run(*flags, "--model_dir", str(model), "--profile_steps", "10:14")
    assert ended.status == 0, ended.err
    assert "profile of 5 steps" in ended.err
    (path,) = model.glob("plugins/profile/*/*.xplane.pb")
    planes = xplane_pb2.XSpace.FromString(path.read_bytes()).planes
    events = {plane.name: sum(len(line.events) for line in plane.lines) for plane in planes}
    assert sum(events.values()) > 0, events
    assert b"replica_step" in profiles.opened(model)


@pytest.mark.nightly
def test_on_a_bucket_the_compiled_program_is_kept_there(
    zygote: Zygote, flags: list[str], fake_gcs: FakeGcs, bucket: str, finished: tuple[Path, Ended]
) -> None:
    model = f"{bucket}/model"
    here = [*flags, "--model_dir", model]
    running = zygote.start(*here, hang_at=["step", 9])
    running.wait_for(running.hung)
    running.send(signal.SIGKILL)
    running.wait()
    kept = [n for n in fake_gcs.names(bucket.removeprefix("gs://")) if "/compiled/" in n]
    assert [name for name in kept if "replica_step" in name] or not KEEPS_PROGRAMS
    ended = zygote.run(*here)
    assert ended.status == 0, ended.err
    assert killing.digest(model) == killing.digest(str(finished[0]))


def test_a_batch_that_does_not_divide_over_the_devices_found(
    flags: list[str], tmp_path: Path
) -> None:
    ended = command_line.run_cli(
        *flags, f"--model_dir={tmp_path / 'model'}", "--set=training.global_batch_size=6",
        env=engine_runs.environment(4),
    )  # fmt: skip
    assert ended.status == 2 and "6 is not divisible by 4" in ended.stderr
    assert not (tmp_path / "model").exists()


def test_what_the_engine_refuses_leaves_nothing_behind(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from bigbird_ja.train.engines import choice, devices

    class Refusing:
        def begin(self) -> None:
            raise OutOfMemory("a step of this model needs about 90 GB of memory")

        def close(self) -> None: ...

    class OneCpu:
        devices, platform, description, peak_flops = (1,), "cpu", "1 x cpu", None

    monkeypatch.setattr(devices, "find", lambda use_tpu, connect: OneCpu())
    monkeypatch.setattr(choice, "start", lambda *arguments: Refusing())
    model = tmp_path / "model"
    assert main.run_command_line([*flags, "--model_dir", str(model)]) == 71
    assert not model.exists()
    model.mkdir()
    (model / "notes.txt").write_text("mine")
    assert main.run_command_line([*flags, "--model_dir", str(model)]) == 71
    assert os.listdir(model) == ["notes.txt"]
    assert "90 GB" in capsys.readouterr().err
