"""Whole runs with each engine: files, exact resume, evaluation, divergence, profiles."""

import signal

import pytest

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.model_dir.model import load_parameters
from bigbird_ja.model_dir.variables import read_variables
from bigbird_ja.settings.config_file import read_config
from bigbird_ja.storage.ownership import MANIFEST_NAME
from testkit import killing
from tests.commands.pretraining import STEPS, events, resumed_at_last

pytestmark = pytest.mark.both


@pytest.fixture(
    scope="module", params=[pytest.param("estimator", marks=pytest.mark.estimator), "pjrt"]
)
def engine(request):
    if request.param == "pjrt":
        pytest.importorskip("jax")
    return str(request.param)


def test_run_writes_the_files_and_keys_of_the_contract(runs):
    model, result = str(runs.finished), runs.ended.result
    assert (result["global_step"], result["reason"]) == (STEPS, "finished")
    records = run_log.read_metrics(model)
    assert [r["step"] for r in records] == [4, 8, 12, 16, 20, 24, 28, STEPS]
    assert records[-1]["loss"] == result["loss"] > 0
    for key in ("masked_lm_accuracy", "learning_rate", "tokens_per_second", "time"):
        assert all(isinstance(record[key], float) for record in records)
    beat = run_log.read_heartbeat(model)
    assert beat is not None
    assert (beat["global_step"], beat["state"], beat["reason"]) == (STEPS, "stopped", "finished")
    assert {"run", "time", "tokens_per_second", "host", "pid"} <= beat.keys()
    assert events(model) == ["started"] + ["saved"] * 6 + ["finished"]
    start = run_log.read_events(model)[0]
    assert (start["engine"], start["replicas"]) == (runs.engine, 1)
    names = {path.name for path in runs.finished.iterdir()}
    assert {"config.yaml", "tokenizer.model", "checkpoint", "heartbeat.json"} <= names
    assert [name for name in names if name.startswith(".") or name == "lock.json"] == [
        MANIFEST_NAME
    ]
    assert CheckpointStore(model).list_steps() == [25, STEPS]
    _, _, params, meta = load_parameters(model)
    assert meta.tokens_seen > 0 and meta.train_seconds > 0 and len(params) > 20
    assert not [name for name in params if "adam" in name or name == "global_step"]
    err = runs.ended.err
    assert f"engine: {runs.engine} on " in err and "Traceback" not in err
    (line,) = [line for line in err.splitlines() if f"step {STEPS} of {STEPS}" in line]
    for part in ("100.0%", "loss", "accuracy", "tokens/s", "ETA"):
        assert part in line
    finished, following = err.splitlines()[-2:]
    assert finished == f"finished: step {STEPS}, loss {result['loss']:.4f}, in {model}"
    assert following.startswith(f"next: bigbird-ja export --model_dir {model} ")


def test_tensorflow_and_tensorboard_find_their_files(runs):
    import tensorflow as tf
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = runs.finished
    assert tf.train.latest_checkpoint(str(model)) == str(model / f"model.ckpt-{STEPS}")
    board = EventAccumulator(str(model))
    board.Reload()
    last = board.Scalars("train/loss")[-1]
    assert last.step == STEPS and last.value == pytest.approx(runs.ended.result["loss"])
    assert "speed/tokens_per_second" in board.Tags()["scalars"]
    assert len(list((model / "eval").iterdir())) == 2


def test_evaluation_during_training_equals_one_of_the_checkpoint(runs, inputs):
    from bigbird_ja.evaluation import masked_lm
    from bigbird_ja.model.forward import Forward

    lines = run_log.read_evaluations(str(runs.finished))
    assert [line["step"] for line in lines] == [16, STEPS]
    config, data, params, _ = load_parameters(str(runs.finished), STEPS)
    manifest = manifest_lib.load(inputs[1])
    expected = masked_lm.evaluate_model(Forward(config, data, params), inputs[1], manifest)
    assert lines[-1]["masked_lm_loss"] == pytest.approx(expected["masked_lm_loss"], rel=1e-5)
    assert lines[-1]["masked_lm_accuracy"] == expected["masked_lm_accuracy"]


def test_resume_is_bit_exact_after_kills_and_stops_in_every_phase(runs, bucket, fake_gcs):
    """Interrupt a run on a bucket five times, and compare its weights with an uninterrupted run.

    SIGKILL ends the first start before the first save, and the second start during the first save.
    SIGTERM ends the third start, and a time limit ends the fourth. SIGKILL ends the fifth start
    during its last save. The third, fourth and fifth start disable saving by steps. testkit.soak
    tests kills on a disk.
    """
    model = f"{bucket}/model"
    store, start = CheckpointStore(model), [*runs.flags, "--model_dir", model]
    never = ["--set", "checkpoints.save_every_steps=0"]

    def kill(*how, at):
        running = runs.hung(*start, *how, at=at)
        running.send(signal.SIGKILL)
        assert running.wait().status == -signal.SIGKILL

    kill(at=("step", 3))
    assert store.list_steps() == []
    kill(at=("between-files", 1))
    assert store.list_steps() == []

    step = 0
    for name, flags in (("SIGTERM", []), ("--max_train_minutes 7.5", ["--max_train_minutes=7.5"])):
        running = runs.hung(*start, *never, *flags, at=("step", 2))
        if name == "SIGTERM":
            running.send(signal.SIGTERM)
        ended = resumed_at_last(running, f"{name}: finishing the step and saving")
        assert (ended.status, ended.result["reason"]) == (75, "interrupted"), ended.err
        # A stop also finishes the steps that were already dispatched.
        step += 3 if runs.engine == "pjrt" else 1
        assert ended.result["global_step"] == store.list_steps()[-1] == step
        assert f"{name}: saved at step {step} in" in ended.err.splitlines()[-1]
        assert events(model)[-1] == "interrupted"

    kill(*never, at=("between-files", 2))
    assert store.list_steps()[-1] == step
    fake_gcs.fault("upload", "status", code=503, times=3)
    fake_gcs.fault("alt=media", "truncate", bytes=1000, times=2)
    ended = runs.zygote.run(*start)
    assert ended.status == 0, ended.err
    assert ended.result["interruptions"] == 5 and "cleaned" in events(model)
    assert killing.digest(model) == killing.digest(str(runs.finished))
    steps = [record["step"] for record in run_log.read_metrics(model)]
    assert steps == sorted(set(steps)) and {4, 8, 12, 16, 20, 24, 28, STEPS} <= set(steps)
    if runs.engine == "pjrt" and pytest.importorskip("jax").__version_info__ >= (0, 7):
        # Older versions of JAX do not store programs for CPUs (see `engines.devices`).
        kept = [name for name in storage.list_tree(model) if "run_replica" in name]
        assert len([name for name in kept if name.endswith("-cache")]) == 1, "compiled again"


@pytest.mark.estimator
def test_run_continues_under_the_estimator(runs, inputs, tmp_path):
    start = runs.new(tmp_path)
    running = runs.hung(*start, at=("step", 9))
    running.send(signal.SIGTERM)
    ended = resumed_at_last(running, "SIGTERM: finishing the step and saving")
    assert ended.status == 75, ended.err
    resumed = runs.zygote.run(*start, "--engine", "estimator")
    assert resumed.status == 0, resumed.err
    model = tmp_path / "model"
    if runs.engine == "estimator":
        assert killing.digest(str(model)) == killing.digest(str(runs.finished))
        return
    assert "engine: pjrt until now, estimator from here on" in resumed.err
    starts = [e["engine"] for e in run_log.read_events(str(model)) if "engine" in e]
    assert starts == ["pjrt", "estimator"]
    ours = read_variables(str(model / f"model.ckpt-{STEPS}"))
    theirs = read_variables(str(runs.finished / f"model.ckpt-{STEPS}"))
    name = "bert/encoder/layer_0/output/dense/kernel"
    assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6)


def test_nan_is_reported_with_its_step(runs, tmp_path):
    # These settings cause a division of zero by zero in the first layer norm.
    sets = ["--set=model.initializer_range=0", "--set=model.layer_norm_eps=0"]
    ended = runs.zygote.run(*runs.flags, f"--model_dir={tmp_path}", *sets)
    assert ended.status == 70 and ended.result["reason"] == "diverged"
    assert "gradients of step 1 are NaN" in ended.err and "Traceback" not in ended.err
    assert run_log.read_events(str(tmp_path))[-1]["reason"] == "diverged"
    assert CheckpointStore(str(tmp_path)).list_steps() == []


def test_profile_of_some_steps_has_their_products(runs, tmp_path):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    start = [*runs.new(tmp_path), "--num_train_steps", "12", "--batch_size", "2"]
    start += ["--learning_rate", "0.01"]
    ended = runs.zygote.run(*start, "--profile_steps", "7-9")
    assert ended.status == 0, ended.err
    model = tmp_path / "model"
    config, _ = read_config(str(model / "config.yaml"))
    assert (config.training.global_batch_size, config.training.learning_rate) == (2, 0.01)
    (event,) = [e for e in run_log.read_events(str(model)) if e["event"] == "profiled"]
    assert (event["steps"], event["global_step"]) == ("7-9", 9)
    (path,) = model.glob("plugins/profile/*/*.xplane.pb")
    assert str(path.parent) == str(model / event["folder"])
    planes = xplane_pb2.XSpace.FromString(path.read_bytes()).planes
    names = [
        plane.event_metadata[event.metadata_id].name
        for plane in planes
        for line in plane.lines
        for event in line.events
    ]
    ops = [name for name in names if "dot" in name or "MatMul" in name]
    assert len(ops) >= 3 * 8 and len(ops) % 3 == 0  # The three steps have the same matrix products.
