"""Output folder of `export`, with a record of its inputs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.process.classify import convert_refusals
from bigbird_ja.process.console import log
from bigbird_ja.storage import decode, outputs
from bigbird_ja.storage.disk import create_scratch_directory
from bigbird_ja.storage.lease import lease_folder
from bigbird_ja.storage.ownership import Owned

# Record of the export's inputs. It is written last, so a folder without it is incomplete, and
# rerunning the same command completes it.
RECORD = "export.json"
FLAG = "`output_dir`"
_KIND = "export"


def check(output_dir: str, inputs: Mapping[str, str | None]) -> None:
    """Check that an export can be written to a folder, without changing anything.

    Args:
        output_dir: path of the folder.
        inputs: path of each input by parameter.

    Raises:
        BadInput: The path overlaps with an input, is a file, or contains files that are not from an
            export.
    """
    outputs.refuse_overlap(inputs, output_dir, FLAG)
    outputs.check_folder(output_dir, FLAG, _KIND, "choose another folder")


def is_finished(output_dir: str, record: dict[str, Any], overwrite: bool) -> bool:
    """Return whether `output_dir` already contains all files of the export with this `record`.

    Raises:
        BadInput: The folder contains another export, and `overwrite` is false.
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
        f"{FLAG} {output_dir} contains another export ({difference}): choose another folder, or"
        " replace the export with `overwrite`"
    )


def write(
    output_dir: str, record: dict[str, Any], fill: Callable[[str], None], overwrite: bool = False
) -> None:
    """Let `fill` write an export to a local folder, then move its files to the output folder.

    Args:
        output_dir: folder, on disk or gs://. This function acquires its lease.
        record: inputs of the export, which are written to `RECORD`.
        fill: callback that writes the export to an empty local directory.
        overwrite: whether to move another export that the folder contains to
            OUTPUT_DIR.replaced-N.

    Raises:
        BadInput: Another process writes to the folder, or the folder contains another export or
            other files with the same names.
    """
    is_remote = storage.is_remote(output_dir)
    if not is_remote:
        output_dir = os.path.abspath(os.path.expanduser(output_dir))
    parent = storage.get_directory(output_dir)
    # If the output is on disk, the local folder is created next to it, on the same file system, so
    # that files can be renamed into the output.
    scratch = None if is_remote else parent
    with outputs.create_folder(output_dir):
        owned = Owned.create(output_dir, _KIND)
        prefix = f"{storage.TEMPORARY_PREFIX}{owned.place_id}."
        with lease_folder(output_dir), create_scratch_directory(scratch, prefix) as local:
            # Another process may have completed the export before this one got the lease.
            if is_finished(output_dir, record, overwrite):
                return
            fill(local)
            with convert_refusals():
                _put_in_place(local, owned, record)


def _put_in_place(local: str, owned: Owned, record: dict[str, Any]) -> None:
    made = {name: os.path.join(local, name) for name in storage.list_tree(local)}
    # If the manifest lists no record, all listed files are from a killed command.
    if RECORD not in owned.files:
        owned.remove(owned.files)
    if moved := owned.set_aside([RECORD, *sorted(set(owned.files) - {RECORD})]):
        log(f"{owned.path}: the previous export was moved to {moved}")
    owned.note(dict.fromkeys(made))
    storage.put_all(made, owned.path)
    owned.write(RECORD, (json.dumps(record, ensure_ascii=False, indent=1) + "\n").encode())
