"""How a child process ended, told by real children that end in real ways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from bigbird_ja.data.build import Workers
from bigbird_ja.process import children, errors

BAD_ALLOC = (
    "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
)
FAILED_CHECK = "[F 2024-01-02 trainer.cc:1] Check failed: size > 0 (0 vs. 0)\n"


def end_of(program: str) -> errors.CommandError:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    lines = done.stderr.splitlines()
    return children.error_from_exit(done.returncode, lines, "the child", "use less")


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        (f"import os; os.write(2, {BAD_ALLOC.encode()!r}); os.abort()", 71, "use less"),
        ("import os; os.kill(os.getpid(), 9)", 71, "use less"),
        ("bytearray(1 << 60)", 71, "use less"),
        (f"import os; os.write(2, {FAILED_CHECK.encode()!r}); os.abort()", 1, "(SIGABRT): [F"),
        ("import os; os.abort()", 1, "(SIGABRT): no message"),
        ("import os; os.kill(os.getpid(), 11)", 1, "SIGSEGV"),
        ("raise OSError(28, 'No space left on device', '/x')", 74, "No space left"),
        ("import os, signal; signal.signal(25, signal.SIG_DFL); os.kill(os.getpid(), 25)", 74, ""),
        ("import os; os.kill(os.getpid(), 15)", 75, "SIGTERM"),
        ("raise ZeroDivisionError('x')", 1, "(status 1): ZeroDivisionError: x"),
    ],
)
def test_an_abort_for_memory_is_told_from_others(program: str, status: int, said: str) -> None:
    end = end_of(program)
    assert end.status == status and said in str(end)
    assert "\n" not in str(end)


def _start() -> None:
    pass


def _fail_to_start() -> None:
    raise MemoryError


def _act(what: str) -> str:
    if what == "abort for memory":
        os.write(2, BAD_ALLOC.encode())
        os.abort()
    if what == "abort":
        os.write(2, FAILED_CHECK.encode())
        os.abort()
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "warn":
        os.write(2, b"a library's warning\n")
    return what


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("abort for memory", 71, "--num_workers"),
        ("abort", 1, "Check failed"),
        ("kill", 71, "memory"),
    ],
)
def test_a_worker_that_dies(what: str, status: int, said: str) -> None:
    with Workers(2, _start, ()) as workers, pytest.raises(errors.CommandError) as caught:
        list(workers.map(_act, ["", what, ""]))
    assert caught.value.status == status and said in str(caught.value)


def test_a_worker_that_cannot_start() -> None:
    with Workers(2, _fail_to_start, ()) as workers, pytest.raises(errors.CommandError) as caught:
        list(workers.map(_act, ["", ""]))
    assert caught.value.status == 71


def test_what_workers_say_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Workers(2, _start, ()) as workers:
        assert list(workers.map(_act, ["warn", "x"])) == ["warn", "x"]
    assert "a library's warning" in capsys.readouterr().err
