"""Errors that end a command, each with its exit status and `reason`."""

from typing import Any


class CommandError(Exception):
    """Ends a command with `status`, `reason` and one line: what, where, what to do.

    Args:
        message: the line.
        results: further keys of the `--json` line.
    """

    status = 1
    reason = "bug"

    def __init__(self, message: str = "", results: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.results = results or {}


class BadInput(CommandError):
    """Reports what is wrong with flags, config, input, data set, permissions or environment."""

    status, reason = 2, "bad_input"


class Refused(BadInput):
    """Reports a bucket that refuses a request, or missing credentials.

    The input itself may be right, so that finished work is kept.
    """


class Diverged(CommandError):
    """Reports NaN or infinite loss or gradients; the message names the first bad step."""

    status, reason = 70, "diverged"


class OutOfMemory(CommandError):
    """Reports that host or device memory ran out."""

    status, reason = 71, "out_of_memory"


class StorageError(CommandError):
    """Reports a full disk, or a bucket that refuses or fails beyond the retries."""

    status, reason = 74, "io_error"


class Interrupted(CommandError):
    """Reports SIGTERM or Ctrl-C, after saving: running the same command again continues."""

    status, reason = 75, "interrupted"


class Stalled(CommandError):
    """Reports that the watchdog saw no progress."""

    status, reason = 76, "stalled"


_KINDS: list[type[CommandError]] = [CommandError, *CommandError.__subclasses__()]
_ENDS = {kind.reason: kind for kind in _KINDS}
STATUS_OF_REASON: dict[str, int] = {
    "finished": 0,
    **{reason: kind.status for reason, kind in _ENDS.items()},
}


def of_reason(reason: str, message: str) -> CommandError:
    """Returns the error that a `reason` names, as another process reported it."""
    return _ENDS.get(reason, CommandError)(message)


# Errors of the standard streams carry these in place of a file's name (`process.streams`).
STREAMS = ("standard input", "standard output", "standard error")


def interrupted(signal_name: str) -> str:
    """Words the end by a signal."""
    by = f" ({signal_name})" if signal_name else ""
    return f"interrupted{by}: nothing half-written is left; run the same command again"
