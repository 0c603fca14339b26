"""A run's files become sessions, counts and costs."""

import pytest

from bigbird_ja.report import collect
from tests.report import fake_run


def test_sessions_end_as_the_events_say_and_cost_and_eta_follow_the_pace(tmp_path):
    run_dir = fake_run.write(tmp_path / "base")
    now = fake_run.end_of(run_dir) + 10
    run = collect.collect(str(run_dir), now)
    assert [s.ending for s in run.sessions] == ["interrupted", "killed", "preempted", None]
    assert run.is_running and run.sessions[-1].end == now
    assert run.seconds == pytest.approx(6000 * fake_run.STEP_SECONDS, abs=60)
    # As the model card has them: time in steps, ends other than `finished`.
    assert run.train_seconds == 6000 * fake_run.STEP_SECONDS and run.interruptions == 3
    assert run.breaks == [s.end for s in run.sessions[:3]]
    assert len(run.times_of("preempted")) == 1 and len(run.times_of("saved")) == 12
    silent = collect.collect(str(run_dir), now + 3600)
    assert not silent.is_running and silent.sessions[-1].ending == "killed"
    assert silent.sessions[-1].end == fake_run.end_of(run_dir)
    assert run.eta_seconds == pytest.approx(4000 * fake_run.STEP_SECONDS)
    assert run.cost_usd is None
    with open(run_dir / "events.jsonl", "a", encoding="utf-8") as file:
        file.write('{"event": "deleted", "time": 1.9e9, "cost_usd": 12.5}\n{half')
    assert collect.collect(str(run_dir), now).cost_usd == 12.5


def test_runs_are_named_by_where_they_differ(tmp_path):
    dirs = [fake_run.write(tmp_path / name, steps=200) for name in ("a/model", "b/model")]
    a, b = (collect.collect(f"{place}/", 0.0) for place in dirs)
    for runs, names in (
        ([a, b], ["a/model", "b/model"]),
        ([a], ["model"]),
        ([a, a], ["model"] * 2),
    ):
        assert [run.name for run in collect.distinct(runs)] == names
