"""Scratch folders that do not outlive their process for long.

A killed process cannot clean up, and what it left may be a copy of a model. So each folder says
whose it is, and whoever makes the next one of the same kind removes those of processes that ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator

from bigbird_ja.process import children, identity

PREFIX = "bigbird-ja-"
_OWNER = "owner.json"  # the process that made the folder
_MOST_BYTES = 4096  # of it


@contextlib.contextmanager
def scratch_directory(
    parent: str | None = None, prefix: str = PREFIX, is_ours_alone: bool = False
) -> Iterator[str]:
    """An empty local folder (0700) for this block; what killed processes left goes first.

    Args:
        parent: where; the system's folder for temporary files by default.
        prefix: of its name; folders of the same prefix are the ones that are swept.
        is_ours_alone: whether nobody else can be at work with this prefix (a lease is held), so
            that what processes of other machines left is swept too.
    """
    _sweep(parent or tempfile.gettempdir(), prefix, is_ours_alone, is_shared=parent is not None)
    outer = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        with children.remove_on_exit(outer):
            with open(os.path.join(outer, _OWNER), "w", encoding="utf-8") as file:
                json.dump(identity.this_process().as_dict(), file)
            inner = os.path.join(outer, "work")
            os.mkdir(inner, 0o700)
            yield inner
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def _sweep(parent: str, prefix: str, is_ours_alone: bool, is_shared: bool) -> None:
    """Removes the scratch folders of this user whose process has ended."""
    with os.scandir(parent) as entries:
        found = [entry for entry in entries if entry.name.startswith(prefix)]
    for entry in found:
        with contextlib.suppress(OSError, ValueError):
            is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if not is_ours or not entry.is_dir(follow_symlinks=False):
                continue
            if is_ours_alone and _is_unsaid(entry.path):
                shutil.rmtree(entry.path, ignore_errors=True)
                continue
            with open(os.path.join(entry.path, _OWNER), encoding="utf-8") as file:
                owner = json.load(file)
            if isinstance(owner, dict) and (
                is_ours_alone
                or identity.has_ended(owner)
                # The system's temporary folder is of this machine alone.
                or (not is_shared and identity.is_of_another_boot(owner))
            ):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_unsaid(path: str) -> bool:
    """Whether a process was killed here between making the folder and saying whose it is."""
    names = os.listdir(path)
    if names != [_OWNER]:
        return not names
    with open(os.path.join(path, _OWNER), encoding="utf-8") as file:
        text = file.read(_MOST_BYTES)
    try:
        json.loads(text)
    except ValueError:
        return len(text) < _MOST_BYTES
    return False
