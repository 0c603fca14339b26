"""A parent that says how the command ended, where native code may end it without a word.

Under `ulimit -v`, TensorFlow, LLVM and the C library abort or exit when a thread or a page is
refused: no exception reaches Python. So where such a limit is set, the command runs in a child, and
the parent, which needs next to no memory, turns its end into a line and a status.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import resource

from bigbird_ja.process import children, signals
from bigbird_ja.process.errors import CommandError, OutOfMemory

_LIMITS = {resource.RLIMIT_AS: "ulimit -v", resource.RLIMIT_DATA: "ulimit -d"}
# A thread's first allocation asks for an arena of this size.
_NEAR_BYTES = 128 << 20
_ENDED_BY_LIBC = 127  # "cannot allocate memory for thread-local data: ABORT"
_FAILED_CHECK = re.compile(r"Check failed|CHECK failed|Assertion")


def limits() -> list[str]:
    """The limits of memory that are set for this process, in words."""
    found = []
    for kind, name in _LIMITS.items():
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            found.append(f"{soft >> 20:,} MiB by `{name}`")
    return found


def is_near_limit() -> bool:
    """Whether the memory that is limited has come to its end, or did at some time: what a library
    makes of a refused page may be any exception."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        peak = next((int(line.split()[1]) << 10 for line in file if line.startswith("VmPeak")), 0)
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        return soft != resource.RLIM_INFINITY and soft - peak < _NEAR_BYTES
    return False


def watch(limited: list[str]) -> tuple[int, CommandError | None] | None:
    """Forks. The child, which goes on with the command, gets None.

    Call it while the process has one thread.

    Args:
        limited: as of `limits`.

    Returns:
        In the parent, once the child has ended: its status, and what that stands for where the
        child could not say so itself.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.dup2(writer, 2)
        os.close(writer)
        children.die_with_parent()
        return None
    os.close(writer)
    signals.set_handlers(lambda number, frame: _pass_on(child, number))
    lines = _follow(reader).decode(errors="replace").splitlines()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status >= 0 and status != _ENDED_BY_LIBC:
        return status, None
    end = children.end_of(status, lines, "a library", "")
    is_check = any(_FAILED_CHECK.search(line) for line in lines)
    if isinstance(end, OutOfMemory) or (end.reason == "bug" and not is_check):
        end = OutOfMemory(f"out of memory, which is limited to {', '.join(limited)}: raise that")
    return end.status, end


def _follow(reader: int) -> bytes:
    """Passes the child's standard error on, until it ends; returns the last of it."""
    last: collections.deque[bytes] = collections.deque(maxlen=16)
    with contextlib.suppress(OSError):  # nobody reads: the child will notice
        while data := os.read(reader, 1 << 14):
            last.append(data)
            while data:
                data = data[os.write(2, data) :]
    os.close(reader)
    return b"".join(last)


def _pass_on(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)
