"""Registry of child processes and temporary files that must not outlive this process.

Usually, the context managers here remove them on exit. If a process is stopped while its main
thread is in native code, the context managers never exit. Then another thread calls `clean_up`.
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
    """Context manager: kill a child on exit, and register it with `clean_up`."""
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
    """Context manager: register a file or directory with `clean_up`.

    On exit, the caller removes the path. Only its registration ends here.
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
    # `multiprocessing` is not imported here, since the import takes longer than most commands.
    pools = sys.modules.get("multiprocessing")
    for worker in pools.active_children() if pools else ():
        with contextlib.suppress(OSError, ValueError):
            worker.kill()
    # Wait before removing directories, since a running child may still write to them.
    for child in list(_children):
        with contextlib.suppress(Exception):
            child.wait(timeout=2)
    for path in sorted(_paths):
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)
