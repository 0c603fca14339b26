"""The progress line and its rates, with the clock passed in; Weights & Biases; a profile on
gs://, by JAX's real profiler."""

import io
from unittest import mock

import pytest

from bigbird_ja.commands.pretrain import read_profile_steps
from bigbird_ja.preflight import figures
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten
from bigbird_ja.train.progress import Profile, TrainProgress, WandbLog


def make(peak=None, start=0, before=0.0):
    now, stream = [100.0], io.StringIO()
    speed = (1000, 4000.0, 1e12, peak)
    return TrainProgress(*speed, start, before, stream, lambda: now[0]), now, stream


def measured(progress, step):
    """The rate at a step that is logged as soon as it is finished."""
    progress.finished(step)
    return progress.measure()


def metrics(step, rate):
    return {"step": step, "loss": 2.5, "masked_lm_accuracy": 0.25, "tokens_per_second": rate}


def test_rate_and_eta_follow_the_clock():
    progress, now, _ = make()
    now[0] += 10.0
    assert measured(progress, 20) == pytest.approx(8000.0)
    assert progress.eta_seconds(20) == pytest.approx(490.0)
    now[0] += 5.0
    progress.leave_out()  # an evaluation is no part of the rate
    now[0] += 10.0
    assert measured(progress, 40) == pytest.approx(8000.0)


def test_steps_that_were_under_way_when_the_host_was_busy_have_no_rate_of_millions():
    """Three steps of half a second: the host sees the first one late, the others a moment after."""
    progress, now, _ = make()
    now[0] += 20.0  # the first turn starts the input too
    assert measured(progress, 1) == pytest.approx(200.0)
    for seconds, step, rate in [(0.5, 2, 8e3), (1.4, 3, 4000 / 1.4), (1e-4, 4, 4000 / 0.7)]:
        now[0] += seconds
        got = measured(progress, step)
        assert 200 <= got < 2 * rate, (step, got)
    for step in range(5, 60):
        now[0] += 0.5
        last = measured(progress, step)
    assert last == pytest.approx(8000.0)
    assert progress.eta_seconds(900) == pytest.approx(50.0, rel=0.05)  # without the first turn


def test_the_line_begins_with_what_matters_most():
    """A terminal cuts its end."""
    progress, now, stream = make(peak=50e12)
    now[0] += 10.0
    progress.show(metrics(20, measured(progress, 20)))
    assert stream.getvalue() == (
        "step 20 of 1,000  loss 2.5000  2.0%  ETA 8 min 10 s  8,000 tokens/s  accuracy 25.0%"
        "  MFU 4.0%  trained 10 s\n"
    )


def test_train_time_accumulates_over_restarts():
    progress, now, _ = make(start=500, before=3600.0)
    now[0] += 30.0
    progress.begin()  # imports and tracing do not count
    now[0] += 60.0
    assert progress.train_seconds() == pytest.approx(3660.0)
    assert progress.measure() == 0.0


def test_lines_in_a_log_are_spaced_but_the_last_is_always_there():
    progress, now, stream = make()
    for step in range(10, 110, 10):
        now[0] += 0.5
        progress.show(metrics(step, measured(progress, step)), force=step == 100)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert 3 <= len(lines) <= 5 and "step 100 " in lines[-1]


def test_numbers_are_written_under_their_prefix():
    library = mock.Mock()
    log = WandbLog(library, "0123abcd", "model", flatten(Config()), print)
    log.write(3, {"loss": 2.0, "examples": ["text"]}, "train")
    log.close()
    run, options = library.init.return_value, library.init.call_args.kwargs
    assert run.mock_calls == [mock.call.log({"train/loss": 2.0}, step=3), mock.call.finish()]
    assert (options["id"], options["name"], options["resume"]) == ("0123abcd", "model", "allow")
    assert options["config"]["training.global_batch_size"] == 16
    assert options["settings"]["console"] == "off" and options["settings"]["disable_git"]


def test_a_failure_is_logged_once_and_training_continues():
    library, printed = mock.Mock(), []
    library.init.return_value.log.side_effect = ConnectionError("no network")
    log = WandbLog(library, "0123abcd", "model", flatten(Config()), printed.append)
    for step in range(3):
        log.write(step, {"loss": 1.0}, "train")
    log.close()
    assert len(printed) == 1 and "no network" in printed[0]


def test_a_profile_reaches_a_bucket_and_is_read_from_there(bucket, tmp_path):
    jax = pytest.importorskip("jax", "0.7")
    jax.config.update("jax_platforms", "cpu")
    logged, events = [], []
    steps = read_profile_steps("2-3", 4)
    told = (logged.append, lambda **fields: events.append(fields))
    profiled = Profile(steps, 0, "pjrt", f"{bucket}/run", str(tmp_path), *told)
    multiply = jax.jit(lambda x: x @ x)
    for step in range(1, 5):
        profiled.at(step - 1)
        multiply(jax.numpy.ones((64, 64))).block_until_ready()
    profiled.close()
    (event,) = events
    assert event["steps"] == "2-3" and event["folder"].startswith("plugins/profile/")
    assert logged == [f"profile of steps 2-3: {bucket}/run/{event['folder']}"]
    names = figures.op_seconds(f"{bucket}/run")
    assert any("dot" in name or "fusion" in name for name in names)  # of the step's product
