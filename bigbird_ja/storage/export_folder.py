"""Folder of an export, with a record of its inputs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.process.classify import mid_run
from bigbird_ja.process.console import log
from bigbird_ja.storage import decode, outputs
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.storage.lease import exclusive
from bigbird_ja.storage.ownership import Owned

# Record of the export's inputs. It is written last: a folder without it is unfinished, and
# rerunning the same command completes it.
RECORD = "export.json"
FLAG = "`output_dir`"
_KIND = "export"


def check(output_dir: str, inputs: Mapping[str, str | None]) -> None:
    """Refuse, before any work, a folder that cannot become an export.

    Args:
        output_dir: path of the folder.
        inputs: path by parameter of folders and files that are read.

    Raises:
        BadInput: It overlaps with an input, is a file, or contains what no export made.
    """
    outputs.refuse_overlap(inputs, output_dir, FLAG)
    outputs.check_folder(output_dir, FLAG, _KIND, "choose another folder")


def finished(output_dir: str, record: dict[str, Any], overwrite: bool) -> bool:
    """Return whether `output_dir` already contains this export.

    Raises:
        BadInput: It contains another export, and `overwrite` is false.
    """
    owned = Owned.load(output_dir)
    path = storage.join(output_dir, RECORD)
    if owned is None or RECORD not in owned.files or not storage.exists(path):
        return False
    recorded = decode.read_json(path, dict[str, Any])
    if recorded == record:
        return set(owned.files) <= set(storage.list_tree(output_dir))
    if overwrite:
        return False
    keys = sorted(k for k in {*recorded, *record} if recorded.get(k) != record.get(k))
    difference = ", ".join(f"{k}: {recorded.get(k)} -> {record.get(k)}" for k in keys[:4])
    raise BadInput(
        f"{FLAG} {output_dir} contains another export ({difference}): choose another one, or"
        " replace it by `overwrite`"
    )


def write(
    output_dir: str, record: dict[str, Any], fill: Callable[[str], None], overwrite: bool = False
) -> None:
    """Write an export by `fill` into a local folder, then move its files into place.

    The folder's lease is held meanwhile.

    Args:
        output_dir: folder, on disk or gs://.
        record: inputs of the export, written into it.
        fill: callback that gets an empty local directory.
        overwrite: whether another export is moved aside.

    Raises:
        BadInput: Another process writes there, another export has been made there, or a file that
            no export made has one of the names.
    """
    is_remote = storage.is_remote(output_dir)
    if not is_remote:
        output_dir = os.path.abspath(os.path.expanduser(output_dir))
    parent = storage.directory_of(output_dir)
    scratch = None if is_remote else parent  # Files are renamed within one file system.
    with outputs.new_folder(output_dir):
        owned = Owned.create(output_dir, _KIND)
        prefix = f"{storage.TEMPORARY_PREFIX}{owned.place_id}."
        with exclusive(output_dir), scratch_directory(scratch, prefix) as local:
            if finished(output_dir, record, overwrite):  # Another process may have finished it.
                return
            fill(local)
            with mid_run():
                _put_in_place(local, owned, record)


def _put_in_place(local: str, owned: Owned, record: dict[str, Any]) -> None:
    made = {name: os.path.join(local, name) for name in storage.list_tree(local)}
    if RECORD not in owned.files:  # The others are of a killed command.
        owned.remove(owned.files)
    if moved := owned.set_aside([RECORD, *sorted(set(owned.files) - {RECORD})]):
        log(f"{owned.path}: the export that was there is now {moved}")
    owned.note(dict.fromkeys(made))
    storage.put_all(made, owned.path)
    owned.write(RECORD, (json.dumps(record, ensure_ascii=False, indent=1) + "\n").encode())
