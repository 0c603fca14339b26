"""`report` writes once, or as long as training goes on."""

from __future__ import annotations

import json

import pytest

from bigbird_ja.cli import command_flags, main
from bigbird_ja.commands import report
from tests.report import fake_run


def test_one_page_for_two_runs(tmp_path, capsys):
    first = fake_run.write(tmp_path / "a", steps=400)
    second = fake_run.write(tmp_path / "b", steps=400, seed=1)
    for name in ("events.jsonl", "metrics.jsonl", "eval.jsonl"):
        with open(first / name, "ab") as file:
            file.write(b'{"step": 300, "ti')  # half a line of a killed writer
    output = tmp_path / "new" / "folder" / "r.html"
    status = main.run_command_line(
        ["report", f"--model_dir={first}", f"--model_dir={second}", f"--output={output}", "--json"]
    )
    assert status == 0
    result = json.loads(capsys.readouterr().out)
    assert [run["step"] for run in result["runs"]] == [400, 400]
    assert "a, b" in output.read_text(encoding="utf-8")


def test_watch_ends_when_the_run_does(tmp_path):
    run_dir = fake_run.write(tmp_path / "a", steps=400)
    beat = json.loads((run_dir / "heartbeat.json").read_text())
    now = [beat["time"]]
    pages = []

    def sleep(seconds: float) -> None:
        pages.append((tmp_path / "r.html").read_text(encoding="utf-8"))
        now[0] += seconds
        beat["time"] = now[0]
        if len(pages) == 2:
            beat.update(state="stopped", reason="finished")
        (run_dir / "heartbeat.json").write_text(json.dumps(beat))

    args = command_flags.parse(
        report, "report", [f"--model_dir={run_dir}", f"--output={tmp_path}/r.html", "--watch"]
    )
    assert report.run_with(args, lambda: now[0], sleep)["written"] == 3
    assert all("http-equiv" in text for text in pages)
    assert "http-equiv" not in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "data", "key"),
    [
        ("heartbeat.json", b"[]", "expected an object"),
        ("heartbeat.json", b'{"global_step": "5", "time": 1, "state": "x"}', "global_step: "),
        ("heartbeat.json", b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "nested too deeply"),
        ("events.jsonl", b'{"time": 1}\n', "line 1: event is missing"),
        ("events.jsonl", b'{"event": "saved", "time": null}\n', "line 1: time: "),
        ("metrics.jsonl", b'{"step": 1, "time": 1, "loss": NaN}\n', "line 1: not JSON"),
        ("eval.jsonl", b'{"step": 1, "time": 1, "probe": {}}\n', "step 1: probe."),
    ],
)
def test_a_foreign_file_is_refused_by_key(name, data, key, tmp_path, capsys):
    run_dir = fake_run.write(tmp_path / "a", steps=200)
    (run_dir / name).write_bytes(data)
    arguments = ["report", f"--model_dir={run_dir}", f"--output={tmp_path}/r.html"]
    assert main.run_command_line(arguments) == 2
    words = capsys.readouterr().err
    assert words.count("\n") == 1 and f"{name}: " in words and key in words
    assert not (tmp_path / "r.html").exists()
