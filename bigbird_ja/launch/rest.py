"""Calls Google's services by JSON over HTTP, and translates their refusals."""

import contextlib
import datetime
import email.utils
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from bigbird_ja.process.errors import BadInput

CALL_SECONDS = 30.0  # one request
RETRY_SECONDS = 60.0  # all requests of one call
CLOCK_SECONDS = 3600.0  # our own clock is trusted so long after the service's last answer
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
Json = dict[str, Any]


class Kind(Enum):
    """The kinds of faults that the supervisor tells apart."""

    STOCKOUT = "stockout"  # no capacity now: another zone, or later
    QUOTA = "quota"  # the project may not have so many
    PERMISSION = "permission"  # the person or service account may not, or the API is off
    NOT_FOUND = "not_found"
    EXISTS = "exists"
    BAD_REQUEST = "bad_request"  # the service does not take what we ask for
    UNAVAILABLE = "unavailable"  # the service or the network, beyond the retries
    INTERNAL = "internal"  # the operation failed for a reason of the service's own


class ServiceFault(Exception):
    """A refusal or failure of the service.

    Args:
        kind: as the supervisor tells it apart.
        message: as the service wrote it.
        listed: machines that a listing shows in spite of it, where only a part did not answer.
    """

    def __init__(self, kind: Kind, message: str, listed: Sequence[Any] = ()) -> None:
        super().__init__(f"{kind.value}: {message}")
        self.kind, self.listed = kind, tuple(listed)
        self.message = " ".join(message.split())

    @property
    def is_switched_off(self) -> bool:
        """Tell whether the project does not use the service at all."""
        return self.kind is Kind.PERMISSION and bool(_OFF.search(self.message))

    @property
    def is_passing(self) -> bool:
        """Tell whether it is the service's own trouble, which is waited out for hours."""
        return self.kind in (Kind.UNAVAILABLE, Kind.INTERNAL)


_EXHAUSTED, _PERMISSION, _UNAUTHENTICATED = 8, 7, 16
_KINDS = {  # by google.rpc.Code, as operations carry it
    3: Kind.BAD_REQUEST,
    4: Kind.UNAVAILABLE,  # deadline exceeded
    5: Kind.NOT_FOUND,
    6: Kind.EXISTS,
    9: Kind.BAD_REQUEST,  # failed precondition
    10: Kind.UNAVAILABLE,  # aborted
    14: Kind.UNAVAILABLE,
}
_CODE_OF_HTTP = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 412: 9, 429: 8, 502: 14, 503: 14, 504: 4}
_OFF = re.compile("disabled|has not been used", re.IGNORECASE)
_RATE = re.compile(r"per minute|per second|rate ?limit|too many requests")


def check_all_answered(missed: Iterable[str], listed: Sequence[Any]) -> None:
    """Raise where a listing lacks some places.

    Args:
        missed: resource names of the places that did not answer.
        listed: machines of the others.

    Raises:
        ServiceFault: it names the places, and has `listed`.
    """
    places = sorted({name.rsplit("/")[-1] for name in missed})
    if places:
        raise ServiceFault(Kind.UNAVAILABLE, f"no answer from {', '.join(places)}", listed)


def fault_of_status(code: int, message: str) -> ServiceFault:
    """Translate a failed operation's google.rpc.Status.

    Stock-out, exhausted quota and too many requests share code 8 and differ in their words only:
    quota messages contain "Quota" (hashicorp/terraform-provider-google#10222 and #21243, a public
    log), those on the rate of requests "per minute" or "rate" as well (assumed).
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


def fault_of_answer(status: int, body: Any) -> ServiceFault:
    """Translate an HTTP answer of 400 or more, whose JSON may hold the service's message."""
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    code = 10 if error.get("status") == "ABORTED" else _CODE_OF_HTTP.get(status, 13)
    return fault_of_status(code, str(error.get("message") or f"HTTP status {status}"))


def advice(fault: ServiceFault, project: str, zone: str, accelerator_type: str) -> str:
    """Say in one line what happened, and what the person can do about it."""
    answer = f'the service answered: "{fault.message}"'
    lowered = fault.message.lower()
    if fault.kind is Kind.QUOTA:
        return (
            f"project {project} has no quota for {accelerator_type} in {zone} ({answer}): ask for"
            " more on the console's IAM & Admin > Quotas page (service tpu.googleapis.com, for v5e"
            " and later compute.googleapis.com; spot and preemptible have a quota of their own),"
            " delete dead TPUs that still hold it (`bigbird-ja down`), or name other zones with"
            " --zones"
        )
    if fault.is_switched_off:
        name, api = ("Compute Engine", "compute") if "compute" in lowered else ("Cloud TPU", "tpu")
        return (
            f"the {name} API is off in project {project} ({answer}):"
            f" gcloud services enable {api}.googleapis.com --project={project}"
        )
    if fault.kind is Kind.PERMISSION and ("actas" in lowered or "service account" in lowered):
        return (
            f"you may not run as the TPU's service account ({answer}): grant yourself"
            " roles/iam.serviceAccountUser on it (docs/cloud-setup.md has the command)"
        )
    if fault.kind is Kind.PERMISSION and "credentials" in lowered:
        return (
            f"no valid Google credentials ({answer}): run `gcloud auth application-default login`"
        )
    if fault.kind is Kind.PERMISSION:
        return (
            f"not allowed in project {project}, zone {zone} ({answer}): grant roles/tpu.admin"
            " (v5e and later: roles/compute.instanceAdmin.v1) to the account that runs `launch`"
            " (docs/cloud-setup.md has the commands), and check the names of project and zone"
        )
    if fault.kind is Kind.BAD_REQUEST:
        return (
            f"the service does not take the request for {accelerator_type} in {zone} ({answer}):"
            " check --accelerator_type, --zones, --runtime_version and --network"
        )
    return f"{fault.kind.value} in {zone}: {answer}"


class Rest:
    """Signed requests below `base`, each with a timeout and bounded retries.

    Args:
        base: address of the service's API.
        session: a `google.auth.transport.requests.AuthorizedSession`.
        call_seconds, retry_seconds: bounds of one request and of one call with its retries.
    """

    def __init__(
        self,
        base: str,
        session: Any,
        call_seconds: float = CALL_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._base, self._session = base.rstrip("/"), session
        self._call_seconds, self._retry_seconds = call_seconds, retry_seconds
        self._clock: tuple[float, float] | None = None  # the service's UNIX seconds, ours then

    def call(
        self, method: str, path: str, body: Json | None = None, query: Mapping[str, str] = {}
    ) -> Json:
        """Call the service; return the answer's JSON.

        While the service is unavailable it is asked again.

        Raises:
            ServiceFault: refused, or no answer in time.
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
            return retry(self._request)(method, path, body, query)
        except RetryError as error:
            raise error.cause from None

    def _request(self, method: str, path: str, body: Json | None, query: Mapping[str, str]) -> Json:
        from google.auth import exceptions

        url, seconds = f"{self._base}/{path}", self._call_seconds
        try:
            answer = self._session.request(
                method,
                url,
                json=body,
                params=dict(query),
                timeout=seconds,
                max_allowed_time=seconds,
            )
        except (exceptions.TransportError, OSError) as error:  # requests' errors are OSErrors
            raise ServiceFault(Kind.UNAVAILABLE, str(error) or type(error).__name__) from error
        except exceptions.GoogleAuthError as error:
            raise ServiceFault(Kind.PERMISSION, f"credentials: {error}") from error
        with contextlib.suppress(TypeError, ValueError):
            date = email.utils.parsedate_to_datetime(answer.headers.get("Date", ""))
            self._clock = (date.timestamp(), time.monotonic())
        values: Any = {}
        try:
            values = answer.json() if answer.content else {}
        except ValueError as error:
            if answer.status_code < 400:
                raise ServiceFault(Kind.INTERNAL, f"{path}: no JSON: {error}") from error
        if answer.status_code >= 400:
            raise fault_of_answer(answer.status_code, values)
        return dict(values)

    def find(self, path: str) -> Json | None:
        """Get one resource by its full name; None where there is none."""
        try:
            return self.call("GET", path)
        except ServiceFault as fault:
            if fault.kind is Kind.NOT_FOUND:
                return None
            raise

    def pages(self, path: str, query: Mapping[str, str] = {}) -> Iterator[Json]:
        """Iterate over all pages of a listing."""
        token = ""
        while True:
            more = {"pageToken": token} if token else {}
            page = self.call("GET", path, query={**query, **more})
            yield page
            token = page.get("nextPageToken", "")
            if not token:
                return

    def now(self) -> float:
        """Return UNIX seconds by the service's clock: this machine's may be wrong by hours.

        Raises:
            ServiceFault: no answer has had the time lately.
        """
        if self._clock is None or time.monotonic() - self._clock[1] > CLOCK_SECONDS:
            raise ServiceFault(Kind.UNAVAILABLE, "the service's answers have no time")
        return self._clock[0] + time.monotonic() - self._clock[1]


def connect_rest(api: str, emulator_variable: str) -> Rest:
    """Connect with the user's own credentials, or with an emulator on this machine without any.

    Args:
        api: the service's address.
        emulator_variable: of the environment: HOST:PORT of an emulator, for tests.

    Raises:
        BadInput: no credentials, with how to get them; or the emulator is not on this machine.
    """
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession

    host = os.environ.get(emulator_variable)
    if not host:
        return Rest(api, AuthorizedSession(credentials()[0]))
    if host.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
        raise BadInput(f"{emulator_variable}: must be an address of this machine")
    base = re.sub("^https://[^/]*", f"http://{host}", api)
    return Rest(base, AuthorizedSession(AnonymousCredentials()))


def credentials() -> tuple[Any, str | None]:
    """Return the user's credentials, and the project that they name, if any.

    Raises:
        BadInput: no credentials, with how to get them.
    """
    import google.auth
    from google.auth import exceptions

    try:
        return google.auth.default(scopes=[SCOPE])
    except exceptions.GoogleAuthError as error:
        raise BadInput(
            "no Google credentials: run `gcloud auth application-default login`"
        ) from error


def seconds_of(timestamp: str) -> float:
    """Convert an RFC 3339 time stamp to UNIX seconds; 0 where there is none."""
    return msgspec.convert(timestamp, datetime.datetime).timestamp() if timestamp else 0.0
