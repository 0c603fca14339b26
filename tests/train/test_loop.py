"""The order of things, with an engine whose steps are numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.process.errors import Diverged
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.run import log as run_log
from bigbird_ja.settings.resolve import complete_config, resolve_config
from bigbird_ja.train.engines import Finished
from bigbird_ja.train.engines.choice import Choice
from bigbird_ja.train.evaluations import Evaluations
from bigbird_ja.train.housekeeping import Housekeeping
from bigbird_ja.train.loop import Loop
from bigbird_ja.train.request import Request
from bigbird_ja.train.saving import SaveSchedule
from bigbird_ja.train.watchdog import Watchdog
from testkit import synthetic


class Numbers:
    """An engine that dispatches `ahead` steps before the first one is finished."""

    def __init__(self, start: int, every: int, ahead: int, loop: int = 1, bad: int | None = None):
        self.dispatched = self.finished = start
        self._every, self._ahead, self._loop, self._bad = every, ahead, loop, bad

    ahead = 0

    def advance(self, limit: int) -> Finished:
        self.dispatched = min(self.finished + self._loop + self._ahead, limit)
        return self._finish(max(self.finished + 1, self.dispatched - self._ahead))

    def settle(self) -> Finished:
        done = self._finish(self.dispatched)
        return Finished(done.step, {**done.metrics, done.step: metrics(done.step)}, done.first_bad)

    def _finish(self, step: int) -> Finished:
        steps = range(self.finished + 1, step + 1)
        self.finished = step
        found = {n: metrics(n) for n in steps if n % self._every == 0}
        return Finished(step, found, self._bad if self._bad in steps else None)

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        assert self.finished == self.dispatched, "a state that is not settled"
        values = {"global_step": np.int64(self.dispatched)}
        return lambda: values

    def forward(self) -> Any:
        assert self.finished == self.dispatched
        return self


def metrics(step: int) -> dict[str, float]:
    return {"loss": 1.0 / step}


class Recorder:
    """Keeps what it is told."""

    def __init__(self, step: int) -> None:
        self.step, self.lines, self.evaluations = step, [], []
        self.heartbeat = self

    def update(self, **fields: Any) -> None: ...
    def began(self) -> None: ...
    def totals(self) -> dict[str, Any]:
        return {"train_seconds": 0.0, "tokens_seen": 0, "interruptions": 0}

    def next_batch(self) -> int:
        return self.step

    def stepped(self, step: int) -> None:
        self.step = step

    def logged(self, line: dict[str, float]) -> None:
        self.lines.append(int(line["step"]))

    def evaluated(self, step: int, found: dict[str, Any]) -> None:
        self.evaluations.append(step)


class Saver:
    """Keeps which steps were saved, and checks that they are what they say."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def save(self, meta: Any, snapshot: Callable[[], Callable[[], dict[str, Any]]]) -> None:
        assert int(snapshot()()["global_step"]) == meta.step
        self.steps.append(meta.step)

    def poll(self) -> None: ...
    def wait(self) -> None: ...


class Training:
    """A loop over numbers.

    Args:
        ask_at: the step at whose end someone asks to stop.
    """

    def __init__(
        self, tmp_path: Path, start: int = 0, *, ahead: int = 0, loop: int = 1,
        ask_at: int | None = None, bad: int | None = None, evaluates: bool = False,
    ) -> None:  # fmt: skip
        settings = [
            "training.num_train_steps=30", "training.log_every_steps=4",
            "training.eval_every_steps=20", "checkpoints.save_every_steps=7",
            "checkpoints.save_every_minutes=0", "training.warmup_steps=0",
        ]  # fmt: skip
        manifest = synthetic.write(tmp_path / "data") if evaluates else None
        data = tmp_path / "data"
        config = resolve_config(None, settings)[0]
        fixed = manifest_lib.load(str(data)) if manifest else synthetic.write(data)
        config = complete_config(config, (), fixed.as_settings())
        model = tmp_path / "model"
        model.mkdir(exist_ok=True)
        request = Request(
            config, fixed, str(data), str(model), Choice("numbers", "test", False, 1, "none"),
            evaluates=evaluates,
        )  # fmt: skip
        self.stop = StopRequest(lambda text: None, lambda text: None, patience=1e9)
        self.recorder, self.saver = Recorder(start), Saver()
        self.evaluations = Evaluations(request, self.stop, lambda: None)
        self.loop = Loop(
            request, Numbers(start, 4, ahead, loop, bad), self.stop, self.recorder,
            SaveSchedule(config.checkpoints, start), self.saver, self.evaluations, None,
            Watchdog(0, lambda silence: None), Housekeeping([], print),
        )  # fmt: skip
        stepped = self.recorder.stepped

        def asking(step: int) -> None:
            stepped(step)
            if ask_at is not None and step >= ask_at:
                self.stop.ask("SIGTERM")

        self.recorder.stepped = asking  # type: ignore[method-assign]
        self._start = start

    def run(self) -> str:
        return self.loop.run(self._start)


@pytest.mark.parametrize(("ahead", "loop"), [(0, 1), (3, 1), (0, 2)])
def test_a_run_left_alone(tmp_path: Path, ahead: int, loop: int) -> None:
    training = Training(tmp_path, ahead=ahead, loop=loop)
    assert training.run() == "finished"
    assert training.recorder.lines == [4, 8, 12, 16, 20, 24, 28, 30]
    assert training.saver.steps == [7, 14, 21, 28, 30]


@pytest.mark.parametrize("ahead", [0, 3])
def test_asked_to_stop_it_logs_and_saves_its_last_step(tmp_path: Path, ahead: int) -> None:
    training = Training(tmp_path, ahead=ahead, ask_at=9)
    assert training.run() == "interrupted"
    last = training.recorder.step
    assert 9 <= last <= 9 + ahead
    assert training.recorder.lines == sorted({4, 8, *([12] if last >= 12 else []), last})
    assert training.saver.steps == [7, last]


def test_a_step_that_is_not_finite_ends_it_before_it_is_saved(tmp_path: Path) -> None:
    for ahead in (0, 3):
        training = Training(tmp_path, ahead=ahead, bad=14)
        with pytest.raises(Diverged, match="step 14: "):
            training.run()
        assert training.saver.steps == [7]


def test_a_request_before_the_first_step_saves_nothing(tmp_path: Path) -> None:
    training = Training(tmp_path, 10)
    training.stop.ask("SIGTERM")
    assert training.run() == "interrupted" and training.saver.steps == []


def fake_evaluation(training: Training, monkeypatch: pytest.MonkeyPatch, batches: int = 1) -> None:
    """Evaluation in batches that do nothing but tick."""
    from bigbird_ja.evaluation import masked_lm, tensorboard

    def evaluate(forward: Any, data_dir: str, manifest: Any, **how: Any) -> dict[str, Any]:
        for _ in range(min(batches, how["max_batches"] or batches)):
            how["tick"]()
        return {"masked_lm_loss": 1.0}

    monkeypatch.setattr(masked_lm, "evaluate_part", evaluate)
    monkeypatch.setattr(tensorboard, "write_evaluation", lambda *args: None)


@pytest.mark.parametrize("ahead", [0, 3])
def test_evaluation_is_made_at_its_steps_and_at_the_end(
    tmp_path: Path, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, ahead=ahead, evaluates=True)
    fake_evaluation(training, monkeypatch)
    assert training.run() == "finished"
    assert training.recorder.evaluations == [20, 30]


def test_an_evaluation_takes_no_more_batches_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, evaluates=True)
    fake_evaluation(training, monkeypatch, batches=1 << 60)
    training.loop.request.config.training.eval_max_batches = 3
    ticks: list[int] = []
    training.evaluations._tick = lambda: ticks.append(training.recorder.step)
    assert training.run() == "finished"
    assert ticks == [20] * 3 + [30] * 3


def test_a_request_to_stop_ends_an_evaluation_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, evaluates=True)
    fake_evaluation(training, monkeypatch, batches=1 << 60)
    training.evaluations._tick = lambda: training.stop.ask("SIGTERM")
    assert training.run() == "interrupted"
    assert training.recorder.evaluations == [] and training.saver.steps == [7, 14, 20]
    assert 20 in training.recorder.lines


def test_a_request_in_the_last_evaluation_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "finished" would say that nothing is left to do, and the evaluation would be missed for good.
    training = Training(tmp_path, 25, evaluates=True)
    fake_evaluation(training, monkeypatch, batches=1 << 60)
    training.evaluations._evaluated = 20
    training.evaluations.begin = lambda step: None  # type: ignore[method-assign]
    training.evaluations._tick = lambda: training.stop.ask("SIGTERM")
    assert training.run() == "interrupted"
    assert training.recorder.evaluations == [] and training.saver.steps[-1] == 30


def test_an_evaluation_that_a_kill_left_out_is_made_first_after_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start, before, expected in (
        (20, [], [20, 30]),  # killed in it
        (23, [], [23, 30]),  # a device loop ended at 23
        (20, [20], [30]),
        (25, [23], [30]),
        (14, [20], [20, 30]),  # its checkpoint was lost: made again
    ):
        training = Training(tmp_path, start, evaluates=True)
        fake_evaluation(training, monkeypatch)
        path = tmp_path / "model" / run_log.EVAL
        path.unlink(missing_ok=True)
        data = manifest_lib.load(str(tmp_path / "data")).fingerprint
        for step in before:
            line = {
                "step": step, "time": 1.0, "masked_lm_loss": 1.0, "masked_lm_accuracy": 0.5,
                "data_fingerprint": data,
            }  # fmt: skip
            run_log.append_eval(str(tmp_path / "model"), line)
        assert training.run() == "finished"
        assert training.recorder.evaluations == expected, (start, before)
