"""Output folders that appear whole or not at all, with a record of what they were made from.

A finished folder holds `export.json`: what it is made from, and the names of its files. Only files
that are named there are ever replaced or removed. On a bucket, where nothing can be renamed, the
record of an export in progress is `export.unfinished.json`: the same command continues it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode, outputs
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.storage.lease import Lease, held

RECORD = "export.json"
UNFINISHED = "export.unfinished.json"
_LOCK = "export.lock.json"  # on a bucket, while an export is put there
_MARKERS = {RECORD, UNFINISHED, _LOCK}
_FLAG = "--output_dir"


def check(output_dir: str, inputs: Mapping[str, str | None]) -> None:
    """Refuses, before any work, a place that cannot become an export.

    Args:
        output_dir: value of `--output_dir`.
        inputs: flag to folder that is read.

    Raises:
        BadInput: it overlaps with an input, is a link or a file, or holds what no export made.
    """
    outputs.refuse_overlap(inputs, {_FLAG: output_dir})
    outputs.refuse_link(output_dir, _FLAG)
    outputs.check_output_directory(output_dir, _FLAG, True, _is_ours, "export")


def finished(output_dir: str, record: dict[str, Any], overwrite: bool) -> bool:
    """Whether `output_dir` already holds this very export; call `check` first.

    Raises:
        BadInput: it holds another export, and `overwrite` was not given.
    """
    there = _read(output_dir, RECORD)
    if there and there[0] == record and there[1] <= _everything(output_dir):
        storage.delete(storage.join(output_dir, UNFINISHED))
        return True
    there = there or _read(output_dir, UNFINISHED)
    if overwrite or there is None or there[0] == record:
        return False
    raise BadInput(
        f"{_FLAG} {output_dir} holds another export ({_difference(there[0], record)}): choose"
        " another one, or replace it with --overwrite"
    )


def write(
    output_dir: str, record: dict[str, Any], fill: Callable[[str], None], overwrite: bool = False
) -> None:
    """Makes the folder: `fill` writes into a local one, which then takes its place.

    Args:
        output_dir: on disk or gs://. The export that is there is replaced: call `finished` first.
        record: what it is made from, kept in it.
        fill: called with an empty local directory.
        overwrite: whether an export of other settings that appeared meanwhile is replaced.

    Raises:
        BadInput: something that no export made, or an export of other settings, has appeared in
            the folder meanwhile, or another process is exporting there.
    """
    if storage.is_remote(output_dir):
        with scratch_directory() as local:
            fill(local)
            with held(_lease(output_dir)) as lease:
                _upload(local, output_dir, record, overwrite, lease)
        return
    target = os.path.abspath(os.path.expanduser(output_dir))
    parent = os.path.dirname(target)
    os.makedirs(parent, exist_ok=True)
    # Beside the target, so that the renames stay on one file system.
    with scratch_directory(
        parent, f"{storage.TEMPORARY_PREFIX}{os.path.basename(target)}."
    ) as work:
        made = os.path.join(work, "made")
        os.mkdir(made)
        fill(made)
        names = _everything(made)
        with open(os.path.join(made, RECORD), "w", encoding="utf-8") as file:
            file.write(_as_text(record, names))
        check(target, {})  # again: what appeared meanwhile must not be removed with the old export
        if not finished(target, record, overwrite):
            _put_in_place(made, target, os.path.join(work, "replaced"))


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


def _lease(output_dir: str) -> Lease:
    busy = f"{_FLAG} {output_dir}: {{owner}} is exporting there: wait for it to end"
    return Lease(storage.join(output_dir, _LOCK), busy, log)


def _upload(
    local: str, output_dir: str, record: dict[str, Any], overwrite: bool, lease: Lease
) -> None:
    check(output_dir, {})
    if finished(output_dir, record, overwrite):
        return
    old = set(storage.list_tree(output_dir)) - _MARKERS
    names = storage.list_tree(local)
    unfinished = storage.join(output_dir, UNFINISHED)
    storage.write_text(unfinished, _as_text(record, old | set(names)))
    storage.delete(storage.join(output_dir, RECORD))
    pairs = [(os.path.join(local, name), storage.join(output_dir, name)) for name in names]
    storage.upload_many(pairs)
    lease.check()
    storage.delete_many(storage.join(output_dir, name) for name in sorted(old - set(names)))
    storage.write_text(storage.join(output_dir, RECORD), _as_text(record, names))
    storage.delete(unfinished)


def _is_ours(output_dir: str) -> bool:
    """Whether everything in a folder was written by exports.

    Raises:
        BadInput: an export is there, and something else beside it, which the message names.
    """
    records = [record for name in (RECORD, UNFINISHED) if (record := _read(output_dir, name))]
    if not records:
        return _everything(output_dir) == {_LOCK}
    ours = _MARKERS.union(*(files for _, files in records))
    folders = {str(parent) for name in ours for parent in PurePosixPath(name).parents}
    foreign = sorted(_everything(output_dir) - ours - folders)
    if foreign:
        raise BadInput(
            f"{_FLAG} {output_dir} holds {foreign[0]}, which no export made: move it, or choose"
            " another folder"
        )
    return True


def _everything(output_dir: str) -> set[str]:
    """Relative names of all files; on disk also of links, special and unfinished files and empty
    folders, since all of them would go with the folder."""
    if storage.is_remote(output_dir):
        return set(storage.list_tree(output_dir))
    names = set()
    for parent, folders, files in os.walk(output_dir):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        is_empty = not folders and not files and parent != output_dir
        for name in [*files, *links, *([""] if is_empty else [])]:
            names.add(os.path.relpath(os.path.join(parent, name), output_dir))
    return names


def _read(output_dir: str, record_name: str) -> tuple[dict[str, Any], set[str]] | None:
    """What the folder is made from, and its files, by the record in it.

    Returns:
        None where there is no record, or a file of that name that no export wrote.

    Raises:
        BadInput: an export of another format.
    """
    path = storage.join(output_dir, record_name)
    try:
        content = decode.read_json(path, dict[str, Any])
    except (FileNotFoundError, BadInput):
        return None
    if not {"bigbird_ja", "step", "checkpoint"} <= content.keys():
        return None
    decode.check_format(str(content.get("format_version", "")), path, "choose another folder")
    return content, set(map(str, content.pop("files", [])))


def _difference(there: dict[str, Any], record: dict[str, Any]) -> str:
    keys = sorted(k for k in {*there, *record} if there.get(k) != record.get(k))
    return ", ".join(f"{k}: {there.get(k)} -> {record.get(k)}" for k in keys[:4])


def _as_text(record: dict[str, Any], files: Iterable[str]) -> str:
    content = {**record, "files": sorted(files)}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
