"""The error for a child process that has ended, by real children."""

import sys

import pytest

from bigbird_ja.process import children
from testkit import command_line

BAD_ALLOC = (
    "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
)


FAILED_CHECK = "[F 2024-01-02 trainer.cc:1] Check failed: size > 0 (0 vs. 0)\n"


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
def test_the_error_for_a_childs_exit(program, status, words):
    done = command_line.run(sys.executable, "-c", f"import os; {program}")
    end = children.error_from_exit(done.status, done.stderr.splitlines(), "the child", "use less")
    assert end.status == status and words in str(end)
    assert "\n" not in str(end)
