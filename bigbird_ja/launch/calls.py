"""What both services' clients need: bounds on every call, credentials, and a loopback for tests."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from bigbird_ja.launch.faults import fault_of_exception
from bigbird_ja.process.errors import BadInput

CALL_SECONDS = 30.0  # one request
RETRY_SECONDS = 60.0  # all requests of one call

T = TypeVar("T")


def bounded(call: Callable[..., Any], call_seconds: float, retry_seconds: float) -> Any:
    """`call(timeout=..., retry=...)`: no method of the clients has either by default, so one hung
    server would hang its caller.

    Raises:
        ServiceFault: whatever went wrong.
    """
    from google.api_core import exceptions
    from google.api_core.retry import Retry, if_exception_type
    from google.auth.exceptions import GoogleAuthError

    retry = Retry(
        predicate=if_exception_type(exceptions.ServiceUnavailable, exceptions.GatewayTimeout),
        initial=min(1.0, retry_seconds / 8),
        maximum=10.0,
        timeout=retry_seconds,
    )
    try:
        return call(timeout=call_seconds, retry=retry)
    except (exceptions.GoogleAPIError, GoogleAuthError, OSError) as error:
        raise fault_of_exception(error) from error


def library(name: str, package: str) -> Any:
    """`google.cloud.NAME`, a service's client library.

    Raises:
        BadInput: it is not installed.
    """
    try:
        return importlib.import_module(f"google.cloud.{name}")
    except ImportError as error:
        raise BadInput(
            f"{package} is not installed here: pip install 'bigbird-ja[launch]'"
        ) from error


def with_credentials(connect: Callable[[], T]) -> T:
    """What `connect` makes with the user's own credentials.

    Raises:
        BadInput: there are none; the message says how to get them.
    """
    from google.auth.exceptions import GoogleAuthError

    try:
        return connect()
    except GoogleAuthError as error:
        raise BadInput(
            f"no Google credentials ({' '.join(str(error).split())[:160]}):"
            " gcloud auth application-default login"
        ) from error


def check_loopback(address: str, variable: str) -> None:
    """Whether an emulator is on this machine: an open channel must not leave it.

    Raises:
        BadInput: it is not.
    """
    if address.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
        raise BadInput(f"{variable}={address}: must be an address of this machine")
