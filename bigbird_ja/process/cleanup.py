"""Registry of child processes and temporary files that must not outlive this process.

Usually, the function that creates a child kills it, and the function that creates a file removes
it. But if the process must end while its main thread is in native code, these functions do not
continue. Another thread then calls `clean_up`.
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
    """Context manager: register a child process for `clean_up`, and kill it on exit."""
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
    """Context manager: register a file or directory, so that `clean_up` removes it.

    On exit, only the registration ends. The caller removes the file or directory.
    """
    path = os.path.abspath(path)
    _paths.add(path)
    try:
        yield
    finally:
        _paths.discard(path)


def clean_up() -> None:
    """Kill the registered children and all pool processes, and remove the registered paths."""
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
