"""How the outcome of a run is recorded and returned or raised, with a fake logger."""

from dataclasses import dataclass
from threading import Event
from types import SimpleNamespace

import pytest

from bigbird_ja.errors import BadInput, Interrupted, Stalled, StorageError
from bigbird_ja.train import outcome as outcome_lib
from bigbird_ja.train.job import Dependencies
from bigbird_ja.train.outcome import Outcome
from bigbird_ja.train.processes import SingleProcess


@dataclass
class Totals:
    global_step: int
    reason: str


class Logger:
    """Fake logger of a run at step 7. It records the reasons with which the run ended."""

    step, loss = 7, 1.5

    def __init__(self):
        self.recorded = []

    def record_end(self, reason, error):
        self.recorded.append(reason)

    def make_results(self, reason):
        return Totals(self.step, reason)


@pytest.fixture
def logged():
    return []


@pytest.fixture
def outcome(logged):
    job = SimpleNamespace(pod=SingleProcess(), deps=Dependencies(log=logged.append))
    model_dir = SimpleNamespace(path="out/run")
    return Outcome(job, model_dir, SimpleNamespace(name="SIGTERM"), Logger(), None)


def test_finished_run_is_recorded_once(outcome, logged):
    assert outcome.make_result("finished") == Totals(7, "finished")
    assert logged == ["finished: step 7, loss 1.5000, in out/run"]
    outcome.make_result("finished", is_new=False)  # An outcome that is not new is not recorded.
    assert outcome.logger.recorded == ["finished"]


@pytest.mark.parametrize(("step", "words"), [(7, "saved at step 7 in out/run"), (0, "no step was")])
def test_interrupted_run_has_its_results(step, words, outcome):
    outcome.logger.step = step
    with pytest.raises(Interrupted, match=f"^SIGTERM: {words}") as stopped:
        outcome.make_result("interrupted")
    assert stopped.value.results == {"global_step": step, "reason": "interrupted"}
    assert outcome.logger.recorded == ["interrupted"]


@pytest.mark.parametrize(
    ("error", "kind", "recorded"),
    [
        (BadInput("odd record"), BadInput, ["bad_input"]),
        (PermissionError(13, "denied", "shard"), StorageError, ["io_error"]),
        (KeyError("x"), KeyError, ["bug"]),
    ],
)
def test_failure_is_recorded_and_raised(error, kind, recorded, outcome):
    with pytest.raises(kind), outcome.record_failures():
        raise error
    assert outcome.logger.recorded == recorded


def test_storage_that_hangs_does_not_delay_the_exit(outcome, monkeypatch):
    monkeypatch.setattr(outcome_lib, "_RECORDING_SECONDS", 0.1)
    monkeypatch.setattr(outcome.logger, "record_end", lambda *_: Event().wait())
    error = Stalled("no step finished")
    outcome.record_exit(error)
    assert error.results == {"global_step": 7, "reason": "stalled"}
