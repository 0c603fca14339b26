"""The order of events in a run, with a simulated engine."""

import contextlib
import dataclasses
import os
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, CommandError, Diverged, Interrupted, OutOfMemory
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.values import replace_settings
from bigbird_ja.storage import outputs
from bigbird_ja.storage.lease import LOCK_NAME
from bigbird_ja.storage.ownership import Owned
from bigbird_ja.train import train as train_lib
from bigbird_ja.train.engines.choose import Choice
from bigbird_ja.train.engines.protocol import StepResult
from bigbird_ja.train.exit import ProcessExit
from bigbird_ja.train.job import Job
from bigbird_ja.train.run_logger import RunLogger
from bigbird_ja.train.train import train
from bigbird_ja.train.watchdog import Watchdog
from testkit import synthetic
from testkit.configs import resolve_config

SETTINGS = """
    training.num_train_steps=30 training.log_every_steps=4 training.eval_every_steps=20
    training.warmup_steps=0 checkpoints.save_every_steps=7 checkpoints.save_every_minutes=0
    checkpoints.keep_last=9
""".split()


class Numbers:
    """Simulated engine, whose state is only the number of the step.

    Args:
        start: step of the initial state.
        ahead: number of steps that are dispatched beyond the last finished step.
        loop: number of steps that one call of `advance` finishes.
        bad: step whose update is not finite.
        then: callback that each call of `advance` calls with the last finished step.
    """

    def __init__(self, start, ahead, loop, bad, then):
        self.dispatched = self.finished = start
        self._ahead, self._loop, self._bad, self._then = ahead, loop, bad, then

    ahead = begun = closed = 0
    refusal = None  # exception that `begin` raises

    def begin(self):
        self.begun += 1
        if self.refusal is not None:
            raise self.refusal

    def close(self):
        self.closed += 1

    def advance(self, limit):
        self.dispatched = min(self.finished + self._loop + self._ahead, limit)
        result = self._finish(max(self.finished + 1, self.dispatched - self._ahead))
        self._then(result.step)
        return result

    def settle(self):
        done = self._finish(self.dispatched)
        logged = {**done.metrics, done.step: metrics(done.step)}
        return StepResult(done.step, logged, done.first_nonfinite_step)

    def _finish(self, step):
        steps = range(self.finished + 1, step + 1)
        self.finished = step
        logged = {n: metrics(n) for n in steps if n % 4 == 0}
        return StepResult(step, logged, self._bad if self._bad in steps else None)

    def snapshot(self):
        assert self.finished == self.dispatched, "a state that is not settled"
        values = {"global_step": np.int64(self.dispatched)}
        return lambda: values

    def forward(self):
        assert self.finished == self.dispatched
        return self


def metrics(step):
    return {"loss": 1.0 / step, "masked_lm_accuracy": 0.5, "learning_rate": 0.1}


class Training:
    """Training in one MODEL_DIR with the simulated engine.

    Each call of the method `run` starts or resumes training. Arguments of `run`:
        stop_at: step after which SIGTERM arrives, or "evaluation" for a SIGTERM during the first
            evaluation.
        instead: callback that is called after the step `stop_at`, in place of the SIGTERM.
    """

    def __init__(self, tmp_path, monkeypatch, *settings):
        self.manifest = synthetic.write(tmp_path / "data")
        self.data, self.model_dir = str(tmp_path / "data"), str(tmp_path / "model")
        config, overrides = resolve_config(None, [*SETTINGS, *settings])
        self.config = fit_to_data(config, self.manifest, overrides)
        self._monkeypatch = monkeypatch
        self.overwrite, self.replicas, self.stack = False, 1, contextlib.ExitStack()
        self.scores = {"masked_lm_loss": 1.0, "masked_lm_accuracy": 0.5}
        self.scores["data_fingerprint"] = self.manifest.fingerprint

    def run(self, *, ahead=0, loop=1, bad=None, evaluates=False, stop_at=None, instead=None):
        stop = StopRequest(lambda text: None, lambda text: None, timeout=1e9)
        steps = CheckpointStore(self.model_dir).list_steps()

        def then(step):
            if isinstance(stop_at, int) and step >= stop_at:
                instead() if instead else stop.ask("SIGTERM")

        engine = Numbers(steps[-1] if steps else 0, ahead, loop, bad, then)

        def evaluate(model, *_, **how):
            if stop_at == "evaluation":
                stop.ask("SIGTERM")
            for _ in range(how["max_batches"] or 1):
                how["tick"]()
            return {"examples": [], **self.scores}

        self._monkeypatch.setattr("bigbird_ja.evaluation.masked_lm.evaluate_model", evaluate)
        self._monkeypatch.setattr(
            "bigbird_ja.evaluation.tensorboard.make_evaluation_file",
            lambda step, *_: (f"eval/{step}", b""),
        )
        self._monkeypatch.setattr(train_lib, "make_engine", lambda *args: engine)
        choice = Choice("numbers", "test", False, self.replicas, "none")
        run = (self.config, self.manifest, self.data, choice)
        job = Job(*run, evaluates=evaluates)
        try:
            train(job, ModelDir(self.model_dir, self.overwrite), stop, ProcessExit(print))
        finally:
            # An engine that is not closed would wait for its input and delay the exit. A preempted
            # machine has only 30 seconds to exit.
            assert engine.closed == engine.begun, "closed once, however the run ends"

    @property
    def logged(self):
        return [record["step"] for record in run_log.read_metrics(self.model_dir)]

    @property
    def saved(self):
        return CheckpointStore(self.model_dir).list_steps()

    @property
    def evaluated(self):
        return [record["step"] for record in run_log.read_evaluations(self.model_dir)]


@pytest.fixture
def training(tmp_path, monkeypatch):
    return Training(tmp_path, monkeypatch)


def nothing(training):
    """Do not create MODEL_DIR."""


def folder(training):
    storage.make_directory(training.model_dir)


def single_file(training):
    outputs.write(f"{training.model_dir}/sample.jsonl", b"ours, in a folder of the user's")


def interrupted(training):
    with pytest.raises(Interrupted):
        training.run(stop_at=9)


def lost_work(training):
    """Create a run that was killed after it logged and evaluated steps beyond its checkpoint."""
    interrupted(training)
    for name in (run_log.METRICS, run_log.EVAL):
        line = {"step": 12, "time": 0.0, "loss": 1.0, **training.scores}
        run_log.append_line(f"{training.model_dir}/{name}", line)


def damaged(training):
    """Create a run with a damaged checkpoint and an incomplete file of an interrupted save."""
    interrupted(training)
    storage.write_bytes(f"{training.model_dir}/model.ckpt-9.index", b"cut off")
    left = "model.ckpt-12.data-00000-of-00001"
    Owned.load(training.model_dir).write(left, b"half")


def no_device(training, patch):
    patch.setattr(Numbers, "refusal", BadInput("no such device"))


def no_device_after_a_heartbeat(training, patch):
    """Let the engine's `begin` fail after the run has written a heartbeat.

    The wait for the heartbeat simulates a long compilation.
    """
    has_run, beat, begin = Event(), RunLogger.write_heartbeat, Numbers.begin
    patch.setattr(train_lib, "HEARTBEAT_SECONDS", 0.01)
    patch.setattr(RunLogger, "write_heartbeat", lambda logger: (beat(logger), has_run.set()))

    def compile_and_begin(engine):
        assert has_run.wait(60)
        assert run_log.read_heartbeat(training.model_dir)["state"] == "starting"
        begin(engine)

    patch.setattr(Numbers, "begin", compile_and_begin)
    no_device(training, patch)


def no_memory(training, patch):
    patch.setattr(Numbers, "refusal", OutOfMemory("a step needs 1 TB"))


def other_devices(training, patch):
    training.replicas = 3


def other_data(training, patch):
    training.manifest = dataclasses.replace(training.manifest, seed=7)


def other_config(training, patch):
    path = f"{training.model_dir}/config.yaml"
    text = storage.read_bytes(path)
    assert b"  seed: 12345" in text
    storage.write_bytes(path, text.replace(b"  seed: 12345", b"  seed: 7"))


def in_the_place_of(name, make):
    """Return a function that removes the output `name`, and calls `make(path)` to replace it."""

    def refusal(training, patch):
        path = Path(training.model_dir, name)
        path.unlink(missing_ok=True)
        make(path)

    refusal.__name__ = name
    return refusal


def another_trainer(training, patch):
    stack = training.stack
    stack.enter_context(ModelDir(training.model_dir, log=lambda text: None).lock())


def overwritten(training, patch):
    training.overwrite = True
    no_device(training, patch)


@pytest.mark.parametrize(
    ("state", "refusal", "error"),
    [
        (nothing, no_device, "no such device"),
        (folder, no_device, "no such device"),
        (folder, no_memory, "needs 1 TB"),
        (single_file, no_device, "no such device"),
        (interrupted, no_device, "no such device"),
        (interrupted, no_device_after_a_heartbeat, "no such device"),
        (interrupted, other_devices, "16 is not divisible by 3 cores"),
        (interrupted, other_data, "trained on other data"),
        (interrupted, another_trainer, "is training here"),
        (interrupted, overwritten, "no such device"),
        (lost_work, no_device, "no such device"),
        (lost_work, no_memory, "needs 1 TB"),
        (lost_work, overwritten, "no such device"),
        (damaged, no_device, "no such device"),
        (damaged, other_data, "trained on other data"),
        (damaged, other_config, "not the config that checkpoint 7 was trained with"),
    ],
)
def test_refused_start_changes_no_byte_of_model_dir(
    state, refusal, error, training, base, monkeypatch
):
    training.model_dir = f"{base}/model"
    state(training)
    refusal(training, monkeypatch)

    def files():
        folders = [base, *Path(base).rglob("*")] if not storage.is_remote(base) else []
        names = [name for name in storage.list_tree(base) if not name.endswith(LOCK_NAME)]
        return folders, {name: storage.read_bytes(f"{base}/{name}") for name in names}

    before = files()
    with training.stack:
        with pytest.raises(CommandError, match=error):
            training.run()
        assert before == files()


@pytest.mark.parametrize(
    "refusal",
    [
        in_the_place_of("heartbeat.json", os.mkfifo),
        in_the_place_of("heartbeat.json", Path.mkdir),
        in_the_place_of("metrics.jsonl", lambda path: path.symlink_to("/dev/null")),
        in_the_place_of("eval.jsonl", Path.mkdir),
        in_the_place_of("config.yaml", lambda path: path.symlink_to("none")),
        in_the_place_of("tokenizer.model", os.mkfifo),
        in_the_place_of("eval", Path.touch),
        in_the_place_of("plugins", Path.touch),
        in_the_place_of("compiled", os.mkfifo),
    ],
)
@pytest.mark.parametrize("state", [interrupted, lost_work])
def test_something_else_in_the_place_of_a_file_is_refused_before_any_change(
    state, refusal, training, monkeypatch
):
    state(training)
    refusal(training, monkeypatch)
    model = Path(training.model_dir)

    def content():
        return {
            path.name: path.is_file() and not path.is_symlink() and path.read_bytes()
            for path in model.iterdir()
            if path.name != LOCK_NAME
        }

    before = content()
    with pytest.raises(BadInput):
        training.run(evaluates=True)
    assert before == content()


def test_damaged_checkpoint_is_set_aside_and_the_one_before_continued(training):
    damaged(training)
    training.run()
    assert training.saved == [7, 14, 21, 28, 30]
    events = [e["event"] for e in run_log.read_events(training.model_dir)]
    assert events.index("set_aside") < events.index("resumed") and "cleaned" in events
    assert Path(training.model_dir, "damaged-model.ckpt-9.index").read_bytes() == b"cut off"


@pytest.mark.parametrize(("ahead", "loop"), [(0, 1), (3, 1), (0, 2)])
def test_uninterrupted_run_logs_saves_and_evaluates_on_schedule(training, ahead, loop):
    training.run(ahead=ahead, loop=loop, evaluates=True)
    assert training.logged == [4, 8, 12, 16, 20, 24, 28, 30]
    assert training.saved == [7, 14, 21, 28, 30]
    assert training.evaluated == [20, 30]


@pytest.mark.parametrize("ahead", [0, 3])
def test_stop_logs_and_saves_the_last_step(training, ahead):
    with pytest.raises(Interrupted) as stopped:
        training.run(ahead=ahead, stop_at=9)
    last = stopped.value.results["global_step"]
    assert 9 <= last <= 9 + ahead
    assert training.logged == sorted({4, 8, *([12] if last >= 12 else []), last})
    assert training.saved == [7, last]


@pytest.mark.parametrize("ahead", [0, 3])
def test_nonfinite_step_ends_the_run_before_a_save(training, ahead):
    with pytest.raises(Diverged, match="of step 14 are NaN"):
        training.run(ahead=ahead, bad=14)
    assert training.saved == [7]


def test_text_of_an_unknown_exception_is_not_recorded(training):
    def fail():
        raise RuntimeError("the code is swordfish")

    with pytest.raises(RuntimeError):
        training.run(stop_at=9, instead=fail)
    event = run_log.read_events(training.model_dir)[-1]
    assert (event["reason"], event["message"]) == ("bug", "RuntimeError")
    files = [path for path in Path(training.model_dir).rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"swordfish" in path.read_bytes()]


def test_each_batch_of_an_evaluation_ticks_the_watchdog(tmp_path, monkeypatch):
    ticks = []
    monkeypatch.setattr(Watchdog, "tick", lambda _: ticks.append(1))
    counts = []
    for batches in (1, 3):
        training = Training(tmp_path / str(batches), monkeypatch)
        training.config = replace_settings(training.config, {"training.eval_max_batches": batches})
        ticks.clear()
        training.run(evaluates=True)
        counts.append(len(ticks))
    assert counts[1] - counts[0] == 2 * 2, "two batches more in each of two evaluations"


def test_stop_in_an_evaluation_saves_and_the_next_start_evaluates(training):
    """Repeat an interrupted evaluation at the next start, even if it is the last of the run."""
    for last in (20, 30):
        with pytest.raises(Interrupted):
            training.run(evaluates=True, stop_at="evaluation")
        assert training.saved[-1] == last and last in training.logged
        assert training.evaluated == ([20] if last == 30 else [])
        if last == 20:
            with pytest.raises(Interrupted):
                training.run(evaluates=True, stop_at=22)
    training.run(evaluates=True)
    assert training.evaluated == [20, 30]
    assert run_log.read_events(training.model_dir)[-1]["event"] == "finished"


def test_an_evaluation_on_other_data_does_not_count(training):
    ours, training.scores["data_fingerprint"] = training.scores["data_fingerprint"], "other"
    with pytest.raises(Interrupted):
        training.run(evaluates=True, stop_at=22)
    training.scores["data_fingerprint"] = ours
    training.run(evaluates=True)
    assert training.evaluated == [20, 22, 30]


@pytest.mark.parametrize(
    ("start", "before", "expected"),
    # start: step at which the run is saved and stopped. before: steps of the evaluations that are
    # recorded before the run is resumed. expected: steps of all recorded evaluations at its end.
    # Evaluations are due at steps 20 and 30.
    [
        (20, [], [20, 30]),  # The evaluation of step 20 was not recorded.
        (23, [], [23, 30]),  # A device loop passed step 20 and ended at 23.
        (20, [20], [20, 30]),
        (25, [23], [23, 30]),
        # The run resumes at step 14, so step 20 is evaluated again. It is recorded only once.
        (14, [20], [20, 30]),
    ],
)
def test_missed_evaluation_is_made_first_after_the_restart(training, start, before, expected):
    with pytest.raises(Interrupted):
        training.run(stop_at=start)
    for step in before:
        run_log.append_eval(training.model_dir, {"step": step, "time": 1.0, **training.scores})
    training.run(evaluates=True)
    assert training.evaluated == expected
