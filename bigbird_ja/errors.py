"""Errors that end a command, with their exit statuses and `reason`s.

The package's functions raise these errors. The command line prints the message as one line. The
columns are class (subclasses are indented), exit status, `reason`, and cause.

    CommandError       1  bug            any other failure
      BadInput         2  bad_input      invalid input; also a ValueError
        Refused        2  bad_input      a bucket denies access, or credentials are missing
      Diverged        70  diverged       NaN or infinite loss or gradients
      OutOfMemory     71  out_of_memory  host or device memory
      StorageError    74  io_error       a full disk, a failing bucket
        LeaseLost     74  io_error       another process has taken the folder over
      Interrupted     75  interrupted    a signal or a time limit: rerun the same command
      Stalled         76  stalled        no progress before the watchdog's timeout

The command line converts exceptions of Python and of libraries to these (`process.classify`).
"""

import os
from typing import Any


class CommandError(Exception):
    """Base class of the errors of this package.

    Args:
        message: one line that states the failure, the place and the remedy.
        results: results from before the failure, as additional keys of the `--json` line.

    Attributes:
        status: exit status of a command that ends with this error.
        reason: name of the error in `--json` results and logs.
        results: results from before the failure.
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
    """Denied access to a bucket, or missing credentials.

    The input itself may be valid, so finished work is kept.
    """


class Diverged(CommandError):
    """NaN or infinite loss or gradients, with the first bad step in the message."""

    status, reason = 70, "diverged"


class OutOfMemory(CommandError):
    """Insufficient host or device memory."""

    status, reason = 71, "out_of_memory"


class StorageError(CommandError):
    """Full disk, or a bucket that still fails after the retries."""

    status, reason = 74, "io_error"


class Interrupted(CommandError):
    """Interruption by a signal or a time limit. Rerunning the same command continues the work."""

    status, reason = 75, "interrupted"


class Stalled(CommandError):
    """No progress before the watchdog's timeout."""

    status, reason = 76, "stalled"


_KINDS: list[type[CommandError]] = [CommandError, *CommandError.__subclasses__()]
_BY_REASON = {kind.reason: kind for kind in _KINDS}
STATUS_OF_REASON: dict[str, int] = {
    "finished": 0,
    **{reason: kind.status for reason, kind in _BY_REASON.items()},
}


def make_error(reason: str, message: str) -> CommandError:
    """Return an error of the class with this `reason`, which another process reported.

    For an unknown `reason`, return a `CommandError`.
    """
    return _BY_REASON.get(reason, CommandError)(message)


# Names of the standard streams in errors, in place of a path (`process.streams`).
STREAMS = ("standard input", "standard output", "standard error")


def format_interruption(signal_name: str) -> str:
    """Format the message of a command that was ended by a signal."""
    by = f" ({signal_name})" if signal_name else ""
    return f"interrupted{by}: no file is half-written, so rerun the same command"


def check_is_list(name: str, values: object) -> None:
    """Check that a parameter is not a string, which would be read as a list of its characters.

    Raises:
        BadInput: The parameter is a string or a path.
    """
    if isinstance(values, str | bytes | os.PathLike):
        raise BadInput(f"`{name}` must be a list: write [{values!r}]")
