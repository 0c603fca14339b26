"""What the Cloud TPU service answers instead of a TPU, in words that a person can act on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Any

# google.rpc.Code, as operations carry it.
_OK, _UNKNOWN, _INVALID, _DEADLINE, _NOT_FOUND, _EXISTS = 0, 2, 3, 4, 5, 6
_PERMISSION, _EXHAUSTED, _PRECONDITION, _ABORTED, _INTERNAL, _UNAVAILABLE = 7, 8, 9, 10, 13, 14
_UNAUTHENTICATED = 16


_RATE = re.compile(r"per minute|per second|rate ?limit|too many requests")


class Kind(Enum):
    """What a fault means for the supervisor."""

    STOCKOUT = "stockout"  # no capacity now: another zone, or later
    QUOTA = "quota"  # the project may not have so many
    PERMISSION = "permission"  # the person or service account may not, or the API is off
    NOT_FOUND = "not_found"
    EXISTS = "exists"
    BAD_REQUEST = "bad_request"  # the service does not take what we ask for
    UNAVAILABLE = "unavailable"  # the service or the network, beyond the retries
    INTERNAL = "internal"  # the operation failed for a reason of the service's own


class ServiceFault(Exception):
    """The service refused or failed. `kind` says what to do, `message` is the service's own, and
    `found` what a listing found where it could look."""

    def __init__(self, kind: Kind, message: str, found: Sequence[Any] = ()) -> None:
        super().__init__(f"{kind.value}: {message}")
        self.kind, self.found = kind, tuple(found)
        self.message = " ".join(message.split())

    @property
    def is_switched_off(self) -> bool:
        """Whether the project does not use the service at all."""
        is_off = re.search("disabled|has not been used", self.message.lower())
        return self.kind is Kind.PERMISSION and is_off is not None

    @property
    def is_passing(self) -> bool:
        """Whether it is the service's trouble and not ours: it is waited out, for hours."""
        return self.kind in (Kind.UNAVAILABLE, Kind.INTERNAL)


def fault_of_status(code: int, message: str) -> ServiceFault:
    """A failed operation's google.rpc.Status.

    Stock-out, exhausted quota and too many requests share code 8 and differ in their words only:
    quota messages say "Quota" (hashicorp/terraform-provider-google#10222 and #21243, a public log),
    those on the rate of requests "per minute" or "rate" as well (assumed).
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
    kinds = {
        _NOT_FOUND: Kind.NOT_FOUND,
        _EXISTS: Kind.EXISTS,
        _INVALID: Kind.BAD_REQUEST,
        _PRECONDITION: Kind.BAD_REQUEST,
        _UNAVAILABLE: Kind.UNAVAILABLE,
        _DEADLINE: Kind.UNAVAILABLE,
        _ABORTED: Kind.UNAVAILABLE,
    }
    return ServiceFault(kinds.get(code, Kind.INTERNAL), message)


def fault_of_exception(error: Exception) -> ServiceFault:
    """An exception of google-api-core or google-auth, from the gRPC or the REST transport.

    REST raises the parents of gRPC's classes (Conflict for AlreadyExists, TooManyRequests for
    ResourceExhausted), so parents are what is compared.
    """
    from google.api_core import exceptions
    from google.auth import exceptions as auth_exceptions

    message = getattr(error, "message", None) or str(error) or type(error).__name__
    if isinstance(error, auth_exceptions.TransportError):
        return ServiceFault(Kind.UNAVAILABLE, message)
    if isinstance(error, auth_exceptions.GoogleAuthError):
        return ServiceFault(Kind.PERMISSION, f"credentials: {message}")
    if isinstance(error, (exceptions.RetryError, OSError)):  # requests' errors are OSErrors
        cause = getattr(error, "cause", None)
        return ServiceFault(Kind.UNAVAILABLE, str(cause or message))
    codes: list[tuple[type[Exception], int]] = [
        (exceptions.NotFound, _NOT_FOUND),
        (exceptions.Conflict, _EXISTS),
        (exceptions.Forbidden, _PERMISSION),
        (exceptions.Unauthorized, _UNAUTHENTICATED),
        (exceptions.TooManyRequests, _EXHAUSTED),
        (exceptions.BadRequest, _INVALID),
        (exceptions.GatewayTimeout, _DEADLINE),
        (exceptions.ServiceUnavailable, _UNAVAILABLE),
    ]
    for kind, code in codes:
        if isinstance(error, kind):
            return fault_of_status(code, message)
    return ServiceFault(Kind.INTERNAL, message)


def advice(fault: ServiceFault, project: str, zone: str, accelerator_type: str) -> str:
    """One line: what happened, and what the person can do about it."""
    said = f'the service said: "{fault.message}"'
    lowered = fault.message.lower()
    if fault.kind is Kind.QUOTA:
        return (
            f"project {project} has no quota for {accelerator_type} in {zone} ({said}): ask for"
            " more on the console's IAM & Admin > Quotas page (service tpu.googleapis.com, for v5e"
            " and later compute.googleapis.com; spot and preemptible have a quota of their own),"
            " delete dead TPUs that still hold it (`bigbird-ja down`), or name other zones with"
            " --zones"
        )
    if fault.is_switched_off:
        api = "compute" if "compute" in lowered else "tpu"
        return (
            f"the {'Compute Engine' if api == 'compute' else 'Cloud TPU'} API is off in project"
            f" {project} ({said}): gcloud services enable {api}.googleapis.com --project={project}"
        )
    if fault.kind is Kind.PERMISSION and ("actas" in lowered or "service account" in lowered):
        return (
            f"you may not run as the TPU's service account ({said}): grant yourself"
            " roles/iam.serviceAccountUser on it (docs/cloud-setup.md has the command)"
        )
    if fault.kind is Kind.PERMISSION and "credentials" in lowered:
        return f"no valid Google credentials ({said}): gcloud auth application-default login"
    if fault.kind is Kind.PERMISSION:
        return (
            f"not allowed in project {project}, zone {zone} ({said}): grant roles/tpu.admin"
            " (v5e and later: roles/compute.instanceAdmin.v1) to the account that runs `launch`"
            " (docs/cloud-setup.md has the commands), and check the names of project and zone"
        )
    if fault.kind is Kind.BAD_REQUEST:
        return (
            f"the service does not take the request for {accelerator_type} in {zone} ({said}):"
            " check --accelerator_type, --zones, --runtime_version and --network"
        )
    return f"{fault.kind.value} in {zone}: {said}"
