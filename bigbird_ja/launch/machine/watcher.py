"""Watcher of a rented machine: it deletes the machine at its limits, without the supervisor.

The watcher runs on the machine. The start-up script contains the text of this file and starts it
before anything is installed. So this file uses only the standard library of Python 3.8. The
program's first argument is a verb. The second argument contains the limits (`Terms`, as JSON):

    watch            updates counters every `poll` seconds, and deletes the machine at a limit
    report STATUS    reports the exit status of training to the supervisor
    get URL FILE     downloads one file from the bucket

Since a machine that is not deleted is billed, the watcher follows these rules:
- Every request has a timeout and a deadline. `gcloud` is not used, as it may hang.
- Counters are stored in memory (`/run`) and in a file on disk. The file is overwritten in place,
  which also works on a full disk. A restarted watcher continues from the stored counters.
- Only a new `global_step` counts as progress. A newer heartbeat does not.
- In each poll, time is counted, stored and compared with the limits before the bucket is read.
- Code that reads, copies or reports is called by `attempt`, so that no exception ends the watcher.
- Answers, and the values from them that are stored, are limited in size.
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

# Timeout of each read from the socket of a request.
CALL_SECONDS = 20.0
# Deadline of a complete request, and of a download by `get`.
DEADLINE_SECONDS = 60.0
GET_SECONDS = 600.0
# Fixed size of the file of counters.
RECORD_BYTES = 1024
# Bytes at the end of the log that are copied to the bucket.
LOG_BYTES = 65536
# Maximum size of an answer, and of a download by `get`.
ANSWER_BYTES = 65536
GET_BYTES = 256 << 20
# The value `renewed` in lease.json is cut to this number of characters, and then compared with the
# stored value of the previous renewal.
RENEWAL_LENGTH = 32
# Maximum time without a new step.
STALLED_SECONDS = 5400.0
# A reboot counts for at most this many seconds. Its duration is measured by the wall clock, which
# may have been set meanwhile.
REBOOT_SECONDS = 900.0
# The time from the request of a machine to its boot counts for at most this many seconds, since it
# is a difference between two clocks, which may disagree.
CREATION_SECONDS = 1800.0
# Exit status of a stalled command.
STALLED = 76

T = TypeVar("T")


@dataclass(frozen=True)
class Terms:
    """Limits of the machine, which the supervisor sets before requesting it. Times are seconds.

    Attributes:
        attempt: Number of the run's attempt that requested the machine.
        limit: Maximum lifetime, which limits the cost.
        lease: Maximum time without a renewal by the supervisor.
        supervisor_dir: Folder of the supervisor on the bucket (a local directory in tests).
        model_dir: Folder of checkpoints and heartbeat.
        delete: Addresses to which the machine sends HTTP DELETE requests to delete itself.
        ended: Maximum lifetime after the end of training.
        stalled: Maximum time without a new step.
        poll: Time between polls.
        metadata: Address of the metadata server.
        storage: Address of Cloud Storage.
        requested: UNIX seconds of the request by the clock of the service, 0 if unknown.
        hours_left: For a queued machine, the seconds of --max_hours that were left at its request;
            0 for unlimited.
        hosts: Number of hosts of the slice. Each runs a watcher.
    """

    attempt: int
    limit: float
    lease: float
    supervisor_dir: str
    model_dir: str
    delete: list[str] = field(default_factory=list)
    ended: float = 1200.0
    stalled: float = STALLED_SECONDS
    poll: float = 60.0
    metadata: str = "http://metadata.google.internal"
    storage: str = "https://storage.googleapis.com"
    requested: float = 0.0
    hours_left: float = 0.0
    hosts: int = 1


@dataclass(frozen=True)
class Counters:
    """Counted seconds, and the values at the last poll.

    Attributes:
        age: Lifetime of the machine.
        unrenewed: Time since the last renewal of the lease by the supervisor.
        quiet: Time since the last new step.
        ended: Time since the end of training.
        step: Last step.
        renewal: Value `renewed` in lease.json at the last renewal.
        clock: Seconds since boot at the last poll.
        boot: Id of the boot at the last poll, or "" before the first one.
        wall: UNIX seconds at the last poll.
    """

    age: float = 0.0
    unrenewed: float = 0.0
    quiet: float = 0.0
    ended: float = 0.0
    step: int = -1
    renewal: str = ""
    clock: float = 0.0
    boot: str = ""
    wall: float = 0.0


@dataclass(frozen=True)
class Seen:
    """Values that one poll read from the bucket and the disk. None stands for a failed read."""

    step: int | None = None
    renewal: str | None = None
    has_ended: bool = False


def update_counters(counters: Counters, seconds: float, seen: Seen) -> Counters:
    """Return the counters after a poll that took place `seconds` after the last poll."""
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
    """Return the reason to delete the machine now, or "" if no limit is reached."""
    if counters.age >= terms.limit or counters.unrenewed >= terms.lease:
        return "lease_over"
    if counters.ended >= terms.ended:
        return "ended"
    return "stalled" if counters.quiet >= terms.stalled else ""


def compute_age_at_boot(terms: Terms, wall: float) -> float:
    """Return the age in seconds with which a machine starts at its first boot.

    The age is the time since the request, up to `CREATION_SECONDS`. A queued machine with
    --max_hours is an exception. It may live for `hours_left` minus the time since the request. If
    `limit` is longer than that, the age is the difference, else 0.
    """
    late = max(0.0, wall - terms.requested) if terms.requested else 0.0
    if terms.hours_left:
        return max(0.0, late - (terms.hours_left - terms.limit))
    return min(late, CREATION_SECONDS)


def count_seconds(counters: Counters, clock: float, boot: str, wall: float) -> float:
    """Return the seconds since the counters were stored, across restarts and reboots."""
    if not counters.boot:
        return 0.0
    if counters.boot == boot:
        return max(0.0, clock - counters.clock)
    return clock + min(max(0.0, wall - counters.wall - clock), REBOOT_SECONDS)


def load(paths: list[str]) -> Counters:
    """Read all copies of the counters, and return the intact copy with the largest age."""
    copies = [Counters()]
    for path in paths:
        with contextlib.suppress(OSError, ValueError, TypeError), open(path, "rb") as file:
            copies.append(Counters(**json.loads(file.read(RECORD_BYTES))))
    return max(copies, key=lambda c: (c.age, c.boot))


def save(paths: list[str], counters: Counters) -> None:
    """Overwrite each copy of the counters in place."""
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
    """Access to the bucket, the metadata server, the service and the disk."""

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

    def poll(self) -> Seen:
        """Read the last step, the last renewal of the lease, and whether training has ended."""
        terms = self._terms
        step = self._read_values(terms.model_dir, "heartbeat.json").get("global_step")
        lease, renewal = self._read_values(terms.supervisor_dir, "lease.json"), None
        if lease.get("attempt") == terms.attempt:
            renewal = str(lease.get("renewed"))[:RENEWAL_LENGTH]
        is_step = isinstance(step, int) and 0 <= step < 1 << 63
        return Seen(step if is_step else None, renewal, self.has_ended())

    def has_ended(self) -> bool:
        """Return whether the file exists that the startup script creates at the end of training."""
        return os.path.exists(os.path.join(self._work_dir, "ended"))

    def copy_log(self) -> None:
        """Copy the last `LOG_BYTES` bytes of the trainer's log to the bucket."""
        host = self._find_host_number()
        name = f"training-{host}.log" if host else "training.log"
        path = os.path.join(self._work_dir, "training.log")
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - LOG_BYTES))
            self._write(name, file.read(LOG_BYTES))

    def _find_host_number(self) -> int:
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

        A status never replaces a stored reason. If the watcher deletes the machine, the trainer
        receives SIGTERM and exits with the status of a preemption, which would hide the reason.
        """
        before = {} if reason else self._read_values(self._terms.supervisor_dir, "exit.json")
        if before.get("attempt") == self._terms.attempt and before.get("reason"):
            return
        values = {"attempt": self._terms.attempt, "status": status, "reason": reason}
        text = json.dumps({**values, "host": self._find_host_number(), "time": int(time.time())})
        for pause in pauses:
            try:
                self._write("exit.json", text.encode())
                return
            except Exception as error:
                say(f"exit.json could not be written: {error}")
                time.sleep(pause)

    def delete(self) -> None:
        """Request the deletion of this machine at each address in `Terms.delete`."""
        for address in self._terms.delete:
            try:
                self.request("DELETE", address)
                say(f"deleted {address}")
            except Exception as error:
                say(f"deleting {address} failed and will be retried: {error}")

    def request(self, method: str, url: str, data: bytes | None = None) -> bytes:
        """Send one authenticated request with a deadline and a maximum size of the answer."""
        headers = {"Content-Type": "application/octet-stream"}
        if method != "GET" or url.startswith(self._terms.storage):
            headers["Authorization"] = f"Bearer {self._fetch_token()}"
        return self._open(urllib.request.Request(url, data, headers, method=method))

    def get(self, url: str, target: str) -> None:
        """Download one file of the bucket."""
        data = self._read(url)
        with open(target, "wb") as file:
            file.write(data)

    def _fetch_token(self) -> str:
        where = f"{self._terms.metadata}/computeMetadata/v1/instance/service-accounts/default/token"
        request = urllib.request.Request(where, headers={"Metadata-Flavor": "Google"})
        return str(json.loads(self._open(request))["access_token"])

    def _open(self, request: urllib.request.Request) -> bytes:
        parts: list[bytes] = []
        until, left = time.monotonic() + self._deadline, self._most_bytes
        with self._opener.open(request, timeout=CALL_SECONDS) as answer:
            # The timeout limits each read, but not their number. So the deadline is checked after
            # each read.
            while True:
                part = answer.read1(1 << 20)
                if not part:
                    return b"".join(parts)
                parts.append(part)
                left -= len(part)
                if left < 0:
                    raise ValueError(f"{request.full_url}: the answer is too large")
                if time.monotonic() > until:
                    raise TimeoutError(f"{request.full_url}: longer than {self._deadline:.0f} s")

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

    def _read_values(self, directory: str, name: str) -> dict[str, Any]:
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
    """Count seconds and compare them with the limits, until the machine is deleted.

    Args:
        terms: limits of the machine.
        host: access to bucket, service and disk.
        paths: copies of the counters.
        clock: monotonic clock, in seconds since boot.
        sleep: callback that waits some seconds.
        boot: id of this boot.
    """
    counters, is_reported = load(paths), False
    if not counters.boot:
        counters = replace(counters, age=compute_age_at_boot(terms, time.time()))
    while True:
        sleep(terms.poll)
        seconds = (
            count_seconds(counters, clock(), boot, time.time()) if counters.boot else terms.poll
        )
        counters = update_counters(counters, seconds, Seen(has_ended=host.has_ended()))
        counters = replace(counters, clock=clock(), boot=boot, wall=time.time())
        save(paths, counters)
        reason = must_go(counters, terms)
        if not reason:
            counters = update_counters(counters, 0.0, attempt(host.poll, Seen()))
            attempt(host.copy_log, None)
            continue
        say(f"{reason}: deleting this machine")
        if not is_reported and not counters.ended:
            # Try only once to send the report, so that it does not delay the deletion.
            attempt(partial(host.report, STALLED, reason, pauses=(0.0,)), None)
            is_reported = True
        attempt(host.delete, None)


def attempt(act: Callable[[], T], default: T) -> T:
    """Return the result of a call, or `default` if it raises any exception."""
    try:
        return act()
    except Exception:
        return default


def say(text: str) -> None:
    """Print a line on the console of the machine."""
    line = f"{time.strftime('%FT%TZ', time.gmtime())} bigbird-ja: {text}"
    attempt(lambda: print(line, file=sys.stderr), None)


def read_boot_id() -> str:
    """Return an id that differs after each boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def read_boot_clock() -> float:
    """Return the seconds of a monotonic clock that also counts while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def main(arguments: list[str]) -> int:
    """Run `watch`, `report` or `get`, as the first argument states, and return the exit status."""
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
    watch(terms, host, paths, read_boot_clock, time.sleep, read_boot_id())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
