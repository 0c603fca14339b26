"""Watches over a rented machine and deletes it at the end of its lease, without the supervisor.

Runs on the machine itself, started before anything is installed there, from the text of this file
in the start-up script: so it uses the standard library of Python 3.8 alone, and no apostrophe.
Its first argument is a verb, its second its terms (`Terms`, as JSON):

    watch            counts every `poll` seconds, and deletes the machine when it must go
    report STATUS    tells the supervisor how training ended
    get URL FILE     brings one file from the bucket

Rules that cost money where they are broken:
- Every request has a timeout and a deadline. Nothing is asked of `gcloud`, which may hang.
- The counters are in a file on disk that is overwritten in place, so that a full disk does not stop
  them, and in memory (`/run`). A watcher that is started again goes on counting.
- Only another `global_step` is progress. A heartbeat that merely says another time is none.
- Time is counted, stored and judged before anything is read. A failure to read, by whatever
  exception, means "not seen"; answers have a maximum size, and what is stored of them, too.
- Seconds are counted by a clock that nobody sets.
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
from typing import Any

CALL_SECONDS = 20.0  # one read of one request
DEADLINE_SECONDS = 60.0  # a whole request; `get` has longer
GET_SECONDS = 600.0
RECORD_BYTES = 1024  # of the counters; never grows
LOG_BYTES = 65536  # of the end of the log that the supervisor may read
ANSWER_BYTES = 65536  # of an answer, or of a file that is read at each look
GET_BYTES = 256 << 20
RENEWAL_LENGTH = 32  # characters of a renewal that are compared, and stored
STALLED_SECONDS = 5400.0  # without another step
REBOOT_SECONDS = 900.0  # the most that a reboot counts for: the wall clock may have been set
CREATION_SECONDS = 1800.0  # the most that the time from asking to booting counts for: clocks differ
STALLED = 76  # exit status, as in the command line


@dataclass(frozen=True)
class Terms:
    """The supervisor decided these before it created the machine. Seconds."""

    attempt: int
    limit: float  # the machine lives so long at most: what its run may still cost
    lease: float  # and so long after the last sign of a supervisor
    supervisor_dir: str  # gs://... (a directory in tests)
    model_dir: str
    delete: list[str] = field(default_factory=list)  # addresses; all are tried each time
    ended: float = 1200.0  # it lives so long after training has ended
    stalled: float = STALLED_SECONDS
    poll: float = 60.0
    metadata: str = "http://metadata.google.internal"
    storage: str = "https://storage.googleapis.com"
    requested: float = 0.0  # UNIX seconds of the request, by the service; 0: unknown
    hours_left: float = 0.0  # of a queued machine: rest of --max_hours at its request; 0: unlimited
    hosts: int = 1  # of the slice; each has its watcher


@dataclass(frozen=True)
class Counters:
    """Seconds so far, and the marks that they are counted from."""

    age: float = 0.0
    unrenewed: float = 0.0
    quiet: float = 0.0
    ended: float = 0.0
    step: int = -1
    renewal: str = ""  # the last one seen
    clock: float = 0.0  # since boot, when this was written
    boot: str = ""
    wall: float = 0.0


@dataclass(frozen=True)
class Seen:
    """One look at the bucket and the disk. None where it could not be seen."""

    step: int | None = None
    renewal: str | None = None
    has_ended: bool = False


def advanced(counters: Counters, seconds: float, seen: Seen) -> Counters:
    """Count on by one look, `seconds` after the one before."""
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
    """Return why the machine must be deleted now; empty while it may live."""
    if counters.age >= terms.limit or counters.unrenewed >= terms.lease:
        return "lease_over"
    if counters.ended >= terms.ended:
        return "ended"
    return "stalled" if counters.quiet >= terms.stalled else ""


def age_at_boot(terms: Terms, wall: float) -> float:
    """Return the seconds of its lifetime that a machine has used up when it boots first.

    Its creation counts, and waiting in a queue doesn't, as long as --max_hours is not over.
    """
    late = max(0.0, wall - terms.requested) if terms.requested else 0.0
    if terms.hours_left:
        return max(0.0, late - (terms.hours_left - terms.limit))
    return min(late, CREATION_SECONDS)


def since(counters: Counters, clock: float, boot: str, wall: float) -> float:
    """Compute the seconds since the counters were written, over a restart or a reboot too."""
    if not counters.boot:
        return 0.0
    if counters.boot == boot:
        return max(0.0, clock - counters.clock)
    return clock + min(max(0.0, wall - counters.wall - clock), REBOOT_SECONDS)


def load(paths: list[str]) -> Counters:
    """Read the largest counters of all copies that are whole."""
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
    """This machine, as the watcher sees it: bucket, metadata server, service, disk."""

    def __init__(self, terms: Terms, work_dir: str) -> None:
        self._terms, self._work_dir = terms, work_dir
        self._opener = urllib.request.build_opener()
        self._number: int | None = None

    def look(self) -> Seen:
        """Look at heartbeat, renewal and the end of training."""
        terms = self._terms
        step = self._values(terms.model_dir, "heartbeat.json").get("global_step")
        lease, renewal = self._values(terms.supervisor_dir, "lease.json"), None
        if lease.get("attempt") == terms.attempt:
            renewal = str(lease.get("renewed"))[:RENEWAL_LENGTH]
        is_step = isinstance(step, int) and 0 <= step < 1 << 63
        return Seen(step if is_step else None, renewal, self.has_ended())

    def has_ended(self) -> bool:
        """Tell whether training has ended, by the disk."""
        return os.path.exists(os.path.join(self._work_dir, "ended"))

    def copy_log(self) -> None:
        """Copy the end of the log to the bucket."""
        host = self._host()
        name = f"training-{host}.log" if host else "training.log"
        path = os.path.join(self._work_dir, "training.log")
        with contextlib.suppress(Exception), open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - LOG_BYTES))
            self._write(name, file.read(LOG_BYTES))

    def _host(self) -> int:
        """Return the number of this host in its slice; 0 where it is alone, or does not know."""
        if self._terms.hosts > 1 and self._number is None:
            for name in ("agent-worker-number", "worker-id"):
                where = f"{self._terms.metadata}/computeMetadata/v1/instance/attributes/{name}"
                request = urllib.request.Request(where, headers={"Metadata-Flavor": "Google"})
                with contextlib.suppress(Exception):
                    self._number = int(self._open(request, CALL_SECONDS))
                    break
        return self._number or 0

    def report(
        self, status: int, reason: str = "", pauses: tuple[float, ...] = (1.0, 3.0, 0.0)
    ) -> None:
        """Tell the supervisor how training ended, or why the machine is deleted.

        A reason stays: the trainer that dies with its machine is no preemption.
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
        """Ask the service to delete this machine, at each of its addresses."""
        for address in self._terms.delete:
            try:
                self.request("DELETE", address)
                say(f"deleted {address}")
            except Exception as error:
                say(f"deleting {address} failed, will be tried again: {error}")

    def request(
        self,
        method: str,
        url: str,
        data: bytes | None = None,
        seconds: float = DEADLINE_SECONDS,
        most: int = ANSWER_BYTES,
    ) -> bytes:
        """Send one signed request, over within `seconds`, with at most `most` bytes of answer."""
        headers = {"Content-Type": "application/octet-stream"}
        if method != "GET" or url.startswith(self._terms.storage):
            headers["Authorization"] = f"Bearer {self._token()}"
        return self._open(urllib.request.Request(url, data, headers, method=method), seconds, most)

    def get(self, url: str, target: str) -> None:
        """Bring one file of the bucket into a local file."""
        data = self._read(url, GET_SECONDS, GET_BYTES)
        with open(target, "wb") as file:
            file.write(data)

    def _token(self) -> str:
        where = f"{self._terms.metadata}/computeMetadata/v1/instance/service-accounts/default/token"
        request = urllib.request.Request(where, headers={"Metadata-Flavor": "Google"})
        return str(json.loads(self._open(request, DEADLINE_SECONDS))["access_token"])

    def _open(
        self, request: urllib.request.Request, seconds: float, most: int = ANSWER_BYTES
    ) -> bytes:
        parts: list[bytes] = []
        until = time.monotonic() + seconds
        with self._opener.open(request, timeout=min(CALL_SECONDS, seconds)) as answer:
            while True:  # a server that sends a byte now and then has a deadline, too
                part = answer.read1(1 << 20)
                if not part:
                    return b"".join(parts)
                parts.append(part)
                most -= len(part)
                if most < 0:
                    raise ValueError(f"{request.full_url}: too large")
                if time.monotonic() > until:
                    raise TimeoutError(f"{request.full_url}: no end after {seconds:.0f} s")

    def _read(self, url: str, seconds: float = DEADLINE_SECONDS, most: int = ANSWER_BYTES) -> bytes:
        if not url.startswith("gs://"):
            with open(url, "rb") as file:
                return file.read(most)
        bucket, _, name = url[5:].partition("/")
        quoted = urllib.parse.quote(name, safe="")
        address = f"{self._terms.storage}/storage/v1/b/{bucket}/o/{quoted}?alt=media"
        return self.request("GET", address, None, seconds, most)

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
        """Read the object in a file; empty where none can be read."""
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
    """Watch for as long as the machine is there."""
    counters, is_reported = load(paths), False
    if not counters.boot:
        counters = replace(counters, age=age_at_boot(terms, time.time()))
    while True:
        sleep(terms.poll)
        seconds = since(counters, clock(), boot, time.time()) if counters.boot else terms.poll
        counters = advanced(counters, seconds, Seen(has_ended=host.has_ended()))
        counters = replace(counters, clock=clock(), boot=boot, wall=time.time())
        save(paths, counters)
        reason = must_go(counters, terms)
        if not reason:
            counters = advanced(counters, 0.0, host.look())
            host.copy_log()
            continue
        say(f"{reason}: deleting this machine")
        if not is_reported and not counters.ended:
            host.report(STALLED, reason, pauses=(0.0,))  # one try, which has a deadline
            is_reported = True
        host.delete()


def say(text: str) -> None:
    """Print a line on the console of the machine."""
    with contextlib.suppress(OSError, ValueError):
        print(time.strftime("%FT%TZ", time.gmtime()), "bigbird-ja:", text, file=sys.stderr)


def boot_id() -> str:
    """Return a text that is another one after each boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def since_boot() -> float:
    """Return seconds of a clock that nobody sets, and that counts a suspended machine."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def main(arguments: list[str]) -> int:
    """Do the verb of the first argument."""
    verb, terms = arguments[0], Terms(**json.loads(arguments[1]))
    work_dir = os.environ.get("BIGBIRD_JA_VM_DIR", "/opt/bigbird-ja")
    memory = os.environ.get("BIGBIRD_JA_VM_RUN_DIR", "/run")
    host = Host(terms, work_dir)
    if verb == "get":
        host.get(arguments[2], arguments[3])
        return 0
    if verb == "report":
        host.copy_log()
        host.report(int(arguments[2]))
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    name = f"bigbird-ja-{terms.attempt}.counters"
    paths = [os.path.join(work_dir, name), os.path.join(memory, name)]
    watch(terms, host, paths, since_boot, time.sleep, boot_id())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
