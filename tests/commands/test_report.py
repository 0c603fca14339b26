"""`report` writes once, or as long as training goes on."""

from __future__ import annotations

import json

import pytest

from bigbird_ja import cli, command_flags
from bigbird_ja.commands import report
from tests.report import fake_run


def test_one_page_for_two_runs(tmp_path, capsys):
    first = fake_run.write(tmp_path / "a", steps=400)
    second = fake_run.write(tmp_path / "b", steps=400, seed=1)
    output = tmp_path / "r.html"
    status = cli.run_command_line(
        ["report", f"--model_dir={first}", f"--model_dir={second}", f"--output={output}", "--json"]
    )
    assert status == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["step"] for run in found["runs"]] == [400, 400]
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
        if len(pages) == 3:
            beat.update(state="stopped", reason="finished")
        (run_dir / "heartbeat.json").write_text(json.dumps(beat))

    args = command_flags.parse(
        report, "report", [f"--model_dir={run_dir}", f"--output={tmp_path}/r.html", "--watch"]
    )
    assert report.run_with(args, lambda: now[0], sleep)["written"] == 4
    assert all("http-equiv" in text for text in pages)
    assert "http-equiv" not in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model_dir is needed"),
        (["--model_dir=nowhere"], "holds no run"),
        (["--model_dir=a", "--model_dir=b", "--model_dir=c", "--data_dir=x", "--data_dir=y"],
         "one for each"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run_command_line(["report", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
