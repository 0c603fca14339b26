"""Files on disk or on gs://, by one set of functions, without TensorFlow.

Every path is a string; `gs://bucket/name` is on Google Cloud Storage. What all of them promise:

- a missing file is FileNotFoundError, a refusal (401, 403) PermissionError, each with `.filename`;
- passing faults of the bucket are ridden out with bounded back-off and said once; a lasting one
  is `errors.StorageError` with the object's name and the cause;
- what is read is one version of the file, verified against its checksum;
- what is written appears whole or not at all.

docs/design/storage.md says how, and why TensorFlow's own gs:// client is not used for this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import BinaryIO

from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.storage import bucket, local, transfer
from bigbird_ja.storage.checksum import crc32c_of_file, crc32c_text
from bigbird_ja.storage.names import (
    TEMPORARY_PREFIX,
    base_name,
    check_inside,
    directory_of,
    is_remote,
    join,
    split_remote,
)
from bigbird_ja.storage.retry import Policy, fault_count
from bigbird_ja.storage.stat import Stat

__all__ = [
    "TEMPORARY_PREFIX",
    "Policy",
    "Stat",
    "StorageError",
    "base_name",
    "bucket_location",
    "bucket_name",
    "check_inside",
    "clean_temporary",
    "crc32c_of_file",
    "crc32c_text",
    "create_exclusive",
    "delete",
    "delete_if",
    "delete_many",
    "directory_of",
    "download",
    "download_many",
    "exists",
    "fault_count",
    "glob",
    "is_remote",
    "join",
    "list_files",
    "list_stats",
    "list_tree",
    "make_directory",
    "open_read",
    "read_bytes",
    "read_text",
    "read_with_token",
    "rename",
    "replace",
    "replace_if",
    "size",
    "stat",
    "upload",
    "upload_many",
    "write_bytes",
    "write_text",
]

Progress = Callable[[int], None]  # told the bytes that were moved since the last call


def read_bytes(path: str) -> bytes:
    """The whole file (one request on a bucket)."""
    return bucket.read_bytes(path) if is_remote(path) else local.read_bytes(path)


def read_text(path: str) -> str:
    """The whole file as UTF-8.

    Raises:
        BadInput: not UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 (byte {error.start})") from error


def open_read(path: str) -> BinaryIO:
    """A binary stream over one version of the file, in constant memory, seekable."""
    return bucket.open_read(path) if is_remote(path) else local.open_read(path)


def write_bytes(path: str, data: bytes) -> None:
    """Writes the whole file atomically; its directory must exist on disk."""
    bucket.write_bytes(path, data) if is_remote(path) else local.write_bytes(path, data)


def write_text(path: str, text: str) -> None:
    """`write_bytes` of UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def create_exclusive(path: str, data: bytes) -> bool:
    """Creates a file that must not exist yet; False where it does. For locks."""
    if is_remote(path):
        return bucket.create_exclusive(path, data)
    return local.create_exclusive(path, data)


def read_with_token(path: str) -> tuple[bytes, str]:
    """The content and the token of this version, for `replace_if` and `delete_if`."""
    return bucket.read_with_token(path) if is_remote(path) else local.read_with_token(path)


def replace_if(path: str, data: bytes, token: str) -> str | None:
    """Compare-and-swap: the new token, or None where the file is no longer that version."""
    if is_remote(path):
        return bucket.replace_if(path, data, token)
    return local.replace_if(path, data, token)


def delete_if(path: str, token: str) -> bool:
    """Deletes the file if it is still the version of `token`."""
    return bucket.delete_if(path, token) if is_remote(path) else local.delete_if(path, token)


def exists(path: str) -> bool:
    """Whether there is a file, or a directory with something in it.

    False only when that is certain: a refusal or a failing bucket raises.
    """
    return bucket.exists(path) if is_remote(path) else local.exists(path)


def stat(path: str) -> Stat:
    """Size, age and version of a file."""
    return bucket.stat(path) if is_remote(path) else local.stat(path)


def size(path: str) -> int:
    """Bytes of a file."""
    return stat(path).size


def list_files(directory: str) -> list[str]:
    """Sorted names of the files in a directory, not those below; [] where there is none."""
    return bucket.list_files(directory) if is_remote(directory) else local.list_files(directory)


def list_stats(directory: str) -> dict[str, Stat]:
    """Name to `Stat` of the files in a directory: one request on a bucket, checksums included."""
    return bucket.list_stats(directory) if is_remote(directory) else local.list_stats(directory)


def list_tree(directory: str) -> list[str]:
    """Sorted names of all files under a directory, relative to it; [] where there is none."""
    return bucket.list_tree(directory) if is_remote(directory) else local.list_tree(directory)


def glob(pattern: str) -> list[str]:
    """Sorted paths that match; `*` and `?` stay in one directory, `**` does not."""
    return bucket.glob(pattern) if is_remote(pattern) else local.glob(pattern)


def delete(path: str, missing_ok: bool = True) -> None:
    """Removes a file."""
    bucket.delete(path, missing_ok) if is_remote(path) else local.delete(path, missing_ok)


def delete_many(paths: Iterable[str]) -> None:
    """Removes files, several at a time on a bucket; missing ones are fine."""
    transfer.run_all([partial(delete, path) for path in paths])


def bucket_name(path: str) -> str:
    """`bucket` of `gs://bucket/name`."""
    return split_remote(path)[0]


def bucket_location(path: str) -> str | None:
    """Region of the bucket of a gs:// path in lower case; None where it may not be asked."""
    return bucket.location(path)


def replace(source: str, target: str) -> None:
    """Renames a file over another, in one step, on disk only: a bucket has no such step.

    Raises:
        BadInput: one of them is on a bucket.
    """
    if is_remote(source) or is_remote(target):
        raise BadInput(f"{source}: cannot be renamed to {target}: a bucket has no rename")
    local.replace(source, target)


def rename(source: str, target: str) -> None:
    """Gives a file another name in the same place. On a bucket this is a copy (by the bucket) and
    a deletion: a kill between the two leaves both names.

    Raises:
        BadInput: one is on disk and the other on a bucket.
    """
    if is_remote(source) and is_remote(target):
        bucket.rename(source, target)
    else:
        replace(source, target)


def make_directory(path: str) -> None:
    """Creates a directory and its parents on disk; nothing to do on a bucket."""
    if not is_remote(path):
        local.make_directory(path)


def upload(source: str, target: str, progress: Progress | None = None) -> Stat:
    """Copies a local file to `target` (on a bucket or on disk), checksum verified."""
    if is_remote(target):
        return bucket.upload(source, target, progress)
    local.copy(source, target, progress)
    return local.stat(target)


def download(source: str, target: str, progress: Progress | None = None) -> None:
    """Copies `source` (on a bucket or on disk) to a local file, checksum verified."""
    if is_remote(source):
        bucket.download(source, target, progress)
    else:
        local.copy(source, target, progress)


def upload_many(
    pairs: Sequence[tuple[str, str]], progress: Progress | None = None, workers: int = 8
) -> None:
    """Uploads (local, target) pairs in parallel; the first failure stops the rest and raises."""
    told = transfer.one_at_a_time(progress)
    transfer.run_all([partial(upload, *pair, progress=told) for pair in pairs], workers)


def download_many(
    pairs: Sequence[tuple[str, str]], progress: Progress | None = None, workers: int = 8
) -> None:
    """Downloads (source, local) pairs in parallel; the first failure stops the rest and raises."""
    told = transfer.one_at_a_time(progress)
    transfer.run_all([partial(download, *pair, progress=told) for pair in pairs], workers)


def clean_temporary(directory: str, older_than: float = 0.0) -> list[str]:
    """Removes what killed writers left in a directory; a bucket has no such leftovers."""
    return [] if is_remote(directory) else local.clean_temporary(directory, older_than)
