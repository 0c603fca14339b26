"""Child processes: they end with their parent, and how one ended is told in a line.

Native code runs in a child where it cannot be stopped otherwise (SentencePiece), or where it ends
its process when it meets something that it cannot do (the TPU compiler).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable

from bigbird_ja.process.errors import CommandError, Interrupted, OutOfMemory, StorageError, classify

_PR_SET_PDEATHSIG = 1
_LAST_LINES = 20


def be_a_child() -> None:
    """In the child, first: Ctrl-C is the parent's, which stops this process; a parent that is
    killed leaves nothing behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()


def die_with_parent() -> None:
    """In the child: SIGKILL when the parent ends, where Linux offers that."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_of(status: int, words: Iterable[str], who: str, to_do: str) -> CommandError:
    """What the end of a child stands for that gave no answer.

    Args:
        status: as of `subprocess.Popen`: negative for a signal.
        words: its last lines on standard error. They tell why a library aborted: C++ ends by
            SIGABRT for want of memory as for a failed check.
        who: subject of the message.
        to_do: against a lack of memory.
    """
    lines = [line.strip() for line in words if line.strip()][-_LAST_LINES:]
    known = classify(RuntimeError("\n".join(lines)))
    if isinstance(known, OutOfMemory) or status == -signal.SIGKILL:
        return OutOfMemory(f"{who} ran out of memory, or was killed: {to_do}")
    if isinstance(known, StorageError) or status == -signal.SIGXFSZ:
        return StorageError(f"{who} could not write: {_telling(lines)}: free some space, run again")
    if -status in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        name = signal.Signals(-status).name
        return Interrupted(f"{who} was stopped by {name}: run the same command again")
    how = f"status {status}" if status >= 0 else _signal_name(-status)
    return CommandError(f"{who} crashed ({how}): {_telling(lines)}")


def _telling(lines: list[str]) -> str:
    """The line in which a library says what was wrong."""
    marks = ("what():", "Check failed", "CHECK", "Fatal", "Error", "error:", "F0", "F1")
    for mark in marks:
        for line in reversed(lines):
            if mark in line:
                return line[:300]
    return lines[-1][:300] if lines else "no message"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
