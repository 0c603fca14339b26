"""Folders whose name is the SHA-256 of their content.

`SHA256SUMS` lists the files, in the format of `sha256sum --check`, and its SHA-256 is the folder's
name. So a changed or added file is detected. `SHA256SUMS` is written last, so a folder without
`SHA256SUMS` is incomplete.
"""

import hashlib
import re
from collections.abc import Mapping

from bigbird_ja import storage
from bigbird_ja.errors import BadInput

LISTING = "SHA256SUMS"
_CHUNK = 8 << 20


def compute_address(files: Mapping[str, str], parent: str) -> tuple[str, str]:
    """Compute the path of the folder that will contain `files`, and the text of its SHA256SUMS.

    Args:
        files: local path by name in the folder.
        parent: parent folder, on disk or gs://.
    """
    lines = [f"{_hash_file(path)}  {name}\n" for name, path in sorted(files.items())]
    listing = "".join(lines)
    return storage.join(parent, hashlib.sha256(listing.encode()).hexdigest()), listing


def put(files: Mapping[str, str], folder: str, listing: str) -> None:
    """Upload files to a folder that `compute_address` returned, unless the folder is complete."""
    if storage.exists(storage.join(folder, LISTING)):
        return
    storage.put_all(files, folder, storage.upload)
    storage.write_text(storage.join(folder, LISTING), listing)


def verify(folder: str) -> None:
    """Verify every file of a folder whose name is a SHA-256. Ignore any other folder.

    Raises:
        BadInput: The upload was interrupted, or a file was changed or added.
    """
    expected = storage.get_base_name(folder)
    if not re.fullmatch("[0-9a-f]{64}", expected):
        return
    advice = f"remove {folder}, so that `launch` uploads it again"
    try:
        listing = storage.read_text(storage.join(folder, LISTING))
        if hashlib.sha256(listing.encode()).hexdigest() != expected:
            raise BadInput(
                f"{storage.join(folder, LISTING)} has changed since it was uploaded: {advice}"
            )
        lines = [line.partition("  ") for line in listing.splitlines()]
        listed = {name: sha256 for sha256, _, name in lines}
        # A program that loads the folder would use an added `model.safetensors` instead of the
        # listed shards.
        if added := sorted(set(storage.list_tree(folder)) - {LISTING, *listed}):
            raise BadInput(f"{storage.join(folder, added[0])} is not in {LISTING}: {advice}")
        for name, sha256 in listed.items():
            path = storage.join(folder, storage.check_inside(name))
            if _hash_file(path) != sha256:
                raise BadInput(f"{path} has changed since it was uploaded: {advice}")
    except FileNotFoundError as error:
        raise BadInput(f"{error.filename} is missing: {advice}") from error


def _hash_file(path: str) -> str:
    checksum = hashlib.sha256()
    with storage.open_read(path) as file:
        while chunk := file.read(_CHUNK):
            checksum.update(chunk)
    return checksum.hexdigest()
