"""Makes output folders of exports in a scratch folder, then puts them in place file by file.

The last file is `export.json`, the record of what the export was made from: a folder without it is
unfinished, and the same command completes it. Only files that exports wrote, and that are as they
were written, are replaced or removed; where one was changed since, replacing is refused.
"""

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput, mid_run
from bigbird_ja.storage import decode, outputs
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.storage.lease import Lease, held
from bigbird_ja.storage.ownership import Made, Owned

RECORD = "export.json"
_LOCK = "export.lock.json"  # while an export is put there
_FLAG, _KIND = "--output_dir", "export"


def check(output_dir: str, inputs: Mapping[str, str | None]) -> Owned | None:
    """Refuse, before any work, a place that cannot become an export.

    Args:
        output_dir: value of `--output_dir`.
        inputs: flag to folder that is read.

    Returns:
        The folder where it holds an export, finished or not.

    Raises:
        BadInput: it overlaps with an input, is a file, or holds what no export made.
    """
    outputs.refuse_overlap(inputs, {_FLAG: output_dir})
    outputs.check_folder_place(output_dir, _FLAG)
    return outputs.check_folder(output_dir, _FLAG, _KIND, "choose another folder")


def finished(output_dir: str, record: dict[str, Any], overwrite: bool) -> bool:
    """Return whether `output_dir` already holds this very export; call `check` first.

    Files of it that were changed since are logged and left alone.

    Raises:
        BadInput: it holds another export, and `overwrite` was not given; or with `overwrite` a
            file of it was changed since.
    """
    owned = Owned.load(output_dir)
    path = storage.join(output_dir, RECORD)
    if owned is None:
        return False
    changed = [storage.join(output_dir, n) for n in sorted(filter(owned.is_foreign, owned.files))]
    if overwrite and changed:
        raise BadInput(
            f"{changed[0]}: changed since it was exported: move it away, or choose another {_FLAG}"
        )
    if not owned.is_unchanged(RECORD):
        return False
    there = decode.read_json(path, dict[str, Any])
    if there == record:
        missing = set(owned.files) - set(storage.list_tree(output_dir))
        for name in changed if not missing else ():
            log(f"{name}: changed since it was exported")
        return not missing
    if overwrite:
        return False
    keys = sorted(k for k in {*there, *record} if there.get(k) != record.get(k))
    difference = ", ".join(f"{k}: {there.get(k)} -> {record.get(k)}" for k in keys[:4])
    raise BadInput(
        f"{_FLAG} {output_dir} holds another export ({difference}): choose another one, or replace"
        " it with --overwrite"
    )


def write(
    output_dir: str, record: dict[str, Any], fill: Callable[[str], None], overwrite: bool = False
) -> None:
    """Make the folder: `fill` writes into a local one, whose files are then put in place.

    Args:
        output_dir: on disk or gs://. The export that is there is replaced: call `finished` first.
        record: what it is made from, kept in it.
        fill: called with an empty local directory.
        overwrite: whether an export of other settings that appeared meanwhile is replaced.

    Raises:
        BadInput: something that no export made, or an export of other settings, has appeared in
            the folder meanwhile, or another process is exporting there.
    """
    is_remote = storage.is_remote(output_dir)
    if not is_remote:
        output_dir = os.path.abspath(os.path.expanduser(output_dir))
    parent = storage.directory_of(output_dir)
    beside = None if is_remote else parent  # one file system: files are renamed, not copied
    prefix = f"{storage.TEMPORARY_PREFIX}{storage.base_name(output_dir)}."
    with outputs.new_folder(parent), scratch_directory(beside, prefix) as local:
        fill(local)
        check(output_dir, {})
        busy = f"{_FLAG} {output_dir}: {{owner}} is exporting there: wait for it to end"
        with outputs.new_folder(output_dir):
            owned = Owned.create(output_dir, _KIND)
            with held(Lease(storage.join(output_dir, _LOCK), busy, log)) as lease, mid_run():
                if not finished(output_dir, record, overwrite):
                    _put_in_place(local, owned, record, lease)


def _put_in_place(local: str, owned: Owned, record: dict[str, Any], lease: Lease) -> None:
    made = {name: os.path.join(local, name) for name in storage.list_tree(local)}
    owned.note({name: Made.of_file(path) for name, path in made.items()})
    owned.remove([RECORD])
    for name in made:
        storage.make_directory(storage.directory_of(storage.join(owned.path, name)))
    storage.run_all(
        [partial(storage.take, path, storage.join(owned.path, n)) for n, path in made.items()]
    )
    lease.check()
    owned.remove(set(owned.files) - made.keys())
    owned.write(RECORD, (json.dumps(record, ensure_ascii=False, indent=1) + "\n").encode())
