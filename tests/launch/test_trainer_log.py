"""The trainer's log is shown without gaps, although a poll reads only the end of the log."""

import pytest

from bigbird_ja import storage
from bigbird_ja.launch.files import RunFiles
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.state import Phase, RunState
from bigbird_ja.launch.trainer_log import LogsResult, find_new_lines, logs
from tests.launch import support

LINES = [f"step {n:,} of 9,999   loss {1 / n:.4f}" for n in range(1, 2_000)]


@pytest.mark.parametrize("step", [3, 700])
def test_every_line_of_the_log_comes_once_and_in_order(step):
    seen, results, log = "", [], ""
    for start in range(0, len(LINES), step):
        log += "".join(f"{line}\n" for line in LINES[start : start + step])
        half = log[: -len(LINES[-1]) // 2]  # A copy of the log may end within a line.
        seen, lines = find_new_lines(seen, half[-40_000:])
        results += lines
    seen, lines = find_new_lines(seen, log[-40_000:])
    assert results + lines == LINES
    assert find_new_lines(seen, log[-40_000:]) == (seen, [])
    assert find_new_lines(seen, "of another machine\n")[1] == ["of another machine"]


def test_following_a_log_ends_with_the_run(tmp_path):
    run = LaunchedRun(str(tmp_path), "run-1")
    files, shown = RunFiles(run), []
    files.prepare()
    files.save_run()
    storage.write_text(run.supervisor("training.log"), "one\n")
    turns = iter(["one\ntwo\n", "one\ntwo\nthree\n"])

    def sleep(seconds):
        storage.write_text(run.supervisor("training.log"), next(turns))
        if len(shown) == 2:
            files.save_state(RunState(Phase.ENDED, ending_message="finished at step 3"))

    result = logs(name="run-1", bucket=str(tmp_path), show=shown.append, sleep=sleep)
    assert result == LogsResult("run-1", "finished at step 3")
    assert shown == ["one", "two", "three", "finished at step 3"]
    status, result = support.run(["logs", "run-1", f"--bucket={tmp_path}"])
    assert (status, result["ending"]) == (0, "finished at step 3")
    status, result = support.run(["logs", "run-2", f"--bucket={tmp_path}"])
    assert status == 2 and "run-1" in result["error"]
