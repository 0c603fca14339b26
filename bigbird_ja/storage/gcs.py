"""Sends requests to Google Cloud Storage, with bounded retries, and reads one generation.

Transient faults are retried and logged once, lasting ones raise. The libraries' own retries are
switched off (they log nothing, and their deadlines multiply), so `run` is the only loop.
"""

import errno
import io
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from bigbird_ja.process import redact
from bigbird_ja.process.console import shortened
from bigbird_ja.process.errors import Refused, StorageError
from bigbird_ja.storage.paths import Stat, encode_crc32c, split_remote

T = TypeVar("T")
_logger = logging.getLogger(__name__)

_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})
# Faults closer together than this are one disturbance, which is logged once.
_QUIET_SECONDS = 120.0
# A checksum that is wrong again and again is not a transient fault.
_MAX_CORRUPT = 4
_LONGEST_DELAY = 32.0  # seconds; the first one is doubled up to this, with jitter

_lock = threading.Lock()
_last_fault = -1e18  # by the clock of `run`
_random = random.Random()  # not the global one: jitter must not move anybody's seeded generator
CHUNK = 8 << 20  # bytes per request

_local = threading.local()


def client() -> Any:
    """Returns the client of this thread; a forked child has its own connections.

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
    """Returns the object of a gs:// path; nothing is requested yet."""
    bucket, name = split_remote(path)
    return client().bucket(bucket).blob(name)


class ReplacedError(StorageError):
    """Reports that the object was written anew while it was being read."""


class DamagedError(StorageError):
    """Reports that the bytes read do not match the object's checksum."""


class ObjectReader(io.RawIOBase):
    """Streams one generation of an object, in chunks.

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
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position; bytes that are skipped are not fetched."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._info.size}[whence]
        self._position = max(0, base + offset)
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
    """Reads exactly `count` bytes from `start` of the generation `token`.

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
            timeout=request_timeout(),
            retry=None,
        )
        if len(data) != count:
            raise CorruptError(f"short reply ({len(data)} of {count} bytes)")
        return data

    try:
        return run(path, attempt)
    except PreconditionFailed as error:
        raise ReplacedError(f"{path}: replaced while it was being read: run again") from error


class CorruptError(Exception):
    """Reports bytes from the network that do not match their checksum or length."""


def _seconds(name: str, default: float) -> float:
    """Reads a duration from the environment."""
    return float(os.environ.get(name, default))


def _deadline() -> float:
    """Returns the seconds from the first try to giving up."""
    return _seconds("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", 300.0)


def request_timeout() -> float:
    """Returns the longest silence within a request, in seconds; the deadline has room for three."""
    return min(60.0, max(_deadline() / 3, 0.2))


def options(path: str) -> dict[str, Any]:
    """Returns timeout and retries for a method of the client library that may be repeated."""
    return {"timeout": request_timeout(), "retry": lambda call: lambda: run(path, lambda _: call())}


def run(
    path: str,
    attempt: Callable[[int], T],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Calls `attempt(n)` for n = 0, 1, ... until one does not meet a transient fault.

    From n = 1 on, an earlier try may have done its work with only the reply lost.

    Raises:
        StorageError: the fault lasted beyond the deadline; names `path` and the cause.
        FileNotFoundError, PermissionError: with `path` as their file name.
    """
    deadline, delay = _deadline(), _seconds("BIGBIRD_JA_STORAGE_BACKOFF_SECONDS", 0.5)
    start, corrupt, tries = clock(), 0, 0
    while True:
        try:
            return attempt(tries)
        except Exception as raised:
            error = _with_status(raised)
            if not is_transient(error):
                raise translate(error, path) from error
            now, cause = clock(), reason(error)
            tries += 1
            corrupt += isinstance(error, CorruptError)
            wait = delay * _random.uniform(0.5, 1.0)
            if now + wait > start + deadline or corrupt >= _MAX_CORRUPT:
                raise StorageError(
                    f"{path}: {cause}: failed {tries} times in {now - start:.0f} s: check the"
                    " bucket and the network, then run the same command again"
                ) from error
            _log_first(path, cause, deadline, now)
            sleep(wait)
            delay = min(2 * delay, _LONGEST_DELAY)


def _log_first(path: str, cause: str, deadline: float, now: float) -> None:
    """Logs the first fault of each disturbance."""
    global _last_fault
    with _lock:
        is_new = now - _last_fault > _QUIET_SECONDS
        _last_fault = now
    if is_new:
        again = f"trying again for up to {deadline:.0f} s (further faults are not repeated here)"
        _logger.warning("%s: %s: %s", path, cause, again)


def is_transient(error: BaseException) -> bool:
    """Checks whether trying again may help."""
    import http.client

    import requests
    import urllib3
    from google.auth import exceptions as auth
    from requests import exceptions

    status = status_of(error)
    if status is not None:
        return status in _TRANSIENT_STATUS
    if isinstance(error, auth.GoogleAuthError):
        return isinstance(error, auth.TransportError) or bool(getattr(error, "retryable", False))
    lost: tuple[type[Exception], ...] = (ConnectionError, TimeoutError, http.client.HTTPException)
    lost += (requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError)
    damaged = (CorruptError, exceptions.ChunkedEncodingError, exceptions.ContentDecodingError)
    return isinstance(error, (*lost, *damaged))


def translate(error: Exception, path: str) -> Exception:
    """Returns the exception that callers handle, for one that a retry would not help."""
    from google.auth import exceptions as auth

    status = status_of(error)
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


def reason(error: BaseException) -> str:
    """Words a fault in one short line, without addresses that carry secrets."""
    status = status_of(error)
    if status is not None:
        try:  # the library puts the request's address before the server's own message
            message = str(error.response.json()["error"]["message"])  # type: ignore[attr-defined]
        except (AttributeError, ValueError, TypeError, KeyError):
            message = type(error).__name__
        return shortened(f"{status} {redact(message)}", 200)
    if isinstance(error, CorruptError):
        return str(error)
    return f"no answer ({type(error).__name__})"  # its message may hold a request's address


def status_of(error: BaseException | None) -> int | None:
    """Returns the HTTP status that an exception stands for, if there is one."""
    from google.api_core.exceptions import GoogleAPICallError

    return error.code if isinstance(error, GoogleAPICallError) else None


def _with_status(error: Exception) -> Exception:
    """Returns the exception for the answer's status, where a media class raised its own."""
    from google.api_core.exceptions import from_http_response
    from google.cloud.storage.exceptions import InvalidResponse

    return from_http_response(error.response) if isinstance(error, InvalidResponse) else error
