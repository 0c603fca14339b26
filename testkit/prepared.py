"""Processes that run statements before their command begins."""

import sys


def python(setup):
    """Return the words that start a Python which first runs the statements of `setup`.

    Not by `preexec_fn`: that runs between fork and exec, where gRPC's threads, which are not in the
    child, may hold a lock or have handlers of forks that abort.
    """
    program = f"import os, sys; {setup}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [sys.executable, "-c", program]


def dispositions(default, ignored=()):
    """Return a setup with a terminal's signal handling, and the signals that a parent ignores."""
    return (
        f"import signal; [signal.signal(n, signal.SIG_DFL) for n in {list(map(int, default))}];"
        f" [signal.signal(n, signal.SIG_IGN) for n in {list(map(int, ignored))}]"
    )
