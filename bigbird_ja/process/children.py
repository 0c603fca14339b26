"""Child processes and temporary files: none outlives this process.

Native code runs in a child where it cannot be stopped otherwise (SentencePiece), or where it ends
its process when it meets something that it cannot do (the TPU compiler).

`with` blocks remove children and files as a rule. A process that is stopped while its main thread
sits in a library that does not return never reaches the end of those blocks; so they are also
registered here, and `clean_up` removes what is left, from any thread.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import resource
import shutil
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING

from bigbird_ja.process import signals
from bigbird_ja.process.errors import (
    BadInput,
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
    """First call in a child: it ignores Ctrl-C, which the parent answers, and dies with it, where
    Linux offers that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def check_environment(environ: MutableMapping[str, str]) -> None:
    """Refuses variables with which a library would end this process without a word that helps, and
    takes out those that must not matter. Call it before anything of XLA is imported.

    Raises:
        BadInput: naming the variable and what to do.
    """
    environ["MPLBACKEND"] = "agg"  # pictures are files
    if environ.pop("PYTHONWARNINGS", ""):  # as errors, libraries' own warnings end them
        warnings.simplefilter("default")
    for name in ("JAX_DISABLE_JIT", "TF_XLA_FLAGS"):
        if environ.get(name):
            raise BadInput(f"{name} is set: every step is compiled, by XLA: unset it")
    if not environ.get("XLA_FLAGS") or importlib.util.find_spec("jaxlib") is None:
        return
    sys.stdout.flush()
    child = os.fork()
    if child == 0:  # XLA ends its process at a flag that it does not know
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with contextlib.suppress(BaseException):
            from jaxlib import xla_client

            _ = xla_client.CompileOptions().executable_build_options.debug_options
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise BadInput("XLA_FLAGS: XLA does not take these flags: correct or unset them")


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
    """`clean_up` removes this file or directory if it comes while the block runs; the end of the
    block does not."""
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
    """The error for a child that ended without an answer.

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
    """The line in which a library states what was wrong."""
    stated = [line for line in lines if _STATED.search(line)]
    return (stated or lines or ["no message"])[-1][:300]


# Under `ulimit -v`, TensorFlow, LLVM and the C library abort or exit when a thread or a page is
# refused: no exception reaches Python. So where such a limit is set, the command runs in a child,
# and the parent, which needs next to no memory, turns its end into a line and a status.

_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_DATA)  # `ulimit -v`, `ulimit -d`
# A thread's first allocation asks for an arena of this size.
_NEAR_BYTES = 128 << 20
_ENDED_BY_LIBC = 127  # "cannot allocate memory for thread-local data: ABORT"


def is_memory_limited() -> bool:
    """Whether this process has a limit of memory that its user has set."""
    return any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in _LIMITS)


def is_near_memory_limit() -> bool:
    """Whether limited memory is used up, or was at some time: a library may turn a refused page
    into any exception."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        peak = next((int(line.split()[1]) << 10 for line in file if line.startswith("VmPeak")), 0)
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        return soft != resource.RLIM_INFINITY and soft - peak < _NEAR_BYTES
    return False


def fork_command() -> tuple[int, CommandError | None] | None:
    """Forks while the process has one thread. The child, which runs the command, gets None.

    Returns:
        In the parent, once the child has ended: its status, and the error where the child could
        not report one.
    """
    child = os.fork()
    if child == 0:
        be_a_child()
        return None
    signals.set_handlers(lambda number, frame: _forward(child, number))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status >= 0 and status != _ENDED_BY_LIBC:
        return status, None
    words = "a library ended the command, as they do without memory, which is limited here: raise"
    return OutOfMemory.status, OutOfMemory(f"{words} `ulimit -v`")


def _forward(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)
