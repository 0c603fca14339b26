"""Bounded retries: passing faults of a bucket are ridden out and said once, lasting ones end.

The libraries' own retries are switched off (they say nothing, and their deadlines multiply), so
this loop is the only one.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bigbird_ja.process.errors import BadInput, Refused, StorageError
from bigbird_ja.process.redaction import redact

T = TypeVar("T")
_logger = logging.getLogger(__name__)

_PASSING_STATUS = frozenset({408, 429, 500, 502, 503, 504})
# Faults closer together than this are one disturbance, which is said once.
_QUIET_SECONDS = 120.0
# A checksum that is wrong again and again is not a passing fault.
_MOST_CORRUPT = 4


class CorruptError(Exception):
    """What came over the network is not what its checksum or length says."""


@dataclass(frozen=True)
class Policy:
    """How long one request and its repetitions may take, in seconds.

    `BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS` sets `deadline`, `BIGBIRD_JA_STORAGE_BACKOFF_SECONDS`
    sets `first_delay`.
    """

    deadline: float = 300.0  # from the first try to giving up
    first_delay: float = 0.5  # then doubled, with jitter
    longest_delay: float = 32.0

    @property
    def request_timeout(self) -> float:
        """Longest silence within one request: three tries fit in the deadline."""
        return min(60.0, max(self.deadline / 3, 0.2))

    @staticmethod
    def from_environment(environ: Mapping[str, str] = os.environ) -> Policy:
        """The policy that the environment asks for.

        Raises:
            BadInput: a value that is no positive number.
        """
        values = {}
        for key, name in (
            ("deadline", "BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS"),
            ("first_delay", "BIGBIRD_JA_STORAGE_BACKOFF_SECONDS"),
        ):
            if name in environ:
                values[key] = _positive(environ[name], name)
        return Policy(**values)


def _positive(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise BadInput(f"{name}={text!r}: expected a number of seconds above 0")
    return value


class _Faults:
    """Counts faults, and says the first of each disturbance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = -1e18

    def note(self, path: str, cause: str, policy: Policy, now: float) -> None:
        with self._lock:
            is_new = now - self._last > _QUIET_SECONDS
            self._last = now
        if is_new:
            _logger.warning(
                "%s: %s: trying again for up to %.0f s (further faults are not repeated here)",
                path, cause, policy.deadline,
            )  # fmt: skip


_faults = _Faults()
_random = random.Random()  # its own: jitter must not move anybody's seeded generator


def run(
    path: str,
    attempt: Callable[[int], T],
    policy: Policy | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """`attempt(n)` for n = 0, 1, ... until one does not meet a passing fault.

    From n = 1 on, an earlier try may have done its work with only the reply lost.

    Raises:
        StorageError: the fault lasted beyond the deadline; names `path` and the cause.
        FileNotFoundError, PermissionError: with `path` as their file name.
    """
    policy = policy or Policy.from_environment()
    start, delay, corrupt, tries = clock(), policy.first_delay, 0, 0
    while True:
        try:
            return attempt(tries)
        except Exception as raised:
            error = _of_status(raised)
            if not is_passing(error):
                raise translate(error, path) from error
            now, cause = clock(), reason(error)
            tries += 1
            corrupt += isinstance(error, CorruptError)
            wait = delay * _random.uniform(0.5, 1.0)
            if now + wait > start + policy.deadline or corrupt >= _MOST_CORRUPT:
                raise StorageError(
                    f"{path}: {cause}: failed {tries} times in {now - start:.0f} s: check the"
                    " bucket and the network, then run the same command again"
                ) from error
            _faults.note(path, cause, policy, now)
            sleep(wait)
            delay = min(2 * delay, policy.longest_delay)


def is_passing(error: BaseException) -> bool:
    """Whether trying again may help."""
    import http.client

    import requests
    import urllib3
    from google.auth import exceptions as auth

    status = status_of(error)
    if status is not None:
        return status in _PASSING_STATUS
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
    """The exception that callers know, for one that a retry would not help."""
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
        return f"{status} {redact(_server_words(error))}"[:200].strip()
    if isinstance(error, CorruptError):
        return str(error)
    return _NAMES.get(type(error).__name__, f"no answer ({type(error).__name__})")


# The libraries' own words hold whole request addresses; these say the same to a person.
_NAMES = {
    "ReadTimeout": "no answer in time",
    "ConnectTimeout": "no connection in time",
    "ConnectionError": "connection lost",
    "ConnectionResetError": "connection lost",
    "ChunkedEncodingError": "connection lost in mid-transfer",
    "ProtocolError": "connection lost in mid-transfer",
    "IncompleteRead": "connection lost in mid-transfer",
    "ReadTimeoutError": "no answer in time",
    "TransportError": "the credentials' server does not answer",
}


def _server_words(error: Any) -> str:
    """The server's own message, without the request's address that the library puts before it."""
    try:
        return str(error.response.json()["error"]["message"])
    except (AttributeError, ValueError, TypeError, KeyError):
        return type(error).__name__


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status that an exception stands for, if there is one."""
    from google.api_core.exceptions import GoogleAPICallError

    return error.code if isinstance(error, GoogleAPICallError) else None


def _of_status(error: Exception) -> Exception:
    """The exception of the answer's status, for one of the library's media classes."""
    from google.api_core.exceptions import from_http_response
    from google.cloud.storage.exceptions import InvalidResponse

    return from_http_response(error.response) if isinstance(error, InvalidResponse) else error
