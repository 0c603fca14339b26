"""Requests to Google Cloud Storage by `google-cloud-storage`, with its retries, and pinned reads.

The library retries what its documentation calls transient (`DEFAULT_RETRY`). Here are the deadline,
the warning that it logs nowhere, and the exceptions that callers handle.
"""

import contextlib
import errno
import functools
import logging
import os
from collections.abc import Iterator
from typing import Any

import google_crc32c
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.auth import exceptions as auth
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.fileio import BlobReader
from google.cloud.storage.retry import DEFAULT_RETRY

from bigbird_ja.process.console import shortened
from bigbird_ja.process.errors import Refused, StorageError
from bigbird_ja.process.redact import redact
from bigbird_ja.storage.paths import encode_crc32c, split_remote

CHUNK = 16 << 20  # bytes per request of a large file; a multiple of the protocol's 256 KiB
MAX_RESTARTS = 3  # of a transfer that was damaged or lost, or whose object was replaced meanwhile
_MAX_DELAY = 32.0  # seconds between two tries

_logger = logging.getLogger(__name__)


def client() -> Any:
    """Return the client; a forked child has its own connections.

    `STORAGE_EMULATOR_HOST` sends it, anonymous, to an emulator instead of Google.
    """
    return _client(os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST"))


@functools.cache
def _client(process: int, emulator: str | None) -> Any:
    # Objects need no project, but the client insists on one.
    return storage.Client(project=os.environ.get("GOOGLE_CLOUD_PROJECT", "unset"))


def blob(path: str) -> Any:
    """Return the object of a gs:// path; nothing is requested yet."""
    bucket, name = split_remote(path)
    with faults(path):  # there may be no credentials
        return client().bucket(bucket).blob(name)


def current(path: str) -> Any:
    """Return the object with its metadata; further requests name its generation."""
    current = blob(path)
    with faults(path):
        current.reload(**options(path))
    return current


class ReplacedError(StorageError):
    """The object was replaced while it was being read."""


class DamagedError(StorageError):
    """The bytes that were read, or stored, do not match the object's checksum."""


class ObjectReader(BlobReader):
    """Stream of the current generation of an object, in chunks.

    Read from the first byte to the last, it is checked against the object's CRC-32C.

    Raises:
        ReplacedError: The object was replaced after this reader was opened.
        DamagedError: The checksum differs.
        StorageError: A fault lasted.
    """

    def __init__(self, path: str) -> None:
        self._path, self._object = path, current(path)
        super().__init__(self._object, CHUNK, raw_download=True, **options(path))
        self._checked = self._checksum = 0

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, less only at the end; -1 reads all."""
        start, total = self.tell(), self._object.size
        count = min(size, total - start) if size >= 0 else total - start
        data = b""
        for _ in range(MAX_RESTARTS):
            if len(data) < count:  # again, if the reply was short
                data += self._read(count - len(data))
        if len(data) < count:
            raise DamagedError(f"{self._path}: short replies ({len(data)} of {count} bytes)")
        if start == self._checked:
            self._checked += count
            self._checksum = google_crc32c.extend(self._checksum, data)
            if self._checked == total and encode_crc32c(self._checksum) != self._object.crc32c:
                raise DamagedError(f"{self._path}: damaged on the way: run again")
        return data

    def _read(self, size: int) -> bytes:
        try:
            with faults(self._path):
                return bytes(super().read(size))
        except FileNotFoundError as error:
            if current(self._path).generation == self._object.generation:
                raise
            message = f"{self._path}: replaced while it was being read: run again"
            raise ReplacedError(message) from error


def _deadline() -> float:
    """Return the seconds from the first try to giving up."""
    return float(os.environ.get("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", 300.0))


def options(path: str) -> dict[str, Any]:
    """Return timeout and retries for a method of the client library that may be repeated."""

    def on_error(error: Exception) -> None:
        again = f"trying again for up to {_deadline():g} s"
        _logger.warning("%s: %s: %s", path, reason(error), again)

    delay = float(os.environ.get("BIGBIRD_JA_STORAGE_BACKOFF_SECONDS", 0.5))
    policy = DEFAULT_RETRY.with_delay(delay, _MAX_DELAY).with_timeout(_deadline())
    timeout = min(
        60.0, max(_deadline() / 3, 0.2)
    )  # without a byte: the deadline has room for three
    return {"timeout": timeout, "retry": lambda call: policy(call, on_error=on_error)}


@contextlib.contextmanager
def faults(path: str) -> Iterator[None]:
    """Turn the exceptions of the library within a block into those that callers handle.

    Raises:
        StorageError: A fault lasted beyond the deadline; names `path` and the cause.
        FileNotFoundError, PermissionError: `path` is their file name.
    """
    try:
        yield
    except Exception as error:
        translated = translate(error, path)
        if translated is error:
            raise
        raise translated from error


def translate(error: Exception, path: str) -> Exception:
    """Return the exception that callers handle for one of the library."""
    status = status_of(error)
    if isinstance(error, RetryError):
        return StorageError(
            f"{path}: {reason(error.cause)}: failed for {_deadline():g} s: check the bucket and the"
            " network, then run the same command again"
        )
    if isinstance(error, DataCorruption):
        return DamagedError(f"{path}: damaged on the way each time: run again")
    if status == 404:
        what = "bucket" if "bucket does not exist" in str(error) else "object"
        return FileNotFoundError(errno.ENOENT, f"no such {what}", path)
    if status in (401, 403):
        return PermissionError(errno.EACCES, f"permission denied ({reason(error)})", path)
    if isinstance(error, auth.InvalidOperation):  # anonymous: there is nothing to renew
        return PermissionError(errno.EACCES, "permission denied (401 without credentials)", path)
    if isinstance(error, auth.DefaultCredentialsError):
        return Refused(
            f"{path}: no Google credentials: run `gcloud auth application-default login`"
        )
    if isinstance(error, auth.GoogleAuthError):
        return PermissionError(
            errno.EACCES,
            "credentials expired or revoked, run `gcloud auth application-default login`",
            path,
        )
    if status == 400:
        return Refused(f"{path}: the bucket refuses the request: {reason(error)}")
    if status is not None and status != 412:
        return StorageError(f"{path}: {reason(error)}")
    return error


def reason(error: BaseException | None) -> str:
    """Describe a fault in one short line, without addresses that carry secrets."""
    status = status_of(error)
    if status is not None:
        try:  # the library puts the request's address before the server's own message
            response: Any = getattr(error, "response", None)
            message = str(response.json()["error"]["message"])
        except (AttributeError, ValueError, TypeError, KeyError):
            message = type(error).__name__
        return shortened(f"{status} {redact(message)}", 200)
    return f"no answer ({type(error).__name__})"  # its message may hold a request's address


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status of an exception, if it has one."""
    if isinstance(error, InvalidResponse):
        return int(error.response.status_code)
    return error.code if isinstance(error, GoogleAPICallError) else None
