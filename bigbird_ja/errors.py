"""The ways a command can end, each with the exit status and `reason` that scripts rely on."""

from __future__ import annotations

import errno
import re

from bigbird_ja.redaction import redact


class CommandError(Exception):
    """Ends a command with `status`, `reason` and one line: what, where, what to do."""

    status = 1
    reason = "bug"


class BadInput(CommandError):
    """The user's flags, config, input, data set, permissions or environment."""

    status, reason = 2, "bad_input"


class Diverged(CommandError):
    """NaN or infinite loss or gradients; the message names the first bad step."""

    status, reason = 70, "diverged"


class OutOfMemory(CommandError):
    """Host or device memory."""

    status, reason = 71, "out_of_memory"


class StorageError(CommandError):
    """Disk full, or a bucket refusing or failing beyond the retries."""

    status, reason = 74, "io_error"


class Interrupted(CommandError):
    """SIGTERM or Ctrl-C, with the work saved: running the same command again continues."""

    status, reason = 75, "interrupted"


class Stalled(CommandError):
    """The watchdog saw no progress."""

    status, reason = 76, "stalled"


STATUS_OF_REASON: dict[str, int] = {
    "finished": 0,
    **{
        kind.reason: kind.status
        for kind in (
            CommandError,
            BadInput,
            Diverged,
            OutOfMemory,
            StorageError,
            Interrupted,
            Stalled,
        )
    },
}

# What the input pipeline says where a shard does not hold the records that the manifest counts.
SHARD_CHANGED = "shard ended early or was changed:"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def classify(error: BaseException) -> CommandError | None:
    """The `CommandError` that an exception of a library stands for, or None where it is a bug.

    TensorFlow's exceptions are recognised by name, so that nothing imports TensorFlow to ask.
    """
    if isinstance(error, CommandError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted: run the same command again to continue")
    if isinstance(error, MemoryError):
        return OutOfMemory(f"out of memory on this machine: {error or 'allocation failed'}")
    if isinstance(error, OSError):
        return _classify_os_error(error)
    text, name, first_line = str(error), type(error).__name__, telling_line(error)
    if name == "ResourceExhaustedError":
        if "No space left" in text or "Disk quota exceeded" in text or "File too large" in text:
            return StorageError(f"disk full: {first_line}: free some space and run again")
        return OutOfMemory(
            f"out of memory: {first_line}: use a smaller training.global_batch_size, more"
            " training.gradient_accumulation_steps, or training.gradient_checkpointing"
        )
    if name == "PermissionDeniedError":
        return BadInput(f"permission denied: {first_line}: check the path and your credentials")
    if name in ("AbortedError", "UnavailableError", "DataLossError", "DeadlineExceededError"):
        return StorageError(f"storage failed: {first_line}: run the same command again")
    if name == "InternalError" and "File contents are inconsistent" in text:
        # TensorFlow's words for a reply of the bucket that is complete but too short.
        return StorageError(f"short reply: {first_line}: run the same command again")
    if name == "InvalidArgumentError" and SHARD_CHANGED in text:
        what = text[text.index(SHARD_CHANGED) :].splitlines()[0].replace("] [", " ").strip("] ")
        return StorageError(f"{what}: run the same command again, or see `bigbird-ja check-data`")
    return None


def telling_line(error: BaseException) -> str:
    """One line from an exception of TensorFlow: the words before the graph's nodes, without the
    body of an HTTP answer, credentials removed."""
    words = []
    for line in str(error).splitlines():
        line = line.strip()
        if line.startswith(("[[", "Detected at node")):
            break
        if line and line != "Graph execution error:":
            words.append(line)
    text = re.sub(r" with body '.*?'(?=\s*(?:when |$))", "", " ".join(words), flags=re.S)
    return redact(text)[:400] or type(error).__name__


def _classify_os_error(error: OSError) -> CommandError | None:
    where = error.filename or ""
    if error.errno in _FULL:
        return StorageError(f"disk full: {where}: free some space and run again")
    if error.errno == errno.EIO:
        return StorageError(f"the disk failed: {where}: {error.strerror}")
    if isinstance(error, FileExistsError):
        return BadInput(f"{where or error}: something else of that name is in the way: move it")
    if isinstance(
        error, (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError)
    ) or (error.errno == errno.EROFS):
        what = "path and your permissions" if isinstance(error, PermissionError) else "path"
        why = error.strerror or "not accessible"
        return BadInput(f"{where or error}: {why}: check the {what}")
    return None
