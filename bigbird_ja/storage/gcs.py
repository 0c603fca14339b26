"""Requests to Google Cloud Storage by `google-cloud-storage`, with its retries, and pinned reads.

The library retries what its documentation calls transient (`DEFAULT_RETRY`). Here are the deadline,
the warning that it logs nowhere, and the exceptions that callers handle.
"""

import contextlib
import errno
import io
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bigbird_ja.process.console import shortened
from bigbird_ja.process.errors import Refused, StorageError
from bigbird_ja.process.redact import redact
from bigbird_ja.storage.paths import Stat, encode_crc32c, split_remote

CHUNK = 8 << 20  # bytes per request of a stream
_MAX_DELAY = 32.0  # seconds between two tries
_QUIET_SECONDS = 120.0  # faults closer together than this are logged once

_logger = logging.getLogger(__name__)
_last_fault = -1e18  # monotonic seconds
_local = threading.local()


def client() -> Any:
    """Return the client of this thread; a forked child has its own connections.

    `STORAGE_EMULATOR_HOST` sends it, anonymous, to an emulator instead of Google.
    """
    key = (os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST"))
    if getattr(_local, "key", None) != key:
        from google.cloud import storage

        # Objects need no project, but the client insists on one.
        project = os.environ.get("GOOGLE_CLOUD_PROJECT", "unset")
        _local.client, _local.key = storage.Client(project=project), key
    return _local.client


def blob(path: str) -> Any:
    """Return the object of a gs:// path; nothing is requested yet."""
    bucket, name = split_remote(path)
    return client().bucket(bucket).blob(name)


class ReplacedError(StorageError):
    """The object was replaced while it was being read."""


class DamagedError(StorageError):
    """The bytes that were read do not match the object's checksum."""


class ObjectReader(io.RawIOBase):
    """Stream of one generation of an object, in chunks.

    Every request names the generation, so that an object replaced while it is read is an error,
    never a mix of old and new. Read from the first byte to the last, it is checked against the
    object's CRC-32C.

    Raises:
        ReplacedError: The object was replaced after this reader was opened.
        DamagedError: The checksum differs.
        StorageError: A fault lasted.
    """

    def __init__(self, path: str, info: Stat) -> None:
        import google_crc32c

        super().__init__()
        self._path, self._info = path, info
        self._position = 0
        self._buffer, self._buffer_start = b"", 0
        self._checked, self._checksum, self._extend = 0, 0, google_crc32c.extend

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position; skipped bytes are not fetched."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._info.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the current chunk, fetching the next one when it is used up."""
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
        count = min(CHUNK, self._info.size - start)
        self._buffer = read_range(self._path, self._info.token, start, count)
        self._buffer_start = start
        if start == self._checked:
            self._checked += count
            self._checksum = self._extend(self._checksum, self._buffer)
            is_whole = self._checked == self._info.size
            if is_whole and self._info.crc32c not in (None, encode_crc32c(self._checksum)):
                raise DamagedError(f"{self._path}: damaged on the way: run again")


def read_range(path: str, token: str, start: int, count: int) -> bytes:
    """Read exactly `count` bytes from `start` of the generation `token`.

    Raises:
        ReplacedError: The object has another generation by now.
    """
    from google.api_core.exceptions import PreconditionFailed

    def attempt() -> bytes:
        how = {"if_generation_match": int(token), "timeout": request_timeout(), "retry": None}
        data = blob(path).download_as_bytes(
            start=start, end=start + count - 1, raw_download=True, checksum=None, **how
        )
        if len(data) != count:  # which the library takes for the end of the object
            raise ConnectionError(f"short reply ({len(data)} of {count} bytes)")
        return bytes(data)

    try:
        with faults(path):
            return bytes(retry(path)(attempt)())
    except PreconditionFailed as error:
        raise ReplacedError(f"{path}: replaced while it was being read: run again") from error


def _deadline() -> float:
    """Return the seconds from the first try to giving up."""
    return float(os.environ.get("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", 300.0))


def request_timeout() -> float:
    """Return the maximum silence within a request, in seconds; the deadline has room for three."""
    return min(60.0, max(_deadline() / 3, 0.2))


def options(path: str, on_fault: Callable[[Exception], None] | None = None) -> dict[str, Any]:
    """Return timeout and retries for a method of the client library that may be repeated."""
    return {"timeout": request_timeout(), "retry": retry(path, on_fault)}


def retry(path: str, on_fault: Callable[[Exception], None] | None = None) -> Any:
    """Return the library's retry decorator, with our deadline; it logs the faults.

    Args:
        path: for the log.
        on_fault: called with each fault that is followed by another try.
    """
    from google.cloud.storage.retry import DEFAULT_RETRY

    def on_error(error: Exception) -> None:
        _log_first(path, error)
        if on_fault is not None:
            on_fault(error)

    delay = float(os.environ.get("BIGBIRD_JA_STORAGE_BACKOFF_SECONDS", 0.5))
    policy = DEFAULT_RETRY.with_delay(delay, _MAX_DELAY).with_timeout(_deadline())
    return lambda call: policy(call, on_error=on_error)


def _log_first(path: str, error: Exception) -> None:
    """Log the first fault of each disturbance."""
    global _last_fault
    now = time.monotonic()
    is_new, _last_fault = now - _last_fault > _QUIET_SECONDS, now
    if is_new:
        again = f"trying again for up to {_deadline():.0f} s (further faults are not repeated here)"
        _logger.warning("%s: %s: %s", path, reason(error), again)


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
    from google.api_core.exceptions import RetryError
    from google.auth import exceptions as auth

    status = status_of(error)
    if isinstance(error, RetryError):
        return StorageError(
            f"{path}: {reason(error.cause)}: failed for {_deadline():g} s: check the bucket and the"
            " network, then run the same command again"
        )
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
    if type(error) is ConnectionError:  # of `read_range`, or of the library for a short reply
        return shortened(redact(str(error)), 200)
    return f"no answer ({type(error).__name__})"  # its message may hold a request's address


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status of an exception, if it has one."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.cloud.storage.exceptions import InvalidResponse

    if isinstance(error, InvalidResponse):
        return int(error.response.status_code)
    return error.code if isinstance(error, GoogleAPICallError) else None
