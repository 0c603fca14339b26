"""The report is complete, and loads no other files."""

import re

import pytest

from bigbird_ja.report.page import format_page
from bigbird_ja.report.run_logs import RunLogs
from tests.report import fake_run

pytest.importorskip("matplotlib.image", reason="draws the charts")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    first = fake_run.write(root / "first")
    second = fake_run.write(root / "<u> & $x$ 日本", steps=8000, seed=1)
    now = fake_run.end_of(first) + 10
    return [RunLogs(str(folder), now) for folder in (first, second)], now


@pytest.fixture(scope="module")
def text(runs):
    return format_page(*runs)


def test_the_page_is_reproducible_fetches_nothing_and_shows_no_path(runs, text):
    assert text == format_page(*runs)
    assert not re.findall(r"src\s*=|href\s*=(?!\"#)|url\((?!#)|@import|https?://", text)
    assert runs[0][0].model_dir not in text


def test_the_page_has_all_charts_and_tables_and_escapes_text(text):
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
    text = format_page([RunLogs(str(tmp_path), 110.0)], 110.0)
    assert "nothing logged yet" in text and "not evaluated yet" in text and "starting" in text
