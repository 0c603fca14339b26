"""Errors that end a command, each with its exit status and `reason`.

Functions of this package raise them in Python, too; a command prints the message as one line.

    CommandError       1  bug            any other failure
      BadInput         2  bad_input      a mistake in the input; also a ValueError
        Refused        2  bad_input      a bucket refuses, or credentials are missing
      Diverged        70  diverged       NaN or infinite loss or gradients
      OutOfMemory     71  out_of_memory  host or device memory
      StorageError    74  io_error       a full disk, a failing bucket
        LeaseLost     74  io_error       another process has taken the folder over
      Interrupted     75  interrupted    a signal or a time limit: rerun the command to continue
      Stalled         76  stalled        the watchdog saw no progress

The command line maps exceptions of Python and of libraries to these (`process.classify`).
"""

import os
from typing import Any


class CommandError(Exception):
    """Base class of the errors of this package.

    Args:
        message: what happened, where, and what to do.
        results: results so far: additional keys of the `--json` line.

    Attributes:
        status: exit status of a command that ends with this error.
        reason: name of the error in `--json` results and logs.
        results: results so far.
    """

    status = 1
    reason = "bug"

    def __init__(self, message: str = "", results: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.results = results or {}


class BadInput(CommandError, ValueError):
    """Mistake in parameters, config, input, data set, permissions or environment."""

    status, reason = 2, "bad_input"


class Refused(BadInput):
    """Request that a bucket refuses, or missing credentials.

    The input itself may be right, so finished work is kept.
    """


class Diverged(CommandError):
    """NaN or infinite loss or gradients, with the first bad step in the message."""

    status, reason = 70, "diverged"


class OutOfMemory(CommandError):
    """Lack of host or device memory."""

    status, reason = 71, "out_of_memory"


class StorageError(CommandError):
    """Full disk, or a bucket that refuses or fails beyond the retries."""

    status, reason = 74, "io_error"


class Interrupted(CommandError):
    """SIGTERM or Ctrl-C, after saving, so that rerunning the same command continues."""

    status, reason = 75, "interrupted"


class Stalled(CommandError):
    """No progress, as seen by the watchdog."""

    status, reason = 76, "stalled"


_KINDS: list[type[CommandError]] = [CommandError, *CommandError.__subclasses__()]
_BY_REASON = {kind.reason: kind for kind in _KINDS}
STATUS_OF_REASON: dict[str, int] = {
    "finished": 0,
    **{reason: kind.status for reason, kind in _BY_REASON.items()},
}


def of_reason(reason: str, message: str) -> CommandError:
    """Return the error for a `reason` that another process reported."""
    return _BY_REASON.get(reason, CommandError)(message)


# Errors of the standard streams carry these in place of a file's name (`process.streams`).
STREAMS = ("standard input", "standard output", "standard error")


def interrupted(signal_name: str) -> str:
    """Format the message for a command that a signal ended."""
    by = f" ({signal_name})" if signal_name else ""
    return f"interrupted{by}: nothing half-written is left, so rerun the same command"


def check_is_list(name: str, values: object) -> None:
    """Refuse one text in place of a list, which would be read as a list of its characters.

    Raises:
        BadInput: The parameter is one text or path.
    """
    if isinstance(values, str | bytes | os.PathLike):
        raise BadInput(f"`{name}` must be a list: write [{values!r}]")
