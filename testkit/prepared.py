"""Start processes that run some Python statements before their program."""

import sys


def python(setup):
    """Return the start of a command line. It runs the statements `setup`, and then Python.

    The caller appends the arguments of Python. `preexec_fn` is not used, because its code may
    deadlock: between fork and exec, a lock may belong to a thread of gRPC in the parent process.
    """
    program = f"import os, sys; {setup}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [sys.executable, "-c", program]


def dispositions(default, ignored=()):
    """Return statements for `python` that reset some signals, and ignore others.

    Args:
        default: signals with their default handling, as in a terminal.
        ignored: signals to ignore, as if the parent process ignored them.
    """
    return (
        f"import signal; [signal.signal(n, signal.SIG_DFL) for n in {list(map(int, default))}];"
        f" [signal.signal(n, signal.SIG_IGN) for n in {list(map(int, ignored))}]"
    )
