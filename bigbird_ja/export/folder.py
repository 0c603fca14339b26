"""Output folders that appear whole or not at all, and say what they were made from."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from bigbird_ja import processes, storage
from bigbird_ja.errors import BadInput

RECORD = "export.json"
_OWNER = "owner.json"  # in a folder that is being made: the process that makes it


def finished(output_dir: str, record: dict[str, Any], overwrite: bool) -> bool:
    """Whether `output_dir` already holds this very export.

    Raises:
        BadInput: it holds something else, and `overwrite` was not given.
    """
    if not storage.exists(output_dir):
        return False
    try:
        there = json.loads(storage.read_text(storage.join(output_dir, RECORD)))
    except (FileNotFoundError, ValueError):
        there = None
    except NotADirectoryError as error:
        raise BadInput(f"--output_dir {output_dir}: a file of that name exists") from error
    if there == record:
        return True
    if there is None and not storage.list_tree(output_dir):
        return False
    if overwrite:
        return False
    what = "something that is no export" if there is None else _difference(there, record)
    raise BadInput(
        f"--output_dir {output_dir} holds {what}: choose another one, or replace it with"
        " --overwrite"
    )


def _difference(there: dict[str, Any], record: dict[str, Any]) -> str:
    keys = sorted(k for k in {*there, *record} if there.get(k) != record.get(k))
    shown = ", ".join(f"{k}: {there.get(k)} -> {record.get(k)}" for k in keys[:4])
    return f"another export ({shown})"


def write(output_dir: str, record: dict[str, Any], fill: Callable[[str], None]) -> None:
    """Makes the folder: `fill` writes into a local one, which then takes its place.

    Args:
        output_dir: on disk or gs://. What is there is replaced: ask `finished` first.
        record: what it is made from, kept in it; on a bucket it is written last.
        fill: given an empty local directory.
    """
    if storage.is_remote(output_dir):
        with tempfile.TemporaryDirectory(prefix="bigbird-ja-") as local:
            fill(local)
            _upload(local, output_dir, record)
        return
    target = os.path.abspath(os.path.expanduser(output_dir))
    parent = os.path.dirname(target)
    os.makedirs(parent, exist_ok=True)
    # Beside the target, so that the renames stay on one file system.
    prefix = f"{storage.TEMPORARY_PREFIX}{os.path.basename(target)}."
    work = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        with open(os.path.join(work, _OWNER), "w", encoding="utf-8") as file:
            file.write(_as_text(processes.this_process().as_dict()))
        made = os.path.join(work, "made")
        os.mkdir(made)
        fill(made)
        with open(os.path.join(made, RECORD), "w", encoding="utf-8") as file:
            file.write(_as_text(record))
        _put_in_place(made, target, os.path.join(work, "replaced"))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _sweep(parent, prefix)


def _put_in_place(made: str, target: str, aside: str) -> None:
    if not os.path.isdir(target):
        os.rename(made, target)
        return
    os.rename(target, aside)
    try:
        os.rename(made, target)
    except OSError:
        os.rename(aside, target)
        raise


def _sweep(parent: str, prefix: str) -> None:
    """Removes what killed exports of this very folder have left."""
    for name in os.listdir(parent):
        if not name.startswith(prefix):
            continue
        try:
            with open(os.path.join(parent, name, _OWNER), encoding="utf-8") as file:
                has_ended = processes.has_ended(json.load(file))
        except (OSError, ValueError):
            continue  # not one of ours, or just being made
        if has_ended:
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)


def _upload(local: str, output_dir: str, record: dict[str, Any]) -> None:
    marker = storage.join(output_dir, RECORD)
    storage.delete(marker)
    old = set(storage.list_tree(output_dir))
    names = storage.list_tree(local)
    pairs = [(os.path.join(local, name), storage.join(output_dir, name)) for name in names]
    storage.upload_many(pairs)
    storage.delete_many(storage.join(output_dir, name) for name in sorted(old - set(names)))
    storage.write_text(marker, _as_text(record))


def _as_text(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"
