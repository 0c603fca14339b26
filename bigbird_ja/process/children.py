"""Ends child processes and removes temporary files with this process.

Native code runs in a child where it cannot be stopped otherwise (SentencePiece), or where it ends
its process when it meets something that it cannot do (the TPU compiler).

`with` blocks remove children and files as a rule. A process that is stopped while its main thread
sits in a library that does not return never reaches the end of those blocks; so they are also
registered here, and `clean_up` removes what is left, from any thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from bigbird_ja.process import signals
from bigbird_ja.process.errors import (
    CommandError,
    Interrupted,
    OutOfMemory,
    StorageError,
    classify,
)

if TYPE_CHECKING:
    import subprocess

_PR_SET_PDEATHSIG = 1
_LAST_LINES = 20
_STATED = re.compile("what\\(\\):|Check failed|CHECK|Fatal|Error|error:|F0|F1")

_paths: set[str] = set()
_children: set[subprocess.Popen] = set()


def be_a_child() -> None:
    """Prepares a child: it ignores Ctrl-C, which the parent answers, and dies with the parent.

    Linux alone ends it with the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def kill_on_exit(child: subprocess.Popen) -> Iterator[subprocess.Popen]:
    """Kills the child, if it still runs, when the block ends; `clean_up` kills it too."""
    _children.add(child)
    try:
        yield child
    finally:
        with contextlib.suppress(OSError):
            child.kill()
        child.wait()
        _children.discard(child)


@contextlib.contextmanager
def remove_on_exit(path: str) -> Iterator[None]:
    """Registers a file or directory with `clean_up` while the block runs.

    The end of the block does not remove it.
    """
    path = os.path.abspath(path)
    _paths.add(path)
    try:
        yield
    finally:
        _paths.discard(path)


def clean_up() -> None:
    """Kills the registered children and pool processes, removes the registered paths."""
    for child in list(_children):
        with contextlib.suppress(OSError):
            child.kill()
    pools = sys.modules.get("multiprocessing")  # importing it costs more than most commands take
    for worker in pools.active_children() if pools else ():
        with contextlib.suppress(OSError, ValueError):
            worker.kill()
    for child in list(_children):  # a child that still writes would fill the directory again
        with contextlib.suppress(Exception):
            child.wait(timeout=2)
    for path in sorted(_paths):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)


def error_from_exit(
    returncode: int, stderr_tail: Iterable[str], subject: str, advice: str
) -> CommandError:
    """Returns the error for a child that ended without an answer.

    Args:
        returncode: as of `subprocess.Popen`: negative for a signal.
        stderr_tail: its last lines on standard error. C++ ends by SIGABRT for want of memory as
            for a failed check; these lines tell which.
        subject: of the message.
        advice: what to do against a lack of memory.
    """
    lines = [line.strip() for line in stderr_tail if line.strip()][-_LAST_LINES:]
    known = classify(RuntimeError("\n".join(lines)))
    if isinstance(known, OutOfMemory) or returncode == -signal.SIGKILL:
        return OutOfMemory(f"{subject} ran out of memory, or was killed: {advice}")
    if isinstance(known, StorageError) or returncode == -signal.SIGXFSZ:
        cause = _cause(lines)
        return StorageError(f"{subject} could not write: {cause}: free some space, run again")
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"status {returncode}"
    if -returncode in signals.SIGNALS:
        return Interrupted(f"{subject} was stopped by {name}: run the same command again")
    return CommandError(f"{subject} crashed ({name}): {_cause(lines)}")


def _cause(lines: list[str]) -> str:
    """Returns the line in which a library states what was wrong."""
    stated = [line for line in lines if _STATED.search(line)]
    return (stated or lines or ["no message"])[-1][:300]
