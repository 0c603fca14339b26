"""The figures that a report reads from the logs of a run."""

import pytest

from bigbird_ja.report.run_logs import RunLogs, name_apart
from tests.report import fake_run


def test_counts_cost_and_eta_agree_with_the_model_card(tmp_path):
    run_dir = fake_run.write(tmp_path / "base")
    now = fake_run.end_of(run_dir) + 10
    run = RunLogs(str(run_dir), now)
    assert run.is_running and not RunLogs(str(run_dir), now + 3600).is_running
    # As in the model card, only the time of steps counts, and each session that ended without the
    # event "finished" counts as an interruption.
    assert run.train_seconds == 6000 * fake_run.STEP_SECONDS and run.interruptions == 3
    assert run.count("preempted") == 1 and run.count("saved") == 12
    assert run.eta_seconds == pytest.approx(4000 * fake_run.STEP_SECONDS)
    assert run.cost_usd is None
    with open(run_dir / "events.jsonl", "a", encoding="utf-8") as file:
        file.write('{"event": "deleted", "time": 1.9e9, "cost_usd": 12.5}\n{half')
    assert RunLogs(str(run_dir), now).cost_usd == 12.5


def test_runs_are_named_by_the_shortest_unique_path(tmp_path):
    dirs = [fake_run.write(tmp_path / name, steps=200) for name in ("a/model", "b/model")]
    a, b = (RunLogs(f"{place}/", 0.0) for place in dirs)
    for runs, names in (
        ([a, b], ["a/model", "b/model"]),
        ([a], ["model"]),
        ([a, a], ["model"] * 2),
    ):
        name_apart(runs)
        assert [run.name for run in runs] == names
