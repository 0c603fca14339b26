"""Compute Engine's REST API by JSON, for what older versions of its client library do not know.

`google-cloud-compute` knows workload policies from version 1.31 on and groups that come whole from
1.47 on; the last one that runs beside TensorFlow 2.15 is 1.30.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bigbird_ja.launch.calls import CALL_SECONDS, RETRY_SECONDS, bounded
from bigbird_ja.launch.faults import Kind, ServiceFault

OPERATION_POLL = 0.5  # seconds between two looks at a short operation
CLOCK_SECONDS = 3600.0  # our own clock goes on so long from the service's last answer

Json = dict[str, Any]


class Rest:
    """Signed requests below `base`, each with a timeout and bounded retries.

    Args:
        base: address of the project: `.../compute/v1/projects/PROJECT`.
        session: a `google.auth.transport.requests.AuthorizedSession`.
        call_seconds, retry_seconds: bounds of one request and of one call with its retries.
        monotonic, sleep: of the process.
    """

    def __init__(
        self,
        base: str,
        session: Any,
        call_seconds: float = CALL_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._base, self._session = base.rstrip("/"), session
        self._call_seconds, self._retry_seconds = call_seconds, retry_seconds
        self._monotonic, self._sleep = monotonic, sleep
        self._clock: tuple[float, float] | None = None  # the service's UNIX seconds, ours then

    def call(
        self, method: str, path: str, body: Json | None = None, query: Mapping[str, str] = {}
    ) -> Json:
        """The answer's JSON.

        Raises:
            ServiceFault: refused, or no answer.
        """

        def once(timeout: float) -> Json:
            from google.api_core import exceptions

            answer = self._session.request(
                method, f"{self._base}/{path}", json=body, params=dict(query), timeout=timeout
            )
            self._set_clock(answer.headers.get("Date", ""))
            if answer.status_code >= 400:
                raise exceptions.from_http_response(answer)
            found: Json = answer.json() if answer.content else {}
            return found

        try:
            found: Json = bounded(
                lambda timeout, retry: retry(once)(timeout), self._call_seconds, self._retry_seconds
            )
        except ValueError as error:
            raise ServiceFault(Kind.INTERNAL, f"{path}: no JSON: {error}") from error
        return found

    def pages(self, path: str, query: Mapping[str, str] = {}) -> Iterator[Json]:
        """All pages of a listing."""
        token = ""
        while True:
            more = {"pageToken": token} if token else {}
            page = self.call("GET", path, query={**query, **more})
            yield page
            token = page.get("nextPageToken", "")
            if not token:
                return

    def finish(self, path: str, seconds: float) -> Json:
        """The operation, once it is over.

        Raises:
            ServiceFault: it is not over after `seconds`.
        """
        until = self._monotonic() + seconds
        while True:
            found = self.call("GET", path)
            if found.get("status") == "DONE":
                return found
            if self._monotonic() >= until:
                raise ServiceFault(Kind.UNAVAILABLE, f"{path} is not over after {seconds:g} s")
            self._sleep(OPERATION_POLL)

    def now(self) -> float:
        """UNIX seconds by the service's clock: that of this machine may be wrong by hours.

        Raises:
            ServiceFault: the service has not told the time lately.
        """
        if self._clock is None or self._monotonic() - self._clock[1] > CLOCK_SECONDS:
            raise ServiceFault(Kind.UNAVAILABLE, "the service does not tell the time")
        return self._clock[0] + self._monotonic() - self._clock[1]

    def _set_clock(self, date: str) -> None:
        try:
            told = email.utils.parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError):
            return
        self._clock = (told, self._monotonic())
