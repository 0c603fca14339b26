"""Child processes for native code: their initialization, and the error for one that has died.

Native code runs in a child if it can't be stopped otherwise (SentencePiece), or if it ends its
process when it meets something that it cannot do (the TPU compiler).
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterable

from bigbird_ja.process import signals
from bigbird_ja.process.classify import classify
from bigbird_ja.process.errors import CommandError, Interrupted, OutOfMemory, StorageError

_PR_SET_PDEATHSIG = 1
_LAST_LINES = 20
_STATED = re.compile("what\\(\\):|Check failed|CHECK|Fatal|Error|error:|F0|F1")


def init_child() -> None:
    """Make this child process ignore Ctrl-C, which the parent handles, and die with the parent.

    It dies with the parent on Linux only.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def error_from_exit(
    returncode: int, stderr_tail: Iterable[str], subject: str, advice: str
) -> CommandError:
    """Return the error for a child that exited without a result.

    Args:
        returncode: exit code of `subprocess.Popen`, negative for a signal.
        stderr_tail: last lines on standard error. C++ aborts for a lack of memory and for a failed
            check alike; these lines tell which.
        subject: subject of the message.
        advice: advice against a lack of memory.
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
    """Return the line in which a library states the error."""
    stated = [line for line in lines if _STATED.search(line)]
    return (stated or lines or ["no message"])[-1][:300]
