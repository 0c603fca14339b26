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
    output = tmp_path / "r.html"
    status = main.run_command_line(
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


def test_folders_above_the_page_are_made(tmp_path):
    run_dir = fake_run.write(tmp_path / "a", steps=200)
    output = tmp_path / "new" / "folder" / "r.html"
    assert main.run_command_line(["report", f"--model_dir={run_dir}", f"--output={output}"]) == 0
    assert "</html>" in output.read_text(encoding="utf-8")


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


def test_half_a_line_of_a_killed_writer_is_left_out(tmp_path, capsys):
    run_dir = fake_run.write(tmp_path / "a", steps=200)
    for name in ("events.jsonl", "metrics.jsonl", "eval.jsonl"):
        with open(run_dir / name, "ab") as file:
            file.write(b'{"step": 300, "ti')
    arguments = ["report", f"--model_dir={run_dir}", f"--output={tmp_path}/r.html"]
    assert main.run_command_line(arguments) == 0, capsys.readouterr().err


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
    assert main.run_command_line(["report", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
