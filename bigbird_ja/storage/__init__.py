"""Files on disk or on gs://, by one set of functions, without TensorFlow.

Every path is a string; `gs://bucket/name` is on Google Cloud Storage. What all of them promise:

- a missing file is FileNotFoundError, a refusal (401, 403) PermissionError, each with `.filename`;
- passing faults of the bucket are ridden out with bounded back-off and said once; a lasting one
  is `errors.StorageError` with the object's name and the cause;
- what is read is one version of the file, verified against its checksum;
- what is written appears whole or not at all;
- FIFOs, sockets and devices are `errors.BadInput`, and never opened.

docs/design/storage.md says how, and why TensorFlow's own gs:// client is not used for this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import BinaryIO

from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage import bucket, transfer
from bigbird_ja.storage.backend import of
from bigbird_ja.storage.checksum import crc32c_of_file, crc32c_text
from bigbird_ja.storage.stat import Stat
from bigbird_ja.storage.urls import (
    TEMPORARY_PREFIX,
    base_name,
    check_inside,
    directory_of,
    is_remote,
    join,
)

__all__ = [
    "MAX_BYTES",
    "TEMPORARY_PREFIX",
    "Stat",
    "StorageError",
    "base_name",
    "check_inside",
    "crc32c_of_file",
    "crc32c_text",
    "directory_of",
    "is_remote",
    "join",
]


# What is read whole is smaller: a tokenizer has a few MB, a manifest of 100,000 shards 20.
MAX_BYTES = 256 << 20


def read_bytes(path: str, limit: int = MAX_BYTES) -> bytes:
    """The whole file (one request on a bucket).

    Raises:
        BadInput: it has more than `limit` bytes, so it is not what it was taken for.
    """
    return of(path).read_with_token(path, limit)[0]


def read_text(path: str, limit: int = MAX_BYTES) -> str:
    """The whole file as UTF-8.

    Raises:
        BadInput: not UTF-8, or larger than `limit` bytes.
    """
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 (byte {error.start})") from error


def open_read(path: str) -> BinaryIO:
    """A binary stream over one version of the file, in constant memory, seekable."""
    return of(path).open_read(path)


def write_bytes(path: str, data: bytes) -> None:
    """Writes the whole file atomically; its directory must exist on disk."""
    of(path).write_bytes(path, data)


def write_text(path: str, text: str) -> None:
    """`write_bytes` of UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def writing(path: str) -> AbstractContextManager[BinaryIO]:
    """A file to write to, which becomes `path` when the block ends without an exception."""
    return of(path).writing(path)


def create_exclusive(path: str, data: bytes) -> bool:
    """Creates a file that must not exist yet; False where it does. For leases."""
    return of(path).create_exclusive(path, data)


def read_with_token(path: str) -> tuple[bytes, str]:
    """The content and the token of this version, for `replace_if` and `delete_if`."""
    return of(path).read_with_token(path, MAX_BYTES)


def replace_if(path: str, data: bytes, token: str) -> str | None:
    """Compare-and-swap: the new token, or None where the file is no longer that version."""
    return of(path).replace_if(path, data, token)


def delete_if(path: str, token: str) -> bool:
    """Deletes the file if it is still the version of `token`."""
    return of(path).delete_if(path, token)


def exists(path: str) -> bool:
    """Whether there is a file, or a directory (on a bucket: one with something in it).

    False only when that is certain: a refusal or a failing bucket raises.
    """
    return of(path).exists(path)


def stat(path: str) -> Stat:
    """Size, age and version of a file."""
    return of(path).stat(path)


def size(path: str) -> int:
    """Bytes of a file."""
    return stat(path).size


def list_files(directory: str) -> list[str]:
    """Sorted names of the files in a directory, not those below; [] where there is none."""
    return list(list_stats(directory))


def list_stats(directory: str) -> dict[str, Stat]:
    """Name to `Stat` of the files in a directory, sorted by name: one request on a bucket,
    checksums included. Unfinished files of our writers are left out."""
    return of(directory).list_stats(directory)


def list_tree(directory: str) -> list[str]:
    """Sorted names of all files under a directory, relative to it; [] where there is none."""
    return of(directory).list_tree(directory)


def glob(pattern: str) -> list[str]:
    """Sorted paths that match; `*` and `?` stay in one directory, `**` does not."""
    return of(pattern).glob(pattern)


def delete(path: str, missing_ok: bool = True) -> None:
    """Removes a file."""
    of(path).delete(path, missing_ok)


def delete_many(paths: Iterable[str]) -> None:
    """Removes files, several at a time; missing ones are fine."""
    transfer.run_all([partial(delete, path) for path in paths])


def bucket_location(path: str) -> str | None:
    """Region of the bucket of a gs:// path in lower case; None where it may not be asked."""
    return bucket.location(path)


def rename(source: str, target: str) -> None:
    """Gives a file another name in the same place, over what has that name. On disk that is one
    step; on a bucket a copy (by the bucket) and a deletion, and a kill between the two leaves both.

    Raises:
        BadInput: one is on disk and the other on a bucket.
    """
    if of(source) is not of(target):
        raise BadInput(f"{source}: cannot be renamed to {target}: copy it")
    of(source).rename(source, target)


def make_directory(path: str) -> None:
    """Creates a directory and its parents on disk; nothing to do on a bucket."""
    of(path).make_directory(path)


def upload(source: str, target: str) -> None:
    """Copies a local file to `target` (on a bucket or on disk), checksum verified."""
    of(target).upload(source, target)


def take(source: str, target: str) -> None:
    """Makes a local file the file at `target`, and `source` is gone: moved on disk (it must be on
    the same one), uploaded to a bucket."""
    of(target).take(source, target)


def download(source: str, target: str) -> None:
    """Copies `source` (on a bucket or on disk) to a local file, checksum verified."""
    of(source).download(source, target)


def fetch(path: str, directory: str) -> str:
    """A local path of the file: its own on disk; of a bucket's file, of a copy in `directory`."""
    return of(path).fetch(path, directory)


def upload_many(pairs: Sequence[tuple[str, str]], workers: int = 8) -> None:
    """Uploads (local, target) pairs in parallel; the first failure stops the rest and raises."""
    transfer.run_all([partial(upload, *pair) for pair in pairs], workers)


def clean_temporary(directory: str, older_than: float = 0.0) -> list[str]:
    """Removes what killed writers left in a directory; a bucket has no such leftovers."""
    return of(directory).clean_temporary(directory, older_than)
