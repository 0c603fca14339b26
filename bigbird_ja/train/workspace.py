"""MODEL_DIR for the time of a run: made, an earlier run in it moved aside, locked, with scratch
space."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

from bigbird_ja import storage
from bigbird_ja.storage.lease import Lease
from bigbird_ja.storage.scratch import scratch_directory
from bigbird_ja.train import run_directory
from bigbird_ja.train.request import Request

_EARLIER_SCRATCH = re.compile(r"model\.ckpt-|events\.out\.tfevents|plugins$")


def move_aside(request: Request) -> None:
    """`--overwrite`: renames the run that is in MODEL_DIR, with its lock held while it is renamed.

    Raises:
        BadInput: a trainer is at work there, or what is there is no run of ours.
    """
    if not run_directory.check_movable(request.model_dir):
        return
    with held(request):
        moved = run_directory.move_aside(request.model_dir)
    request.surroundings.log(f"{request.model_dir}: the run that was there is now {moved}")


@contextlib.contextmanager
def directory(model_dir: str) -> Iterator[None]:
    """MODEL_DIR; removed again where the run was refused before anything was written."""
    storage.make_directory(model_dir)
    try:
        yield
    finally:
        if not storage.is_remote(model_dir):
            with contextlib.suppress(OSError):
                os.rmdir(model_dir)  # only an empty one goes


@contextlib.contextmanager
def held(request: Request) -> Iterator[tuple[Lease, list[dict[str, Any]]]]:
    """The lock, and what is to be noted in events.jsonl about how it was got."""
    model_dir, around = request.model_dir, request.surroundings
    busy = f"{model_dir}: {{owner}} is training here: stop it first, or use another --model_dir"
    lock = Lease(
        storage.join(model_dir, run_directory.LOCK), busy, around.log, clock=around.monotonic
    )
    found = lock.acquire()
    notes: list[dict[str, Any]] = []
    if found:
        notes = [{"event": "lock_taken_over", "from_pid": found.pid, "from_host": found.host}]
    try:
        yield lock, notes
    finally:
        with contextlib.suppress(Exception):
            lock.release()


@contextlib.contextmanager
def scratch(model_dir: str) -> Iterator[str]:
    """A local directory for this run, empty, gone at the end; a killed run's goes first.

    On the disk of MODEL_DIR, where that is local: checkpoints are then moved, not copied. Call it
    with the lock held.
    """
    if storage.is_remote(model_dir):
        with scratch_directory() as path:
            yield path
        return
    storage.clean_temporary(model_dir)
    _remove_earlier_scratch(os.path.join(model_dir, ".scratch"))
    with scratch_directory(model_dir, ".scratch-", is_ours_alone=True) as path:
        yield path


def _remove_earlier_scratch(path: str) -> None:
    """Removes what a killed run of an earlier version left, if nothing else is in it."""
    with contextlib.suppress(OSError):
        if not os.path.islink(path) and all(map(_EARLIER_SCRATCH.match, os.listdir(path))):
            shutil.rmtree(path, ignore_errors=True)
