"""The page is whole, fetches nothing, and a real browser shows it."""

from __future__ import annotations

import dataclasses
import re

import pytest

from bigbird_ja.report import collect
from bigbird_ja.report.page import _lang, page
from testkit import browser
from tests.report import fake_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    first = fake_run.write(root / "first")
    second = fake_run.write(root / "second", steps=8000, seed=1)
    now = fake_run.end_of(first) + 10
    return [collect.collect(str(d), now, usd_per_hour=2.0) for d in (first, second)], now


def test_nothing_is_fetched(runs):
    text = page(*runs)
    assert not re.findall(r"(?:src|href)\s*=|url\(|@import|https?://", text)
    assert "<!--" not in text.split("<body>")[1]


def test_everything_is_there(runs):
    text = page(*runs)
    for title in (
        "Loss", "Masked-LM accuracy", "Learning rate", "Tokens per second", "Cost so far",
        "Sessions, checkpoints and interruptions", "Accuracy by position", "Accuracy by distance",
        "names filled in again", "Masked examples", "Data", "Environment", "All settings",
    ):  # fmt: skip
        assert title in text, title
    assert '<tr class="differs"><th>training.learning_rate</th>' in text
    assert "&lt;b&gt;江戸&lt;/b&gt;" in text and "<b>江戸</b>" not in text


def test_mixed_corpora_have_bars_of_their_own(runs):
    assert "Accuracy by corpus" not in page(*runs)
    first = runs[0][0]
    rows = [
        {"name": name, "count": 5, "loss": 1.0, "accuracy": share}
        for name, share in (("news.jsonl", 0.25), ("<books>", 0.5))
    ]
    last = {**first.evaluations[-1], "by_sub_corpus": rows}
    mixed = dataclasses.replace(first, evaluations=[*first.evaluations[:-1], last])
    text = page([mixed, runs[0][1]], runs[1])
    assert "Accuracy by corpus" in text and "news.jsonl" in text and "&lt;books&gt;" in text


def test_japanese_text_is_said_to_be_japanese(runs):
    assert '<table lang="ja">' in page(*runs)
    example = {"before": "the city of ", "truth": "Edo", "guess": "Edo", "after": " was"}
    assert _lang([example]) == ""


def test_it_is_renewed_only_while_training(runs):
    assert '<meta http-equiv="refresh" content="30">' in page(*runs, 30)
    assert "http-equiv" not in page(*runs)


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    import json

    (tmp_path / "heartbeat.json").write_text(
        json.dumps({"state": "starting", "time": 100.0, "global_step": 0})
    )
    (tmp_path / "events.jsonl").write_text('{"event": "started", "time": 100.0}\n')
    text = page([collect.collect(str(tmp_path), 110.0)], 110.0, 30)
    assert "nothing logged yet" in text and "starting" in text


@pytest.mark.parametrize(
    ("width", "colors", "drawn"),
    [
        (1280, "light", ((0x09, 0x69, 0xDA), (0xD1, 0x48, 0x0F))),
        (390, "dark", ((0x58, 0xA6, 0xFF), (0xF0, 0x88, 0x3E))),
    ],
)
def test_a_browser_draws_it(runs, tmp_path, width, colors, drawn):
    path, picture = tmp_path / "report.html", tmp_path / "report.png"
    path.write_text(page(*runs), encoding="utf-8")
    found = browser.render(path, picture, width, colors)
    assert found["title"] == "bigbird-ja: first, second"
    assert found["errors"] == [] and found["requests"] == [path.as_uri()]
    assert found["pictures"] >= 9 and found["width"] == width  # nothing to scroll sideways
    matplotlib = pytest.importorskip("matplotlib.image", reason="reads the picture")
    pixels = matplotlib.imread(picture)
    # Both runs' colours are drawn: the first two of the style sheet.
    for colour in drawn:
        near = (abs(pixels[..., :3] * 255 - colour).max(axis=-1) < 4).sum()
        assert near > 1000, f"{colour}: {near} pixels"
