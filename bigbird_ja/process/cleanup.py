"""Child processes and temporary files that must not outlive this process.

`with` blocks usually remove children and files. A process that is stopped while its main thread is
in a library that does not return never reaches the end of those blocks. So they are also registered
here, and `clean_up` removes them from any thread.
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
def kill_on_exit(child: subprocess.Popen) -> Iterator[subprocess.Popen]:
    """Kill the child, if it still runs, when the block ends.

    `clean_up` also kills it.
    """
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
    """Register a file or directory with `clean_up` while the block runs.

    At the end of the block only the registration ends.
    """
    path = os.path.abspath(path)
    _paths.add(path)
    try:
        yield
    finally:
        _paths.discard(path)


def clean_up() -> None:
    """Kill the registered children and pool processes, remove the registered paths."""
    for child in list(_children):
        with contextlib.suppress(OSError):
            child.kill()
    pools = sys.modules.get("multiprocessing")  # Importing it takes longer than most commands.
    for worker in pools.active_children() if pools else ():
        with contextlib.suppress(OSError, ValueError):
            worker.kill()
    for child in list(_children):  # A running child would fill the directory again.
        with contextlib.suppress(Exception):
            child.wait(timeout=2)
    for path in sorted(_paths):
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)
