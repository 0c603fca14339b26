"""Child processes: results in order, unexpected exits, and signals."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from bigbird_ja import errors
from bigbird_ja.process import classify, workers
from bigbird_ja.process.workers import run_tasks
from testkit import ROOT, command_line

FAILED_CHECK = "[F 2024-01-02 trainer.cc:1] Check failed: size > 0 (0 vs. 0)\n"


def _start():
    pass


def _fail_to_start():
    raise MemoryError


def _act(what):
    if what == "abort":
        os.write(2, FAILED_CHECK.encode())
        os.abort()
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "warn":
        os.write(2, b"a library's warning\n")
    return what


@pytest.mark.parametrize(
    ("start", "what", "status", "words"),
    [
        (_start, "abort", 1, "(SIGABRT): its output is above"),
        (_start, "kill", 71, "`num_workers`"),
        (_fail_to_start, "", 71, ""),
    ],
)
def test_the_death_of_a_worker_is_reported(start, what, status, words):
    with pytest.raises((errors.CommandError, MemoryError)) as caught:
        list(run_tasks(_act, ["", what, ""], 2, start))
    error = classify.classify(caught.value)
    assert error.status == status and words in str(error)


def test_output_of_workers_is_shown(capfd):
    tasks = ["warn", *"abcdefgh"]  # more tasks than the queue contains at a time
    assert list(run_tasks(_act, tasks, 2, _start)) == tasks
    assert "a library's warning" in capfd.readouterr().err


def _masked(task):
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_workers_block_sigint_and_sighup():
    assert list(run_tasks(_masked, [0], 2, _start)) == [{signal.SIGINT, signal.SIGHUP}]


_WORKING = """
import time
from bigbird_ja.process.workers import run_tasks

def start():
    pass

def work(number):
    time.sleep(0.1 * number)  # the first result tells that the workers are there
    return number

if __name__ == "__main__":
    for number in run_tasks(work, range(10_000), 2, start):
        print(number, flush=True)
"""


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    (tmp_path / "working.py").write_text(_WORKING)
    command = [sys.executable, str(tmp_path / "working.py")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None and process.stdout.readline()
    workers = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert len(workers) >= 2 and not alive


BAD_ALLOC = (
    "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
)


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        (f"os.write(2, {BAD_ALLOC.encode()!r}); os.abort()", 71, "use less"),
        ("os.kill(os.getpid(), 9)", 71, "use less"),
        ("bytearray(1 << 60)", 71, "use less"),
        (f"os.write(2, {FAILED_CHECK.encode()!r}); os.abort()", 1, "(SIGABRT): [F"),
        ("os.abort()", 1, "(SIGABRT): no message"),
        ("raise OSError(28, 'No space left on device', '/x')", 74, "No space left"),
        ("import signal; signal.signal(25, signal.SIG_DFL); os.kill(os.getpid(), 25)", 74, ""),
        ("os.kill(os.getpid(), 15)", 75, "SIGTERM"),
        ("raise ZeroDivisionError('x')", 1, "(status 1): ZeroDivisionError: x"),
    ],
)
def test_the_exit_of_a_child_is_an_error_with_its_cause(program, status, words):
    done = command_line.run(sys.executable, "-c", f"import os; {program}")
    end = workers.make_exit_error(done.status, done.stderr.splitlines(), "the child", "use less")
    assert end.status == status and words in str(end)
    assert "\n" not in str(end)
