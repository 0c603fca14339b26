"""Conversion of exceptions of Python and of libraries to `CommandError`."""

import contextlib
import errno
import os
import re
import signal
from collections.abc import Iterator

from bigbird_ja.errors import (
    STREAMS,
    BadInput,
    CommandError,
    Interrupted,
    OutOfMemory,
    StorageError,
    format_interruption,
)
from bigbird_ja.process.console import escape_text, shorten
from bigbird_ja.process.extras import INSTALL
from bigbird_ja.process.redact import redact

# Beginning of the input pipeline's message if the records of a shard are not those in the manifest.
SHARD_CHANGED = "shard ended early or was changed:"

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Failures of a disk, a network file system or a connection.
_FAILED = {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EREMOTEIO, errno.EUCLEAN}
_FAILED |= {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN}
_LOST = (ConnectionError, TimeoutError, BlockingIOError)
# Names of exceptions, so that their libraries need not be imported.
_NETWORK = ("gaierror", "herror", "SSLError")
_CLIENTS = ("requests.", "urllib3.")
_OF_A_PATH = (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError)
# Exceptions of Python, `storage`, TensorFlow and Google's libraries for missing or denied files.
_REFUSALS = re.compile(
    "PermissionError|FileNotFoundError|Refused|PermissionDeniedError|NotFoundError"
    "|UnauthenticatedError|RefreshError|DefaultCredentialsError"
)


_NO_MEMORY = (
    "std::bad_alloc|[Cc]annot allocate memory|failed to map segment|can't start new thread"
    "|Unable to allocate|MemoryError|RESOURCE_EXHAUSTED|Resource temporarily unavailable"
    "|pthread_create|memory for thread-local data"
    # Message of C++ if a thread cannot be started.
    "|terminate called without an active exception"
)
_CREDENTIALS = ("DefaultCredentialsError", "RefreshError")
# Rules for exceptions of libraries. The first rule that matches is used. A rule consists of class
# names (empty for any class), a pattern for the message, a subclass of `CommandError`, a short
# description, and advice.
_RULES: list[tuple[tuple[str, ...], str, type[CommandError], str, str]] = [
    ((), "No space left|Disk quota exceeded|File too large", StorageError, "disk full",
     "free some space and rerun the same command"),
    (("ResourceExhaustedError",), "", OutOfMemory, "out of memory",
     "use a smaller training.global_batch_size, more training.gradient_accumulation_steps, or"
     " training.gradient_checkpointing"),
    ((), _NO_MEMORY, OutOfMemory, "out of memory", "free some memory, or use a larger machine"),
    (("PermissionDeniedError",), "", BadInput, "permission denied",
     "check the path and your credentials"),
    (("AbortedError", "UnavailableError", "DataLossError", "DeadlineExceededError"), "",
     StorageError, "storage failed", "rerun the same command"),
    # TensorFlow's message for a truncated reply of the bucket.
    (("InternalError",), "File contents are inconsistent", StorageError, "truncated reply",
     "rerun the same command"),
    (_CREDENTIALS, "", BadInput, "no valid credentials",
     "run `gcloud auth application-default login`"),
    (("TransportError",), "", StorageError, "the network failed", "rerun the same command"),
    (("UnicodeEncodeError",), "surrogates not allowed", BadInput,
     "a name or text that is not UTF-8", "rename or convert it"),
]  # fmt: skip


def classify(error: BaseException) -> CommandError | None:
    """Convert an exception to a `CommandError`, or return None if the exception shows a bug."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(format_interruption(str(error)))
    if isinstance(error, MemoryError):
        what = str(error) or "an allocation failed"
        return OutOfMemory(f"out of memory on this machine: {what}")
    if isinstance(error, ModuleNotFoundError) and error.name in INSTALL:
        return BadInput(f"{error.name} is not installed here: {INSTALL[error.name]}")
    # A library's signal handler or option parser raises SystemExit.
    if isinstance(error, SystemExit):
        if error.code == signal.SIGTERM:
            return Interrupted(format_interruption("SIGTERM"))
        return BadInput("a library rejected its options: see the lines above")
    if isinstance(error, OSError):
        return _classify_os_error(error)
    text, name = str(error), type(error).__name__
    if name == "InvalidArgumentError" and SHARD_CHANGED in text:
        what = text[text.index(SHARD_CHANGED) :].splitlines()[0].replace("] [", " ").strip("] ")
        return StorageError(f"{what}: rerun the same command, or see `bigbird-ja check-data`")
    for names, pattern, kind, what, advice in _RULES:
        if (not names or name in names) and re.search(pattern, text):
            line = summarize_error(error)
            # After its first sentence, a message about credentials consists of links and advice.
            if names == _CREDENTIALS:
                line = line.partition(". ")[0]
            return kind(f"{what} ({line.rstrip('.')}): {advice}")
    return None


@contextlib.contextmanager
def convert_refusals() -> Iterator[None]:
    """Context manager: convert errors about missing or denied files to `StorageError`.

    A path that was accessible at the start of the command, and is missing or denied now, is a
    failure of storage and not bad input.

    Raises:
        StorageError: The block raised such an error.
    """
    try:
        yield
    except Exception as error:
        if not _REFUSALS.fullmatch(type(error).__name__):
            raise
        what = f"access failed during the run ({summarize_error(error)})"
        raise StorageError(f"{what}: rerun the same command") from error


def summarize_error(error: BaseException) -> str:
    """Summarize an exception of a library in one line, without credentials.

    Nodes of TensorFlow's graph and bodies of HTTP responses are removed.
    """
    words = []
    for line in str(error).splitlines():
        line = line.strip()
        if line.startswith(("[[", "Detected at node")):
            break
        if line and line != "Graph execution error:":
            words.append(line)
    joined = re.sub(r"\{\{(?:function_)?node [^}]*\}\} ?", "", " ".join(words))
    # In messages of tf.data, the names of operations precede the cause.
    joined = re.sub(r"Error in user-defined function passed to .*?: (Iterator::\S+: )?", "", joined)
    text = re.sub(r" with body '.*?'(?=\s*(?:when |$))", "", joined, flags=re.S)
    return shorten(redact(text), 400) or type(error).__name__


def _classify_os_error(error: OSError) -> CommandError | None:
    number, why = error.errno, error.strerror or "not accessible"
    # `filename` is a string, bytes or a descriptor.
    file = error.filename
    # A BrokenPipeError comes from `print`, since libraries wrap the errors of their connections.
    if isinstance(error, BrokenPipeError):
        return StorageError(f"{file or 'standard output'}: its reader has ended")
    if file in STREAMS:
        return StorageError(f"{file}: {why}")
    name = "" if file is None else os.fsdecode(file) if isinstance(file, bytes) else str(file)
    about = f"{name}: {why}" if name else why
    if number in _FULL:
        return StorageError(f"disk full ({about}): free some space and rerun the same command")
    if number == errno.ENOMEM:
        return OutOfMemory(
            f"out of memory on this machine ({about}): free some memory and rerun the same command"
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return BadInput(f"{about}: raise the limit with `ulimit -n`")
    kind = type(error)
    is_lost = number in _FAILED or isinstance(error, _LOST)
    if is_lost or kind.__name__ in _NETWORK or kind.__module__.startswith(_CLIENTS):
        return StorageError(f"storage failed ({about}): rerun the same command")
    if isinstance(error, FileExistsError) or number == errno.ENOTEMPTY:
        return BadInput(f"{name or error} exists and is of another kind: move it away")
    if isinstance(error, _OF_A_PATH) or (name and number not in (None, errno.EBADF)):
        permissions = " and your permissions" if isinstance(error, PermissionError) else ""
        return BadInput(f"{name or error}: {why}: check the path{permissions}")
    return None


def join_lines(message: str) -> str:
    """Put a message on one line, with control characters escaped."""
    return escape_text(" ".join(message.split()))
