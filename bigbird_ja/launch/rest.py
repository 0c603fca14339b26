"""JSON client of Google's services, with a classification of their faults."""

import contextlib
import datetime
import email.utils
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec

from bigbird_ja.errors import BadInput
from bigbird_ja.storage import decode

# Timeout of one request.
CALL_SECONDS = 30.0
# Maximum time of one call with all retries.
RETRY_SECONDS = 60.0
# Maximum age of an answer from which the service's time is computed.
CLOCK_SECONDS = 3600.0
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
Json = dict[str, Any]
T = TypeVar("T")


class Answer(msgspec.Struct, rename="camel", frozen=True):
    """Base class of the services' answers. A missing field has its default value."""


class Status(Answer, frozen=True):
    """Failure in the form of google.rpc.Status."""

    code: int = 13
    message: str = ""


class Kind(Enum):
    """Kinds of faults, each with a different reaction of the supervisor.

    Attributes:
        STOCKOUT: The zone has no capacity now.
        QUOTA: The project's quota is too low.
        PERMISSION: The user or the service account lacks a role, or the API is off.
        NOT_FOUND: The resource does not exist.
        EXISTS: A resource with this name exists.
        BAD_REQUEST: The service refuses the request's content.
        UNAVAILABLE: The service or the network failed, or a rate limit was exceeded.
        INTERNAL: The operation failed because of an error of the service.
    """

    STOCKOUT = "stockout"
    QUOTA = "quota"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    EXISTS = "exists"
    BAD_REQUEST = "bad_request"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


class ServiceFault(Exception):
    """Refusal or failure of a service.

    Args:
        kind: kind of the fault.
        message: message of the service.
        listed: machines of the zones that answered, if a listing is incomplete.
    """

    def __init__(self, kind: Kind, message: str, listed: Sequence[Any] = ()) -> None:
        super().__init__(f"{kind.value}: {message}")
        self.kind, self.listed = kind, tuple(listed)
        self.message = " ".join(message.split())

    @property
    def is_switched_off(self) -> bool:
        """Whether the API is off in the project."""
        return self.kind is Kind.PERMISSION and bool(_OFF.search(self.message))

    @property
    def is_passing(self) -> bool:
        """Whether the service failed but did not refuse, so that the supervisor keeps retrying."""
        return self.kind in (Kind.UNAVAILABLE, Kind.INTERNAL)


_EXHAUSTED, _PERMISSION, _UNAUTHENTICATED = 8, 7, 16
# Kind of fault by google.rpc.Code. The names of these codes are, in this order: INVALID_ARGUMENT,
# DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, ABORTED, UNAVAILABLE.
_KINDS = {
    3: Kind.BAD_REQUEST,
    4: Kind.UNAVAILABLE,
    5: Kind.NOT_FOUND,
    6: Kind.EXISTS,
    9: Kind.BAD_REQUEST,
    10: Kind.UNAVAILABLE,
    14: Kind.UNAVAILABLE,
}
_CODE_OF_HTTP = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 412: 9, 429: 8, 502: 14, 503: 14, 504: 4}
_OFF = re.compile("disabled|has not been used", re.IGNORECASE)
_RATE = re.compile(r"per minute|per second|rate ?limit|too many requests")


def check_all_answered(missed: Iterable[str], listed: Sequence[Any]) -> None:
    """Check that a listing is complete.

    Args:
        missed: zones that did not answer.
        listed: machines of the other zones.

    Raises:
        ServiceFault: Zones are missing. The fault contains `listed`.
    """
    if places := ", ".join(sorted({*missed})):
        raise ServiceFault(Kind.UNAVAILABLE, f"no answer from {places}", listed)


def make_fault(code: int, message: str) -> ServiceFault:
    """Return the fault for a failed operation's google.rpc.Status.

    Code 8 stands for stock-out, exhausted quota and too many requests, which differ only in their
    messages. Quota messages contain "Quota" (hashicorp/terraform-provider-google#10222 and #21243).
    Messages about too many requests also contain "per minute" or "rate" (assumed).
    """
    lowered = message.lower()
    if code == _EXHAUSTED and _RATE.search(lowered):
        return ServiceFault(Kind.UNAVAILABLE, message)
    if code == _EXHAUSTED:
        return ServiceFault(Kind.QUOTA if "quota" in lowered else Kind.STOCKOUT, message)
    if code in (_PERMISSION, _UNAUTHENTICATED):
        return ServiceFault(Kind.PERMISSION, message)
    if "no more capacity" in lowered or ("insufficient" in lowered and "capacity" in lowered):
        return ServiceFault(Kind.STOCKOUT, message)
    return ServiceFault(_KINDS.get(code, Kind.INTERNAL), message)


def parse_fault(status: int, body: Any) -> ServiceFault:
    """Return the fault for an HTTP status of at least 400, with the message in the body."""
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    code = 10 if error.get("status") == "ABORTED" else _CODE_OF_HTTP.get(status, 13)
    return make_fault(code, str(error.get("message") or f"HTTP status {status}"))


class Rest:
    """Client for authenticated requests to one API, with a timeout and limited retries.

    Args:
        base: address of the service's API.
        session: a `google.auth.transport.requests.AuthorizedSession`.
        retry_seconds: maximum time of one call with its retries.
    """

    call_seconds = CALL_SECONDS

    def __init__(self, base: str, session: Any, retry_seconds: float = RETRY_SECONDS) -> None:
        self._base, self._session = base.rstrip("/"), session
        self._retry_seconds = retry_seconds
        # UNIX seconds in the service's last answer, and the monotonic time of its arrival.
        self._clock: tuple[float, float] | None = None

    def call(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: Json | None = None,
        query: Mapping[str, str] = {},
    ) -> T:
        """Send a request to the service, and decode its JSON answer to the type `kind`.

        The request is repeated while the service is unavailable, within a time limit.

        Raises:
            ServiceFault: The service refused, did not answer in time, or its answer cannot be
                decoded to `kind`.
        """
        from google.api_core.exceptions import RetryError
        from google.api_core.retry import Retry

        retry = Retry(
            lambda error: isinstance(error, ServiceFault) and error.kind is Kind.UNAVAILABLE,
            initial=min(1.0, self._retry_seconds / 8),
            maximum=10.0,
            timeout=self._retry_seconds,
        )
        try:
            content = retry(self._request)(method, path, body, query)
        except RetryError as error:
            raise error.cause from None
        return _decode(content or b"{}", kind, path)

    def _request(
        self, method: str, path: str, body: Json | None, query: Mapping[str, str]
    ) -> bytes:
        from google.auth import exceptions

        url, seconds = f"{self._base}/{path}", self.call_seconds
        try:
            answer = self._session.request(
                method,
                url,
                json=body,
                params=dict(query),
                timeout=seconds,
                max_allowed_time=seconds,
            )
        except (exceptions.TransportError, OSError) as error:
            # The exceptions of the library `requests` are subclasses of OSError.
            raise ServiceFault(Kind.UNAVAILABLE, str(error) or type(error).__name__) from error
        except exceptions.GoogleAuthError as error:
            raise ServiceFault(Kind.PERMISSION, f"credentials: {error}") from error
        with contextlib.suppress(TypeError, ValueError):
            date = email.utils.parsedate_to_datetime(answer.headers.get("Date", ""))
            self._clock = (date.timestamp(), time.monotonic())
        if answer.status_code >= 400:
            values: Any = {}
            with contextlib.suppress(ValueError, RecursionError):
                values = msgspec.json.decode(answer.content)
            raise parse_fault(answer.status_code, values)
        return bytes(answer.content)

    def find(self, path: str, kind: type[T]) -> T | None:
        """Return a resource by its full name, or None if it does not exist."""
        try:
            return self.call("GET", path, kind)
        except ServiceFault as fault:
            if fault.kind is Kind.NOT_FOUND:
                return None
            raise

    def list_items(
        self, path: str, key: str, kind: type[list[T]], query: Mapping[str, str] = {}
    ) -> tuple[list[T], list[str]]:
        """List resources, from all pages of a listing.

        Args:
            path: address of the listing. An `aggregated` listing groups its items by zone.
            key: key of the items in an answer.
            kind: type of the list of items.
            query: query parameters in addition to the page's token.

        Returns:
            The items of all pages, and the zones that did not answer.
        """
        items, missed, token = list[T](), list[str](), ""
        while True:
            more = {"pageToken": token} if token else {}
            page = self.call("GET", path, dict[str, msgspec.Raw], query={**query, **more})
            scopes = [page]
            if "aggregated" in path.split("/"):
                by_zone = _decode(page.get("items", b"{}"), dict[str, dict[str, msgspec.Raw]], path)
                scopes = [*by_zone.values()]
            for scope in scopes:
                items += _decode(scope.get(key, b"[]"), kind, f"{path}: {key}")
            for name in ("unreachable", "unreachables"):
                missed += _decode(page.get(name, b"[]"), list[str], path)
            before, token = token, _decode(page.get("nextPageToken", b'""'), str, path)
            if token in ("", before):
                return items, [name.rsplit("/")[-1] for name in missed]

    def get_time(self) -> float | None:
        """Return UNIX seconds by the service's clock, or None without an answer in the last hour.

        The service's clock is used, since the clock of this computer may be wrong by hours.
        """
        if self._clock is None or time.monotonic() - self._clock[1] > CLOCK_SECONDS:
            return None
        return self._clock[0] + time.monotonic() - self._clock[1]


def _decode(data: bytes, kind: type[T], path: str) -> T:
    try:
        return decode.decode_json(data, kind, path)
    except BadInput as error:
        raise ServiceFault(Kind.INTERNAL, f"unexpected answer: {error}") from error


def connect_rest(api: str) -> Rest:
    """Connect to a service's address with the user's own credentials.

    Raises:
        BadInput: No credentials are found. The message contains the command that creates them.
    """
    from google.auth.transport.requests import AuthorizedSession

    return Rest(api, AuthorizedSession(get_credentials()[0]))


def get_credentials() -> tuple[Any, str | None]:
    """Return the user's credentials, and the project in them, if any.

    Raises:
        BadInput: No credentials are found. The message contains the command that creates them.
    """
    import google.auth
    from google.auth import exceptions

    try:
        return google.auth.default(scopes=[SCOPE])
    except exceptions.GoogleAuthError as error:
        raise BadInput(
            "no Google credentials: run `gcloud auth application-default login`"
        ) from error


def convert_to_seconds(time: datetime.datetime | None) -> float:
    """Convert a time stamp to UNIX seconds, and None to 0."""
    return time.timestamp() if time else 0.0
