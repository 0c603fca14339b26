"""Bounded retries: transient faults of a bucket are retried and logged once, lasting ones raise.

The libraries' own retries are switched off (they log nothing, and their deadlines multiply), so
this loop is the only one.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from bigbird_ja.process.errors import BadInput, Refused, StorageError
from bigbird_ja.process.redaction import redact

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


class CorruptError(Exception):
    """What came over the network does not match its checksum or length."""


def _seconds(name: str, default: float) -> float:
    """A duration from the environment.

    Raises:
        BadInput: a value that is no positive number.
    """
    text = os.environ.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise BadInput(f"{name}={text!r}: expected a number of seconds above 0")
    return value


def _deadline() -> float:
    """Seconds from the first try to giving up."""
    return _seconds("BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS", 300.0)


def request_timeout() -> float:
    """Longest silence within one request, in seconds: three tries fit in the deadline."""
    return min(60.0, max(_deadline() / 3, 0.2))


def options(path: str) -> dict[str, Any]:
    """Timeout and retries, for a method of the client library that may be repeated as it is."""
    return {
        "timeout": request_timeout(),
        "retry": lambda call: lambda: run(path, lambda _: call()),
    }


def run(
    path: str,
    attempt: Callable[[int], T],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """`attempt(n)` for n = 0, 1, ... until one does not meet a transient fault.

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
        _logger.warning(
            "%s: %s: trying again for up to %.0f s (further faults are not repeated here)",
            path, cause, deadline,
        )  # fmt: skip


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help."""
    import http.client

    import requests
    import urllib3
    from google.auth import exceptions as auth

    status = status_of(error)
    if status is not None:
        return status in _TRANSIENT_STATUS
    if isinstance(error, auth.GoogleAuthError):
        return isinstance(error, auth.TransportError) or bool(getattr(error, "retryable", False))
    return isinstance(
        error,
        (
            CorruptError,
            ConnectionError,
            TimeoutError,
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
            requests.exceptions.ContentDecodingError,
            urllib3.exceptions.HTTPError,  # raw downloads let these through
            http.client.HTTPException,
        ),
    )


def translate(error: Exception, path: str) -> Exception:
    """The exception that callers handle, for one that a retry would not help."""
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
            f"{path}: no Google Cloud credentials: run `gcloud auth application-default login`"
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
    """One short line about a fault, without addresses that carry secrets."""
    status = status_of(error)
    if status is not None:
        return f"{status} {redact(_server_message(error))}"[:200].strip()
    if isinstance(error, CorruptError):
        return str(error)
    return f"no answer ({type(error).__name__})"  # its message may hold a request's address


def _server_message(error: Any) -> str:
    """The server's own message, without the request's address that the library puts before it."""
    try:
        return str(error.response.json()["error"]["message"])
    except (AttributeError, ValueError, TypeError, KeyError):
        return type(error).__name__


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status that an exception stands for, if there is one."""
    from google.api_core.exceptions import GoogleAPICallError

    return error.code if isinstance(error, GoogleAPICallError) else None


def _with_status(error: Exception) -> Exception:
    """The exception for the answer's status, where the library's media classes raised theirs."""
    from google.api_core.exceptions import from_http_response
    from google.cloud.storage.exceptions import InvalidResponse

    return from_http_response(error.response) if isinstance(error, InvalidResponse) else error
