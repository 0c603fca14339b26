"""`report` writes once, or as long as training goes on."""

from __future__ import annotations

import json

from bigbird_ja.cli import command_flags
from bigbird_ja.commands import report
from tests.report import fake_run


def test_one_page_for_two_runs(tmp_path, run):
    first = fake_run.write(tmp_path / "a", steps=400)
    second = fake_run.write(tmp_path / "b", steps=400, seed=1)
    for name in ("events.jsonl", "metrics.jsonl", "eval.jsonl"):
        with open(first / name, "ab") as file:
            file.write(b'{"step": 300, "ti')  # half a line of a killed writer
    output = tmp_path / "new/folder/r.html"
    folders = (f"--model_dir={first}", f"--model_dir={second}")
    ended = run("report", *folders, f"--output={output}", "--json")
    assert ended.status == 0 and [one["step"] for one in ended.json["runs"]] == [400, 400]
    assert "a, b" in output.read_text(encoding="utf-8")


def test_watch_ends_when_the_run_does(tmp_path):
    run_dir = fake_run.write(tmp_path / "a", steps=400)
    beat = json.loads((run_dir / "heartbeat.json").read_text())
    pages = []

    def sleep(seconds: float) -> None:
        pages.append((tmp_path / "r.html").read_text(encoding="utf-8"))
        beat["time"] += seconds
        if len(pages) == 2:
            beat.update(state="stopped", reason="finished")
        (run_dir / "heartbeat.json").write_text(json.dumps(beat))

    flags = [f"--model_dir={run_dir}", f"--output={tmp_path}/r.html", "--watch"]
    args = command_flags.parse(report, "report", flags)
    assert report.run_with(args, lambda: beat["time"], sleep)["written"] == 3
    assert all("http-equiv" in text for text in pages)
    assert "http-equiv" not in (tmp_path / "r.html").read_text(encoding="utf-8")
