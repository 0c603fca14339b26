"""The page is whole, and fetches nothing."""

import math
import re

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.report import RunLogs, charts, name_apart, page
from tests.report import fake_run

matplotlib = pytest.importorskip("matplotlib.image", reason="draws the charts")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    first = fake_run.write(root / "first")
    second = fake_run.write(root / "<u> & $x$ 日本", steps=8000, seed=1)
    now = fake_run.end_of(first) + 10
    return [RunLogs(str(folder), now) for folder in (first, second)], now


@pytest.fixture(scope="module")
def text(runs):
    return page(*runs)


def test_it_is_the_same_bytes_again_fetches_nothing_and_shows_no_path(runs, text):
    assert text == page(*runs)
    assert not re.findall(r"src\s*=|href\s*=(?!\"#)|url\((?!#)|@import|https?://", text)
    assert runs[0][0].model_dir not in text


def test_everything_is_there(text):
    titles = ["Loss", "Masked-LM accuracy", "Learning rate", "Tokens per second"]
    titles += ["Accuracy by position", "Accuracy by distance", "Filled masks", "Environment"]
    assert not [title for title in titles if title not in text]
    assert "tokenize." not in text.partition("Settings that are not defaults")[2]
    assert '<tr class="differs"><th>training.learning_rate</th>' in text
    assert "&lt;b&gt;江戸&lt;/b&gt;" in text and "&lt;u&gt; &amp; $x$ 日本" in text
    assert "<b>江戸" not in text and "<u>" not in text
    assert '<table lang="ja">' in text


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    (tmp_path / "heartbeat.json").write_text('{"state": "starting", "time": 100, "global_step": 0}')
    (tmp_path / "events.jsonl").write_text('{"event": "started", "time": 100.0}\n')
    text = page([RunLogs(str(tmp_path), 110.0)], 110.0)
    assert "nothing logged yet" in text and "not evaluated yet" in text and "starting" in text


def test_a_damaged_measurement_is_bad_input(tmp_path):
    folder = fake_run.write(tmp_path / "run")
    (folder / "measured.json").write_text("{")
    with pytest.raises(BadInput, match=r"measured\.json"):
        RunLogs(str(folder), 0.0)


def test_counts_cost_and_eta_are_those_of_the_model_card(tmp_path):
    run_dir = fake_run.write(tmp_path / "base")
    now = fake_run.end_of(run_dir) + 10
    run = RunLogs(str(run_dir), now)
    assert run.is_running and not RunLogs(str(run_dir), now + 3600).is_running
    # As the model card has them: time in steps, ends other than `finished`.
    assert run.train_seconds == 6000 * fake_run.STEP_SECONDS and run.interruptions == 3
    assert run.count("preempted") == 1 and run.count("saved") == 12
    assert run.eta_seconds == pytest.approx(4000 * fake_run.STEP_SECONDS)
    assert run.cost_usd is None
    with open(run_dir / "events.jsonl", "a", encoding="utf-8") as file:
        file.write('{"event": "deleted", "time": 1.9e9, "cost_usd": 12.5}\n{half')
    assert RunLogs(str(run_dir), now).cost_usd == 12.5


def test_runs_are_named_by_where_they_differ(tmp_path):
    dirs = [fake_run.write(tmp_path / name, steps=200) for name in ("a/model", "b/model")]
    a, b = (RunLogs(f"{place}/", 0.0) for place in dirs)
    for runs, names in (
        ([a, b], ["a/model", "b/model"]),
        ([a], ["model"]),
        ([a, a], ["model"] * 2),
    ):
        name_apart(runs)
        assert [run.name for run in runs] == names


def test_thinning_keeps_the_last_point_and_drops_what_is_not_finite():
    points = [(float(i), 1.0) for i in range(5000)] + [(5000.0, math.nan), (5001.0, 7.0)]
    steps, values = charts.thin(points, 100)
    assert len(steps) == 100 and (steps[-1], values[-1]) == (5001.0, 7.0)
    assert steps.mean() == pytest.approx(2500, rel=0.05)


def test_bars_leave_out_what_is_missing():
    text = charts.bar_chart("x", {"a": {"0+": 0.5, "16+": None}, "b": {"0+": 0.1, "16+": 0.2}})
    assert text.count("fill: var(--c0)") == 2 and text.count("fill: var(--c1)") == 3  # and a key
