"""The trainer's log, followed through windows of its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.launch.run_files import BucketFiles, Run
from bigbird_ja.launch.run_state import Phase, RunState
from bigbird_ja.launch.terminal import LogFollower, follow, progress_lines
from tests.launch import support

LINES = [f"step {n:,} of 9,999   loss {1 / n:.4f}" for n in range(1, 2_000)]


@pytest.mark.parametrize("step", [1, 3, 50, 700])
def test_every_line_comes_once_and_in_order(step: int) -> None:
    follower, results, log = LogFollower(), [], ""
    for start in range(0, len(LINES), step):
        log += "".join(f"{line}\n" for line in LINES[start : start + step])
        half = log[: -len(LINES[-1]) // 2]  # a copy may end within a line
        results += follower.new_lines(half[-40_000:])
    results += follower.new_lines(log[-40_000:])
    assert results == LINES


def test_another_machine_begins_another_log() -> None:
    follower = LogFollower()
    assert follower.new_lines("a\nb\n") == ["a", "b"]
    assert follower.new_lines("a\nb\n") == []
    assert follower.new_lines("c\n") == ["c"]


def test_progress_lines() -> None:
    assert progress_lines(["starting", "step 5 of 9", "a step", "step: 7"]) == ["step 5 of 9"]


def test_it_ends_with_the_run(tmp_path: Path) -> None:
    paths = Run(str(tmp_path), "run-1")
    files, shown = BucketFiles(paths), []
    files.prepare()
    storage.write_text(paths.supervisor("launch.json"), "{}")
    storage.write_text(paths.supervisor("training.log"), "one\n")
    turns = iter(["one\ntwo\n", "one\ntwo\nthree\n"])

    def sleep(seconds: float) -> None:
        storage.write_text(paths.supervisor("training.log"), next(turns))
        if len(shown) == 2:
            files.save_state(RunState("run-1", Phase.ENDED, ending_message="finished at step 3"))

    assert follow(str(tmp_path), "run-1", shown.append, sleep) == "finished at step 3"
    assert shown == ["one", "two", "three", "finished at step 3"]
    status, result = support.run_with(
        ["launch", "--logs=run-1", f"--bucket={tmp_path}", "--json"], {}
    )
    assert (status, result["ending"]) == (0, "finished at step 3")
    status, result = support.run_with(
        ["launch", "--logs=run-2", f"--bucket={tmp_path}", "--json"], {}
    )
    assert status == 2 and "run-1" in result["error"]


def test_missing_credentials_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class DefaultCredentialsError(Exception):
        """As google-auth calls it."""

    def refuse(*_: object) -> list[str]:
        raise DefaultCredentialsError(
            "Your default credentials were not found. To set up Application Default Credentials,"
            " see https://cloud.google.com/docs for more information."
        )

    monkeypatch.setattr(storage, "glob", refuse)
    status, result = support.run_with(["launch", "--logs=x", "--bucket=gs://b", "--json"], {})
    assert status == 2
    assert result["error"] == (
        "no valid credentials: Your default credentials were not found:"
        " run `gcloud auth application-default login`"
    )
