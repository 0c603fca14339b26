"""A whole pretraining by `kaggle_run`, against a program that plays Kaggle's command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import kaggle_run
from scripts.kaggle_service import with_parameters
from testkit import ROOT
from testkit.fakes import kaggle

KERNEL = "someone/my-bigbird"


class Run:
    """One run of the script in this process, or in one of its own."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        self.service, self.work_dir = tmp_path / "service", tmp_path / "work"
        self._patch, self._capsys = monkeypatch, capsys
        self.words = ["--kernel", KERNEL, "--work_dir", str(self.work_dir), "--poll_seconds",
                      "0.01", "--source", "bigbird-ja", "--json"]  # fmt: skip

    def install(self, **state: Any) -> None:
        folder = kaggle.install(self.service, **state)
        self._patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def __call__(self, *more: str) -> tuple[int, dict[str, Any], str]:
        before = signal.getsignal(signal.SIGTERM)
        try:
            status = kaggle_run.main([*self.words, *more])
        finally:
            signal.signal(signal.SIGTERM, before)
        captured = self._capsys.readouterr()
        return status, json.loads(captured.out), captured.err

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "scripts.kaggle_run", *self.words], text=True, cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        return kaggle.read(self.service)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Run:
    return Run(tmp_path, monkeypatch, capsys)


def test_sessions_follow_each_other_until_the_run_is_finished(run: Run) -> None:
    run.install(sessions=[40, 40, 40], quota=[20.0, 5.5])
    status, result, log = run("--settings", "--set training.num_train_steps=100")
    assert status == 0 and (result["global_step"], result["sessions"]) == (100, 3), log
    assert json.loads((Path(result["output"]) / "session.json").read_text())["global_step"] == 100
    first, second, third = run.state()["pushed"]
    assert [p["values"]["EXPECTED_STEP"] for p in (first, second, third)] == [0, 40, 80]
    assert (first["datasets"], third["datasets"]) == ([], [f"{KERNEL}-data", f"{KERNEL}-run"])
    assert [p["values"]["HOURS_PER_SESSION"] for p in (first, second)] == [9.0, 5.5]
    assert [p["values"]["COUNTS_SESSIONS"] for p in (first, second)] == [True, False]
    assert first["values"]["SETTINGS"] == "--set training.num_train_steps=100"
    assert {p["accelerator"] for p in (first, second, third)} == {"TpuV5E8"}
    assert run.state()["datasets"] == {f"{KERNEL}-data": 1, f"{KERNEL}-run": 2}
    again = run("--settings", "--set training.num_train_steps=100")
    assert again[0] == 0 and len(run.state()["pushed"]) == 3
    status, result, _ = run()
    assert status == 2 and "holds another run (settings" in result["error"]


def test_it_waits_for_hours_and_for_a_place(run: Run) -> None:
    busy = {"out": "Kernel push error: Maximum weekly TPU quota of 20.00 hours reached."}
    full = {"out": "Kernel push error: Maximum batch TPU session count of 1 reached."}
    run.install(sessions=[100], quota=[0.2, 0.9, 20.0], faults={"kernels push": [busy, full]})
    status, _, log = run()
    assert status == 0 and log.count("TPU hours are left of the week: waits") == 2
    assert log.count("Kaggle lends no TPU now (Maximum") == 2 and len(run.state()["pushed"]) == 1


def test_a_killed_session_is_made_again_from_the_step_before(run: Run) -> None:
    run.install(sessions=[40, "killed", 60])
    status, result, log = run()
    assert status == 0 and result["sessions"] == 3, log
    assert [p["values"]["EXPECTED_STEP"] for p in run.state()["pushed"]] == [0, 40, 40]
    assert "session 2 of someone/my-bigbird brought nothing (error): starting" in log


def test_sessions_without_progress_end_it_and_it_can_be_tried_again(run: Run) -> None:
    run.install(sessions=["killed", 0, "killed", 100])
    status, result, _ = run()
    assert status == 76 and result["reason"] == "stalled", result
    assert "3 sessions in a row without progress" in result["error"]
    assert run()[0] == 0


@pytest.mark.parametrize(
    ("how", "status", "says"),
    [("diverged", 70, "session 1: step 7: NaN"), ("bad_input", 2, "--input x: no such file")],
)
def test_what_would_repeat_is_not_tried_again(run: Run, how: str, status: int, says: str) -> None:
    run.install(sessions=[how])
    ended, result, _ = run()
    assert ended == status and says in result["error"] and "\n" not in result["error"]
    assert len(run.state()["pushed"]) == 1


def test_passing_faults_are_ridden_out_and_lasting_ones_end_it(run: Run) -> None:
    down = {"err": "HTTPSConnectionPool(host='api.kaggle.com'): Max retries exceeded", "status": 1}
    names = ("kernels push", "kernels status", "kernels output", "datasets create")
    run.install(sessions=[50], faults={name: [down, down] for name in names})
    assert run()[0] == 0
    kaggle.write(
        run.service, {**run.state(), "kernel": None, "faults": {"kernels push": [down] * 9}}
    )
    run.work_dir = run.work_dir.with_name("other")
    run.words[3] = str(run.work_dir)
    status, result, _ = run()
    assert status == 74 and "`kaggle kernels push` keeps failing: HTTPSConn" in result["error"]


@pytest.mark.parametrize(
    ("name", "fault", "says"),
    [
        ("kernels push", {"out": "Kernel push error: Notebook not found"}, "Notebook not found"),
        ("kernels push", {"out": "Authentication required to call", "status": 1}, "auth login"),
    ],
)
def test_a_refusal_is_one_line(run: Run, name: str, fault: dict[str, Any], says: str) -> None:
    run.install(faults={name: [fault]})
    status, result, _ = run()
    assert status == 2 and says in result["error"] and "\n" not in result["error"]


def test_without_the_command_it_says_what_to_install(run: Run, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    status, result, _ = run()
    assert status == 2 and "pip install kaggle" in result["error"]


@pytest.mark.parametrize(
    "words", [["--kernel", "x"], ["--hours_per_session", "0"], ["--source", "no.whl"]]
)
def test_bad_input_is_refused(run: Run, words: list[str]) -> None:
    run.install()
    status, result, _ = run(*words)
    assert status == 2 and words[0] in result["error"] and not run.state()["calls"]


def test_a_wheel_is_brought_along(run: Run, tmp_path: Path) -> None:
    run.install(sessions=[100])
    wheel = tmp_path / "bigbird_ja-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    assert run("--source", str(wheel))[0] == 0
    (pushed,) = run.state()["pushed"]
    assert pushed["datasets"] == [f"{KERNEL}-wheel"]
    assert (run.service / f"datasets/{KERNEL}-wheel" / wheel.name).read_bytes() == b"wheel"


def test_an_output_that_is_cut_is_fetched_again(run: Run) -> None:
    run.install(sessions=[100], cut=["session.json"])
    status, _, log = run()
    assert status == 0 and "1 files did not arrive whole, such as session.json: again" in log


def test_a_session_that_another_pushed_is_not_taken(run: Run) -> None:
    run.install(sessions=[40, 60])
    run.work_dir.mkdir()
    settings = {"CONFIG": "base-4096", "SETTINGS": "", "INPUT": "tfds:wiki40b/ja"}
    state = kaggle_run.State(KERNEL, settings, "running", "mine", 1)
    (run.work_dir / "state.json").write_text(json.dumps(vars(state)))
    service = run.state()
    kernel = {"id": KERNEL, "waits": [], "status": "COMPLETE"}
    kaggle.write(run.service, {**service, "kernel": kernel})
    root = run.service / "output/bigbird-ja"
    root.mkdir(parents=True)
    (root / "files.json").write_text('{"session": "another", "files": {}}')
    status, result, _ = run()
    assert status == 2 and "was not pushed by this run" in result["error"]


def test_killed_after_any_call_it_goes_on_and_starts_no_session_twice(run: Run) -> None:
    """SIGKILL right after each third of the calls, in one run."""
    run.install(sessions=[40, 40, 40], dies_at=list(range(2, 60, 3)))
    deaths = 0
    for _ in range(40):
        ended = run.start()
        out, err = ended.communicate(timeout=120)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, err
        deaths += 1
    assert ended.returncode == 0 and deaths >= 5
    assert json.loads(out)["sessions"] == 3 and len(run.state()["pushed"]) == 3


def test_a_signal_leaves_the_session_alone_and_a_second_script_is_refused(run: Run) -> None:
    run.install(quota=[0.1])
    running = run.start()
    assert running.stderr is not None
    assert "waits" in running.stderr.readline()
    status, result, _ = run()
    assert status == 2 and "another kaggle_run is at work there" in result["error"]
    running.send_signal(signal.SIGTERM)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 75 and json.loads(out)["reason"] == "interrupted"


def test_parameters_are_replaced_in_the_real_notebook() -> None:
    notebook = json.loads(kaggle_run.NOTEBOOK.read_text(encoding="utf-8"))
    changed = with_parameters(notebook, {"CONFIG": "tiny-cpu", "EXPECTED_STEP": 7})
    (cell,) = [c for c in changed["cells"] if c["metadata"].get("tags") == ["parameters"]]
    text = "".join(cell["source"])
    assert "CONFIG = 'tiny-cpu'\n" in text and "EXPECTED_STEP = 7" in text
    with pytest.raises(KeyError):
        with_parameters(notebook, {"CONFIGURATION": "x"})
