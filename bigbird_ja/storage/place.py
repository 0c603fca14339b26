"""What a place for files can do: the disk (`disk.Disk`) and a bucket (`bucket.Bucket`) are the two.

Paths are strings; `gs://bucket/name` is on a bucket. Errors carry the path.
"""

from __future__ import annotations

import base64
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from bigbird_ja.process.errors import BadInput

# What is read whole is smaller: a tokenizer has a few MB, a manifest of 100,000 shards 20.
MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class Stat:
    """Size in bytes, last change in UNIX seconds, and a token that changes with every write.

    `crc32c` (base64 of the big-endian checksum, as Google Cloud Storage states it) is known
    without reading only on a bucket.
    """

    size: int
    modified: float
    token: str
    crc32c: str | None = None


class Place(Protocol):
    """Files by path. The methods that `storage` offers as functions are documented here."""

    def open_read(self, path: str) -> BinaryIO:
        """A binary stream over one version of the file, in constant memory, seekable."""

    def read_with_token(self, path: str, limit: int = MAX_BYTES) -> tuple[bytes, str]:
        """The content and the token of this version, for `replace_if` and `delete_if`.

        Raises:
            BadInput: more than `limit` bytes; what lies beyond is not read.
        """

    def writing(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A file to write to, which becomes `path` when the block ends without an exception."""

    def write_bytes(self, path: str, data: bytes) -> None:
        """Writes the whole file atomically; its directory must exist on disk."""

    def create_exclusive(self, path: str, data: bytes) -> bool:
        """Creates a file that must not exist yet; False where it does. For leases."""

    def replace_if(self, path: str, data: bytes, token: str) -> str | None:
        """Compare-and-swap: the new token, or None where the file is no longer that version."""

    def delete_if(self, path: str, token: str) -> bool:
        """Deletes the file if it is still the version of `token`."""

    def delete(self, path: str, missing_ok: bool = True) -> None:
        """Removes a file."""

    def exists(self, path: str) -> bool:
        """Whether there is a file, or a directory (on a bucket: one with something in it).

        False only when that is certain: a refusal or a failing bucket raises.
        """

    def stat(self, path: str) -> Stat:
        """Size, age and version of a file."""

    def list_stats(self, directory: str) -> dict[str, Stat]:
        """Name to `Stat` of the files in a directory, sorted by name; {} where there is none.

        One request on a bucket, checksums included. Unfinished files are left out.
        """

    def list_tree(self, directory: str) -> list[str]:
        """Sorted names of all files under a directory, relative to it; [] where there is none."""

    def glob(self, pattern: str) -> list[str]:
        """Sorted paths that match; `*` and `?` stay in one directory, `**` does not."""

    def rename(self, source: str, target: str) -> None:
        """Gives a file another name in the same place, over what has that name. On disk that is
        one step; on a bucket a copy (by the bucket) and a deletion, and a kill between the two
        leaves both."""

    def make_directory(self, path: str) -> None:
        """Creates a directory and its parents on disk; nothing to do on a bucket."""

    def upload(self, source: str, target: str) -> None:
        """Copies a local file to `target`, checksum verified."""

    def take(self, source: str, target: str) -> None:
        """Makes a local file the file at `target`, and `source` is gone: moved on disk (it must be
        on the same one), uploaded to a bucket."""

    def download(self, source: str, target: str) -> None:
        """Copies `source` to a local file, checksum verified."""

    def fetch(self, path: str, directory: str) -> str:
        """A local path of the file: the file itself on disk; else a copy in `directory`."""

    def clean_temporary(self, directory: str, older_than: float = 0.0) -> list[str]:
        """Removes what killed writers left in a directory; the names removed.

        Args:
            older_than: seconds since the last write; younger files stay.
        """

    def read_bytes(self, path: str, limit: int = MAX_BYTES) -> bytes:
        """The whole file (one request on a bucket).

        Raises:
            BadInput: it has more than `limit` bytes, so it is not what it was taken for.
        """
        return self.read_with_token(path, limit)[0]

    def read_text(self, path: str, limit: int = MAX_BYTES) -> str:
        """The whole file as UTF-8.

        Raises:
            BadInput: not UTF-8, or larger than `limit` bytes.
        """
        try:
            return self.read_bytes(path, limit).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"{path}: not UTF-8 (byte {error.start})") from error

    def write_text(self, path: str, text: str) -> None:
        """`write_bytes` of UTF-8."""
        self.write_bytes(path, text.encode("utf-8"))

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return self.stat(path).size

    def list_files(self, directory: str) -> list[str]:
        """Sorted names of the files in a directory, not those below; [] where there is none."""
        return list(self.list_stats(directory))


def crc32c_text(data: bytes) -> str:
    """Base64 of the big-endian CRC-32C, the form in which object metadata states it."""
    import google_crc32c

    return encode_crc32c(google_crc32c.value(data))


def encode_crc32c(value: int) -> str:
    """The form in which object metadata states a CRC-32C."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()
