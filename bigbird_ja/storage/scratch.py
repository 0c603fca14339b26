"""Scratch folders that do not outlive their process for long.

A killed process cannot clean up, and what it left may be a copy of a model. So the name of each
folder records its owner, and whoever makes the next one of the same kind removes those of processes
that have ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from bigbird_ja.process import children, identity

PREFIX = "bigbird-ja-"


@contextlib.contextmanager
def scratch_directory(
    parent: str | None = None, prefix: str = PREFIX, is_ours_alone: bool = False
) -> Iterator[str]:
    """An empty local folder (0700) for this block; what killed processes left is removed first.

    Args:
        parent: where; the system's folder for temporary files by default.
        prefix: of its name; folders of the same prefix are removed if their owner has ended.
        is_ours_alone: whether nobody else can be at work with this prefix (a lease is held), so
            that what processes of other machines left is removed too.
    """
    is_shared = parent is not None  # else it is of this machine alone
    parent = parent or tempfile.gettempdir()
    for name in os.listdir(parent):
        owner = identity.from_tag(name.removeprefix(prefix).rpartition("-")[0])
        if not name.startswith(prefix) or owner is None:
            continue
        is_old = owner.is_of_another_boot and not is_shared
        is_left = is_ours_alone or is_old or owner.has_ended
        if is_left and _is_mine(os.path.join(parent, name)):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    path = tempfile.mkdtemp(prefix=f"{prefix}{identity.this_process().tag}-", dir=parent)
    try:
        with children.remove_on_exit(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _is_mine(path: str) -> bool:
    """Whether it is a folder of this user, not a link to one."""
    with contextlib.suppress(OSError):
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        return is_folder and os.stat(path).st_uid == os.getuid()
    return False
