"""Delete a rented machine at the end of its lease, without the supervisor.

Runs on the machine itself, started before anything is installed there, from the text of this file
in the start-up script: so it uses only the standard library of Python 3.8, and no apostrophe.
Its first argument is a verb, its second its terms (`Terms`, as JSON):

    watch            counts every `poll` seconds, and deletes the machine when its time is over
    report STATUS    reports the exit status of training to the supervisor
    get URL FILE     downloads one file from the bucket

Rules that save money:
- Every request has a timeout and a deadline. `gcloud` is not used: it may hang.
- The counters are in a file on disk that is overwritten in place, so that a full disk does not stop
  them, and in memory (`/run`). A watcher that is started again goes on counting.
- Only a new `global_step` is progress; a heartbeat that is merely newer is not.
- Time is counted, stored and judged before anything is read. Whatever reads, copies or reports is
  called by `attempt`: its failure, with any exception, means "not seen". Answers, and what is
  stored of them, have a maximum size.
- Seconds are counted by a monotonic clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

CALL_SECONDS = 20.0  # timeout of one read of a request
DEADLINE_SECONDS = 60.0  # deadline of a whole request (that of `get` is longer)
GET_SECONDS = 600.0
RECORD_BYTES = 1024  # fixed size of the file of counters
LOG_BYTES = 65536  # maximum size of the copied end of the log
ANSWER_BYTES = 65536  # maximum size of an answer, or of a file that is read at each poll
GET_BYTES = 256 << 20
RENEWAL_LENGTH = 32  # characters of a renewal that are compared and stored
STALLED_SECONDS = 5400.0  # maximum time without another step
# Maximum that a reboot counts, as the wall clock may have been set.
REBOOT_SECONDS = 900.0
# Maximum from request to boot that counts, as clocks differ.
CREATION_SECONDS = 1800.0
STALLED = 76  # exit status, as in the command line

T = TypeVar("T")


@dataclass(frozen=True)
class Terms:
    """Limits that the supervisor set before it requested the machine. Seconds."""

    attempt: int
    limit: float  # maximum lifetime of the machine: what its run may still cost
    lease: float  # maximum time without a renewal by the supervisor
    supervisor_dir: str  # gs://... (a directory in tests)
    model_dir: str
    delete: list[str] = field(default_factory=list)  # addresses, all of which are tried each time
    ended: float = 1200.0  # lifetime after the end of training
    stalled: float = STALLED_SECONDS
    poll: float = 60.0
    metadata: str = "http://metadata.google.internal"
    storage: str = "https://storage.googleapis.com"
    requested: float = 0.0  # UNIX seconds of the request by the clock of the service, 0 if unknown
    # For a queued machine: rest of --max_hours at its request, 0 for unlimited.
    hours_left: float = 0.0
    hosts: int = 1  # number in the slice (each has a watcher)


@dataclass(frozen=True)
class Counters:
    """Seconds so far, and the reference values that they are counted from."""

    age: float = 0.0
    unrenewed: float = 0.0
    quiet: float = 0.0
    ended: float = 0.0
    step: int = -1
    renewal: str = ""
    clock: float = 0.0  # seconds since boot at this record
    boot: str = ""
    wall: float = 0.0


@dataclass(frozen=True)
class Seen:
    """Result of one poll of bucket and disk. None: could not be read."""

    step: int | None = None
    renewal: str | None = None
    has_ended: bool = False


def update_counters(counters: Counters, seconds: float, seen: Seen) -> Counters:
    """Return the counters after one poll, `seconds` after the one before."""
    stepped = seen.step is not None and seen.step != counters.step
    renewed = seen.renewal is not None and seen.renewal != counters.renewal
    return replace(
        counters,
        age=counters.age + seconds,
        unrenewed=0.0 if renewed else counters.unrenewed + seconds,
        quiet=0.0 if stepped else counters.quiet + seconds,
        ended=counters.ended + seconds if seen.has_ended else 0.0,
        step=seen.step if stepped and seen.step is not None else counters.step,
        renewal=seen.renewal if renewed and seen.renewal is not None else counters.renewal,
    )


def must_go(counters: Counters, terms: Terms) -> str:
    """Return the reason to delete the machine now, or "" while it may live."""
    if counters.age >= terms.limit or counters.unrenewed >= terms.lease:
        return "lease_over"
    if counters.ended >= terms.ended:
        return "ended"
    return "stalled" if counters.quiet >= terms.stalled else ""


def age_at_boot(terms: Terms, wall: float) -> float:
    """Return the seconds of its lifetime that a machine has used up when it boots first.

    The time of its creation counts, up to `CREATION_SECONDS`. For a machine from a queue with
    --max_hours, only the time by which its limit exceeds the hours that are left counts.
    """
    late = max(0.0, wall - terms.requested) if terms.requested else 0.0
    if terms.hours_left:
        return max(0.0, late - (terms.hours_left - terms.limit))
    return min(late, CREATION_SECONDS)


def since(counters: Counters, clock: float, boot: str, wall: float) -> float:
    """Return the seconds since the counters were written, across restarts and reboots."""
    if not counters.boot:
        return 0.0
    if counters.boot == boot:
        return max(0.0, clock - counters.clock)
    return clock + min(max(0.0, wall - counters.wall - clock), REBOOT_SECONDS)


def load(paths: list[str]) -> Counters:
    """Read all copies of the counters, and return the largest of those that are intact."""
    copies = [Counters()]
    for path in paths:
        with contextlib.suppress(OSError, ValueError, TypeError), open(path, "rb") as file:
            copies.append(Counters(**json.loads(file.read(RECORD_BYTES))))
    return max(copies, key=lambda c: (c.age, c.boot))


def save(paths: list[str], counters: Counters) -> None:
    """Overwrite each copy in place."""
    record = json.dumps(asdict(counters)).encode().ljust(RECORD_BYTES)[:RECORD_BYTES]
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.pwrite(descriptor, record, 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class Host:
    """Access of the watcher to bucket, metadata server, service and disk of this machine."""

    def __init__(
        self,
        terms: Terms,
        work_dir: str,
        deadline: float = DEADLINE_SECONDS,
        most_bytes: int = ANSWER_BYTES,
    ) -> None:
        self._terms, self._work_dir = terms, work_dir
        self._deadline, self._most_bytes = deadline, most_bytes
        self._opener = urllib.request.build_opener()
        self._number: int | None = None

    def look(self) -> Seen:
        """Read heartbeat, renewal and the end of training."""
        terms = self._terms
        step = self._values(terms.model_dir, "heartbeat.json").get("global_step")
        lease, renewal = self._values(terms.supervisor_dir, "lease.json"), None
        if lease.get("attempt") == terms.attempt:
            renewal = str(lease.get("renewed"))[:RENEWAL_LENGTH]
        is_step = isinstance(step, int) and 0 <= step < 1 << 63
        return Seen(step if is_step else None, renewal, self.has_ended())

    def has_ended(self) -> bool:
        """Return whether training has ended, by a file on the disk."""
        return os.path.exists(os.path.join(self._work_dir, "ended"))

    def copy_log(self) -> None:
        """Copy the end of the log to the bucket."""
        host = self._host()
        name = f"training-{host}.log" if host else "training.log"
        path = os.path.join(self._work_dir, "training.log")
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - LOG_BYTES))
            self._write(name, file.read(LOG_BYTES))

    def _host(self) -> int:
        """Return the number of this host in its slice, or 0 if it is unknown."""
        if self._terms.hosts > 1 and self._number is None:
            for name in ("agent-worker-number", "worker-id"):
                where = f"{self._terms.metadata}/computeMetadata/v1/instance/attributes/{name}"
                request = urllib.request.Request(where, headers={"Metadata-Flavor": "Google"})
                with contextlib.suppress(Exception):
                    self._number = int(self._open(request))
                    break
        return self._number or 0

    def report(
        self, status: int, reason: str = "", pauses: tuple[float, ...] = (1.0, 3.0, 0.0)
    ) -> None:
        """Report the exit status of training, or the reason of a deletion, to the supervisor.

        A status never replaces a reason: SIGTERM of a deletion makes the trainer exit as if it were
        preempted.
        """
        before = {} if reason else self._values(self._terms.supervisor_dir, "exit.json")
        if before.get("attempt") == self._terms.attempt and before.get("reason"):
            return
        values = {"attempt": self._terms.attempt, "status": status, "reason": reason}
        text = json.dumps({**values, "host": self._host(), "time": int(time.time())})
        for pause in pauses:
            try:
                self._write("exit.json", text.encode())
                return
            except Exception as error:
                say(f"exit.json could not be written: {error}")
                time.sleep(pause)

    def delete(self) -> None:
        """Request the deletion of this machine at each of its addresses."""
        for address in self._terms.delete:
            try:
                self.request("DELETE", address)
                say(f"deleted {address}")
            except Exception as error:
                say(f"deleting {address} failed, will be tried again: {error}")

    def request(self, method: str, url: str, data: bytes | None = None) -> bytes:
        """Send one signed request with a deadline.

        Returns:
            The answer, whose size is limited.
        """
        headers = {"Content-Type": "application/octet-stream"}
        if method != "GET" or url.startswith(self._terms.storage):
            headers["Authorization"] = f"Bearer {self._token()}"
        return self._open(urllib.request.Request(url, data, headers, method=method))

    def get(self, url: str, target: str) -> None:
        """Download one file of the bucket."""
        data = self._read(url)
        with open(target, "wb") as file:
            file.write(data)

    def _token(self) -> str:
        where = f"{self._terms.metadata}/computeMetadata/v1/instance/service-accounts/default/token"
        request = urllib.request.Request(where, headers={"Metadata-Flavor": "Google"})
        return str(json.loads(self._open(request))["access_token"])

    def _open(self, request: urllib.request.Request) -> bytes:
        parts: list[bytes] = []
        until, left = time.monotonic() + self._deadline, self._most_bytes
        with self._opener.open(request, timeout=CALL_SECONDS) as answer:
            # The deadline also ends a server that sends single bytes.
            while True:
                part = answer.read1(1 << 20)
                if not part:
                    return b"".join(parts)
                parts.append(part)
                left -= len(part)
                if left < 0:
                    raise ValueError(f"{request.full_url}: too large")
                if time.monotonic() > until:
                    raise TimeoutError(f"{request.full_url}: no end after {self._deadline:.0f} s")

    def _read(self, url: str) -> bytes:
        if not url.startswith("gs://"):
            with open(url, "rb") as file:
                return file.read(self._most_bytes)
        bucket, _, name = url[5:].partition("/")
        quoted = urllib.parse.quote(name, safe="")
        address = f"{self._terms.storage}/storage/v1/b/{bucket}/o/{quoted}?alt=media"
        return self.request("GET", address)

    def _write(self, name: str, data: bytes) -> None:
        url = f"{self._terms.supervisor_dir}/{name}"
        if not url.startswith("gs://"):
            with open(f"{url}.{os.getpid()}.tmp", "wb") as file:
                file.write(data)
            os.replace(f"{url}.{os.getpid()}.tmp", url)
            return
        bucket, _, path = url[5:].partition("/")
        query = urllib.parse.urlencode({"uploadType": "media", "name": path})
        self.request("POST", f"{self._terms.storage}/upload/storage/v1/b/{bucket}/o?{query}", data)

    def _values(self, directory: str, name: str) -> dict[str, Any]:
        """Read the JSON object in a file, or return {} if it cannot be read."""
        values: Any = None
        with contextlib.suppress(Exception):
            values = json.loads(self._read(f"{directory}/{name}"))
        return values if isinstance(values, dict) else {}


def watch(
    terms: Terms,
    host: Host,
    paths: list[str],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    boot: str,
) -> None:
    """Watch until the machine is deleted."""
    counters, is_reported = load(paths), False
    if not counters.boot:
        counters = replace(counters, age=age_at_boot(terms, time.time()))
    while True:
        sleep(terms.poll)
        seconds = since(counters, clock(), boot, time.time()) if counters.boot else terms.poll
        counters = update_counters(counters, seconds, Seen(has_ended=host.has_ended()))
        counters = replace(counters, clock=clock(), boot=boot, wall=time.time())
        save(paths, counters)
        reason = must_go(counters, terms)
        if not reason:
            counters = update_counters(counters, 0.0, attempt(host.look, Seen()))
            attempt(host.copy_log, None)
            continue
        say(f"{reason}: deleting this machine")
        if not is_reported and not counters.ended:
            # One try, which has a deadline.
            attempt(partial(host.report, STALLED, reason, pauses=(0.0,)), None)
            is_reported = True
        attempt(host.delete, None)


def attempt(act: Callable[[], T], default: T) -> T:
    """Return the result of an act, or `default` if it fails in any way."""
    try:
        return act()
    except Exception:
        return default


def say(text: str) -> None:
    """Print a line on the console of the machine."""
    line = f"{time.strftime('%FT%TZ', time.gmtime())} bigbird-ja: {text}"
    attempt(lambda: print(line, file=sys.stderr), None)


def boot_id() -> str:
    """Return an id that differs after each boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def since_boot() -> float:
    """Return seconds of a monotonic clock that also counts while suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def main(arguments: list[str]) -> int:
    """Run the verb of the first argument."""
    verb, terms = arguments[0], Terms(**json.loads(arguments[1]))
    work_dir = os.environ.get("BIGBIRD_JA_VM_DIR", "/opt/bigbird-ja")
    memory = os.environ.get("BIGBIRD_JA_VM_RUN_DIR", "/run")
    if verb == "get":
        Host(terms, work_dir, GET_SECONDS, GET_BYTES).get(arguments[2], arguments[3])
        return 0
    host = Host(terms, work_dir)
    if verb == "report":
        attempt(host.copy_log, None)
        host.report(int(arguments[2]))
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    name = f"bigbird-ja-{terms.attempt}.counters"
    paths = [os.path.join(work_dir, name), os.path.join(memory, name)]
    watch(terms, host, paths, since_boot, time.sleep, boot_id())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
