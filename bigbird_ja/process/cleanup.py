"""What a process must not leave behind: temporary files and directories, and child processes.

`with` blocks remove them as a rule. A process that is stopped while its main thread sits in a
library that does not return never gets to the end of those blocks; so each such thing is also
registered here, and `run` removes what is left, from any thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

_paths: set[str] = set()
_children: set[subprocess.Popen] = set()


@contextlib.contextmanager
def removed(path: str) -> Iterator[None]:
    """While the block runs, `run` removes this file or directory; the block's end does not."""
    path = os.path.abspath(path)
    _paths.add(path)
    try:
        yield
    finally:
        _paths.discard(path)


@contextlib.contextmanager
def ended(child: subprocess.Popen) -> Iterator[subprocess.Popen]:
    """A child process that has ended when the block has, killed if need be; `run` kills it too."""
    _children.add(child)
    try:
        yield child
    finally:
        with contextlib.suppress(OSError):
            child.kill()
        child.wait()
        _children.discard(child)


def run() -> None:
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
