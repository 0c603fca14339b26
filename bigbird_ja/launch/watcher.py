"""The watcher of a rented machine: deletes it at the end of its lease, whatever happened to us.

Runs on the machine itself, started before anything is installed there, from the text of this file
in the start-up script: so it uses the standard library of Python 3.8 and nothing else, and no word
with an apostrophe in it. Its first argument is what to do, its second its terms (`Terms`, as
JSON):

    watch            every `poll` seconds: counts, reports, and deletes the machine when it must go
    report STATUS    tells the supervisor how training ended
    get URL FILE     brings one file from the bucket

What costs money when it is missing:
- Every request has a timeout and a deadline. Nothing is asked of `gcloud`, which may hang.
- The counters are on disk, in a file that is written once and then overwritten in place, so that a
  full disk does not stop them; where even that fails, in memory of the machine (`/run`). A watcher
  that is started again goes on counting.
- Only another `global_step` is progress. A heartbeat that merely says another time is none.
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
REBOOT_SECONDS = 900.0  # the most that a reboot counts for: the wall clock may have been set
CREATION_SECONDS = 1800.0  # the most that the time from asking to booting counts for: clocks differ
REPLACED_SECONDS = 1800.0  # the successor of a lost host waits so long for a renewal
STALLED = 76  # exit status, as in the command line


@dataclass(frozen=True)
class Terms:
    """What the supervisor decided before it created the machine. Seconds."""

    attempt: int
    limit: float  # the machine lives so long at most: what its run may still cost
    lease: float  # and so long after the last sign of a supervisor
    ended: float  # and so long after training has ended
    stalled: float  # and so long without another step
    poll: float
    supervisor_dir: str  # gs://... (a directory in tests)
    model_dir: str
    delete: list[str] = field(default_factory=list)  # addresses; all are tried each time
    metadata: str = "http://metadata.google.internal"
    storage: str = "https://storage.googleapis.com"
    asked: float = 0.0  # UNIX seconds by the supervisor when it asked for the machine; 0: unknown
    hosts: int = 1  # of the slice that this machine is a part of; each has its watcher


@dataclass(frozen=True)
class Counters:
    """Seconds so far, and what they are counted against."""

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


def turn(counters: Counters, seconds: float, seen: Seen) -> Counters:
    """The counters after a look, `seconds` after the one before."""
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
    """Why the machine must be deleted now; empty while it may live."""
    if counters.age >= terms.limit or counters.unrenewed >= terms.lease:
        return "lease_over"
    if counters.ended >= terms.ended:
        return "ended"
    return "stalled" if counters.quiet >= terms.stalled else ""


def since(counters: Counters, clock: float, boot: str, wall: float) -> float:
    """Seconds since the counters were written, also over a restart or a reboot."""
    if not counters.boot:
        return 0.0
    if counters.boot == boot:
        return max(0.0, clock - counters.clock)
    return clock + min(max(0.0, wall - counters.wall - clock), REBOOT_SECONDS)


class Notes:
    """The counters on disk, in each of some files that can be written; the largest are believed."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def load(self) -> Counters:
        copies = [c for c in map(self._load, self._paths) if c is not None]
        return max(copies, key=lambda c: c.age, default=Counters())

    def save(self, counters: Counters) -> None:
        record = json.dumps(asdict(counters)).encode().ljust(RECORD_BYTES)[:RECORD_BYTES]
        for path in self._paths:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    os.pwrite(descriptor, record, 0)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def _load(self, path: str) -> Counters | None:
        try:
            with open(path, "rb") as file:
                return Counters(**json.loads(file.read(RECORD_BYTES)))
        except (OSError, ValueError, TypeError):
            return None


class Machine:
    """What the watcher reads and writes: bucket, metadata server, service, disk."""

    def __init__(self, terms: Terms, work_dir: str) -> None:
        self._terms, self._work_dir = terms, work_dir
        self._opener = urllib.request.build_opener()
        self._number: int | None = None

    def look(self) -> Seen:
        terms = self._terms
        step = self._values(terms.model_dir, "heartbeat.json").get("global_step")
        lease = self._values(terms.supervisor_dir, "lease.json")
        renewal = str(lease.get("renewed")) if lease.get("attempt") == terms.attempt else None
        ended = os.path.exists(os.path.join(self._work_dir, "ended"))
        return Seen(step if isinstance(step, int) else None, renewal, ended)

    def tell(self) -> None:
        """Brings the end of the log to the bucket."""
        host = self._host()
        name = f"training-{host}.log" if host else "training.log"
        path = os.path.join(self._work_dir, "training.log")
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - LOG_BYTES))
            self._write(name, file.read(LOG_BYTES))

    def _host(self) -> int:
        """Which host of its slice this is; 0 where it has one only, or does not know."""
        if self._terms.hosts > 1 and self._number is None:
            for name in ("agent-worker-number", "worker-id"):
                where = f"{self._terms.metadata}/computeMetadata/v1/instance/attributes/{name}"
                request = urllib.request.Request(where, headers={"Metadata-Flavor": "Google"})
                with contextlib.suppress(OSError, ValueError):
                    self._number = int(self._open(request, CALL_SECONDS))
                    break
        return self._number or 0

    def report(
        self, status: int, reason: str = "", pauses: tuple[float, ...] = (1.0, 3.0, 0.0)
    ) -> None:
        """Tells the supervisor how training ended, or why the machine is deleted.

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
            except (OSError, ValueError) as error:
                say(f"exit.json could not be written: {error}")
                time.sleep(pause)

    def delete(self) -> None:
        """Asks the service to delete this machine; all of its addresses, whatever each answers."""
        for address in self._terms.delete:
            try:
                self.request("DELETE", address)
                say(f"deleted {address}")
            except (OSError, ValueError) as error:
                say(f"deleting {address} failed, will be tried again: {error}")

    def request(
        self, method: str, url: str, data: bytes | None = None, seconds: float = DEADLINE_SECONDS
    ) -> bytes:
        """One signed request, over within `seconds`."""
        headers = {"Content-Type": "application/octet-stream"}
        if method != "GET" or url.startswith(self._terms.storage):
            headers["Authorization"] = f"Bearer {self._token()}"
        return self._open(urllib.request.Request(url, data, headers, method=method), seconds)

    def get(self, url: str, target: str) -> None:
        """One file of the bucket into a local file."""
        data = self._read(url, GET_SECONDS)
        with open(target, "wb") as file:
            file.write(data)

    def _token(self) -> str:
        where = f"{self._terms.metadata}/computeMetadata/v1/instance/service-accounts/default/token"
        request = urllib.request.Request(where, headers={"Metadata-Flavor": "Google"})
        return str(json.loads(self._open(request, DEADLINE_SECONDS))["access_token"])

    def _open(self, request: urllib.request.Request, seconds: float) -> bytes:
        parts: list[bytes] = []
        until = time.monotonic() + seconds
        with self._opener.open(request, timeout=min(CALL_SECONDS, seconds)) as answer:
            while True:  # a server that sends a byte now and then has a deadline, too
                part = answer.read1(1 << 20)
                if not part:
                    return b"".join(parts)
                parts.append(part)
                if time.monotonic() > until:
                    raise TimeoutError(f"{request.full_url}: no end after {seconds:.0f} s")

    def _read(self, url: str, seconds: float = DEADLINE_SECONDS) -> bytes:
        if not url.startswith("gs://"):
            with open(url, "rb") as file:
                return file.read()
        bucket, _, name = url[5:].partition("/")
        quoted = urllib.parse.quote(name, safe="")
        return self.request(
            "GET",
            f"{self._terms.storage}/storage/v1/b/{bucket}/o/{quoted}?alt=media",
            None,
            seconds,
        )

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
        """The object in a file; empty where none can be read."""
        try:
            values = json.loads(self._read(f"{directory}/{name}"))
        except (OSError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}


def watch(
    terms: Terms,
    machine: Machine,
    notes: Notes,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    boot: str,
) -> None:
    """Watches for as long as the machine is there."""
    counters, is_reported = notes.load(), False
    if terms.asked and not counters.boot:  # the first start of all; its life began before
        late = time.time() - terms.asked
        counters = replace(counters, age=min(max(0.0, late), CREATION_SECONDS))
        if terms.hosts > 1 and late > CREATION_SECONDS:
            # The successor of a lost host: what the others have counted, nobody tells it.
            counters = replace(counters, unrenewed=max(0.0, terms.lease - REPLACED_SECONDS))
    while True:
        sleep(terms.poll)
        seconds = since(counters, clock(), boot, time.time()) if counters.boot else terms.poll
        counters = turn(counters, seconds, machine.look())
        counters = replace(counters, clock=clock(), boot=boot, wall=time.time())
        notes.save(counters)
        reason = must_go(counters, terms)
        if not reason:
            machine.tell()
            continue
        say(f"{reason}: deleting this machine")
        if not is_reported and not counters.ended:
            machine.report(STALLED, reason, pauses=(0.0,))  # one try, which has a deadline
            is_reported = True
        machine.delete()


def say(text: str) -> None:
    """A line for the console of the machine."""
    with contextlib.suppress(OSError, ValueError):
        print(time.strftime("%FT%TZ", time.gmtime()), "bigbird-ja:", text, file=sys.stderr)


def boot_id() -> str:
    """Another one after each boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def since_boot() -> float:
    """Seconds that nobody sets, and that count while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def main(arguments: list[str]) -> int:
    """See the module."""
    verb, terms = arguments[0], Terms(**json.loads(arguments[1]))
    work_dir = os.environ.get("BIGBIRD_JA_VM_DIR", "/opt/bigbird-ja")
    memory = os.environ.get("BIGBIRD_JA_VM_RUN_DIR", "/run")
    machine = Machine(terms, work_dir)
    if verb == "get":
        machine.get(arguments[2], arguments[3])
        return 0
    if verb == "report":
        machine.tell()
        machine.report(int(arguments[2]))
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    name = f"bigbird-ja-{terms.attempt}.counters"
    notes = Notes([os.path.join(work_dir, name), os.path.join(memory, name)])
    watch(terms, machine, notes, since_boot, time.sleep, boot_id())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
