"""Requests to Google Cloud Storage: the client, and reading one generation of an object."""

from __future__ import annotations

import io
import os
import threading
from typing import Any

from bigbird_ja.process.errors import StorageError
from bigbird_ja.storage import retry
from bigbird_ja.storage.paths import split_remote
from bigbird_ja.storage.place import Stat, encode_crc32c

CHUNK = 8 << 20  # bytes per request

_local = threading.local()


def client() -> Any:
    """The client of this thread (its connections are not shared with a forked child).

    `STORAGE_EMULATOR_HOST` sends it, anonymous, to an emulator instead of Google.
    """
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    key = (os.getpid(), emulator)
    if getattr(_local, "key", None) != key:
        _local.client, _local.key = _new_client(emulator), key
    return _local.client


def _new_client(emulator: str | None) -> Any:
    from google.auth import default
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    project = os.environ.get("GOOGLE_CLOUD_PROJECT")
    if emulator:
        credentials: Any = AnonymousCredentials()
    else:
        credentials, default_project = default(
            scopes=["https://www.googleapis.com/auth/cloud-platform"]
        )
        project = project or default_project
    # Objects need no project, but the client insists on one.
    return storage.Client(project=project or "unset", credentials=credentials)


def blob(path: str) -> Any:
    """The object of a gs:// path; nothing is requested yet."""
    bucket, name = split_remote(path)
    return client().bucket(bucket).blob(name)


class ReplacedError(StorageError):
    """The object was written anew while it was being read."""


class DamagedError(StorageError):
    """What was read does not match the object's checksum."""


class ObjectReader(io.RawIOBase):
    """A raw stream over one generation of an object, read in chunks.

    Every request names the generation, so that an object replaced while it is read is an error,
    never a mix of old and new. Read from the first byte to the last, it is checked against the
    object's CRC-32C.

    Raises:
        ReplacedError: the object was replaced after this reader was opened.
        DamagedError: the checksum differs.
        StorageError: lasting faults.
    """

    def __init__(self, path: str, info: Stat, chunk: int = CHUNK) -> None:
        import google_crc32c

        super().__init__()
        self._path, self._info, self._chunk = path, info, chunk
        self._position = 0
        self._buffer, self._buffer_start = b"", 0
        self._checked, self._checksum, self._extend = 0, 0, google_crc32c.extend

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes, within the object."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position; bytes that are skipped are not fetched."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._info.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Bytes from the start."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fills `buffer` from the current chunk, fetching the next when it is used up."""
        if self._position >= self._info.size:
            return 0
        offset = self._position - self._buffer_start
        if not 0 <= offset < len(self._buffer):
            self._fetch()
            offset = 0
        part = memoryview(self._buffer)[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _fetch(self) -> None:
        start = self._position
        count = min(self._chunk, self._info.size - start)
        self._buffer = read_range(self._path, self._info.token, start, count)
        self._buffer_start = start
        if start == self._checked:
            self._checked += count
            self._checksum = self._extend(self._checksum, self._buffer)
            is_whole = self._checked == self._info.size
            if is_whole and self._info.crc32c not in (None, encode_crc32c(self._checksum)):
                raise DamagedError(
                    f"{self._path}: what was read does not match the object's checksum: run again"
                )


def read_range(path: str, token: str, start: int, count: int) -> bytes:
    """Exactly `count` bytes from `start` of the generation `token`.

    Raises:
        ReplacedError: the object has another generation by now.
    """
    from google.api_core.exceptions import PreconditionFailed

    def attempt(_: int) -> bytes:
        data = blob(path).download_as_bytes(
            start=start,
            end=start + count - 1,
            raw_download=True,
            checksum=None,
            if_generation_match=int(token),
            timeout=retry.request_timeout(),
            retry=None,
        )
        if len(data) != count:
            raise retry.CorruptError(f"short reply ({len(data)} of {count} bytes)")
        return data

    try:
        return retry.run(path, attempt)
    except PreconditionFailed as error:
        raise ReplacedError(f"{path}: replaced while it was being read: run again") from error
