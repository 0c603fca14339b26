"""Keeps all but one worker out, by a small file that its owner renews while it lives.

`make-data` holds one on its output, `pretrain` on MODEL_DIR, `launch` on the run that it watches.

An owner is known to be gone when its process is seen to have ended (same machine), or when the
file's token has not changed while we watched for `stale_seconds` on our own monotonic clock: also
that of a process which the system hides. Times in the file are for people: two machines' clocks
need not agree. Taking over is a compare-and-swap, so of several
that try one wins; an owner that lost the lease (its machine slept) learns of it from `renew` or
`check`, and must not write any more.
"""

import contextlib
import glob
import hashlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage import decode

RENEW_SECONDS = 10.0
STALE_SECONDS = 40.0
_POLL_SECONDS = 2.0
_MAX_BYTES = 64 << 10
_ADVICE = "not a lock file of ours: make sure that nobody is at work here, then remove it"


class LeaseLost(StorageError):
    """Reports that another process has taken over; nothing may be written any more."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Identifies a process and one of its acquisitions: the content of a lease file.

    A process id means something on one machine alone, in one namespace, until the next boot, and is
    used again. So it stands with all of these, and with the time at which the process started.
    """

    host: str
    machine: str  # boot and process namespace, within which `pid` is unique: see `_machine`
    pid: int
    started: int  # kernel clock ticks after boot
    id: str  # random, one per acquisition
    renewed: float = 0.0  # UNIX seconds by the owner's clock, for people
    format_version: str = ""

    @property
    def name(self) -> str:
        """Names the process for messages."""
        return f"process {self.pid} on host {self.host}"

    @property
    def has_ended(self) -> bool | None:
        """Tells whether it has ended, as a zombie has; None where that cannot be known.

        So it is with a process elsewhere, and with one that the system hides (`hidepid`).
        """
        if self.machine != _machine():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # it runs, as another user
            pass
        state, started = _state_and_start(self.pid)
        return state == "Z" or started != self.started if started and self.started else None


def this_owner() -> Holder:
    """Makes a new acquisition of this process."""
    return Holder(
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        started=_state_and_start(os.getpid())[1],
        id=secrets.token_hex(8),
        format_version=decode.FORMAT_VERSION,
    )


def _machine() -> str:
    """Returns `BOOT.NAMESPACE`.

    Virtual machines cloned while they run share what the kernel knows of its boot, but no name or
    network address: these are a part of it.
    """
    boot, namespace = socket.gethostname(), 0
    with contextlib.suppress(OSError):  # no /proc, or no network
        namespace = os.stat("/proc/self/ns/pid").st_ino
        devices = sorted(glob.glob("/sys/class/net/*/device"))
        addresses = [f"{os.path.dirname(device)}/address" for device in devices]
        for path in ("/proc/sys/kernel/random/boot_id", *addresses):
            with open(path, encoding="ascii") as file:
                boot += file.read()
    return f"{hashlib.sha256(boot.encode()).hexdigest()[:12]}.{namespace}"


def _state_and_start(pid: int) -> tuple[str, int]:
    """Reads fields 3 and 22 of /proc/PID/stat; ("", 0) where it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[19])


class Lease:
    """Gives the right to be the only one at work on something.

    Args:
        path: of the file; its folder must exist on disk.
        busy: the line that refuses; `{owner}` in it becomes the owner's name.
        log: gets a line when an owner elsewhere is watched, or a stale lease is taken over.
        stale_seconds: silence after which an owner elsewhere is gone; several renewals long.
        clock: seconds, monotonic.
        sleep: waits some seconds.
        owner: who asks; this process by default.
        wall: UNIX seconds, written for people and compared with nothing.
    """

    def __init__(
        self,
        path: str,
        busy: str,
        log: Callable[[str], None],
        stale_seconds: float = STALE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        owner: Holder | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._busy, self._log = path, busy, log
        self._stale_seconds, self._clock, self._sleep = stale_seconds, clock, sleep
        self._wall = wall
        self.owner = owner or this_owner()
        self._token: str | None = None
        self._lock = threading.Lock()

    def acquire(self) -> Holder | None:
        """Takes the lease, and returns the owner that it was taken over from, or None.

        Raises:
            BadInput: another process is at work, or what is at the path is no lease of ours.
        """
        taken_from = self._acquire()
        self._token = self._token_if_ours()
        return taken_from

    def _acquire(self) -> Holder | None:
        while True:
            # A link that leads nowhere would look like a file that is released this moment.
            if os.path.islink(self._path) or os.path.isdir(self._path):
                raise BadInput(f"{self._path}: {_ADVICE}")
            if storage.create_exclusive(self._path, self._content()):
                return None
            try:
                holder, token = self._read()
            except FileNotFoundError:
                continue  # released this moment
            if self._is_gone(holder, token) and storage.replace_if(
                self._path, self._content(), token
            ):
                self._log(
                    f"took over the stale lock of {holder.name} ({self._path}): that process is"
                    " gone"
                )
                return holder

    def renew(self) -> None:
        """Shows that the owner lives.

        Raises:
            LeaseLost: another process has taken over.
            StorageError: the bucket fails; try again later.
        """
        with self._lock:
            token = self._token and storage.replace_if(self._path, self._content(), self._token)
            self._token = token or self._token_if_ours()

    def check(self) -> None:
        """Reads the file to see who owns it, before anything that others rely on is written.

        Raises:
            LeaseLost: not ours any more.
        """
        self._token_if_ours()

    def release(self) -> None:
        """Deletes the file, if it is still ours."""
        with self._lock:
            self._token = None
            with contextlib.suppress(LeaseLost):
                storage.delete_if(self._path, self._token_if_ours())

    def _token_if_ours(self) -> str:
        """Returns the file's token.

        Raises:
            LeaseLost: it names another owner, or is gone.
        """
        name = "another process"
        with contextlib.suppress(FileNotFoundError, BadInput):
            holder, token = self._read()
            if holder.id == self.owner.id:
                return token
            name = holder.name
        self._token = None
        raise LeaseLost(
            f"{self._path}: {name} has taken over while this process was silent: stopped without"
            " writing"
        )

    def _is_gone(self, holder: Holder, token: str) -> bool:
        """Checks whether the owner is gone; False where the file has vanished meanwhile.

        Raises:
            BadInput: it is alive.
        """
        refusal = BadInput(self._busy.replace("{owner}", holder.name))
        has_ended = holder.has_ended
        if has_ended is not None:
            if has_ended:
                return True
            raise refusal
        self._log(
            f"{self._path}: held by {holder.name}; watching for {self._stale_seconds:.0f} s whether"
            " that process is alive"
        )
        deadline = self._clock() + self._stale_seconds
        while self._clock() < deadline:
            self._sleep(_POLL_SECONDS)
            try:
                if storage.read_with_token(self._path)[1] != token:
                    raise refusal
            except FileNotFoundError:
                return False
        return True

    def _read(self) -> tuple[Holder, str]:
        data, token = storage.read_with_token(self._path, _MAX_BYTES)
        return _parse(data, self._path), token

    def _content(self) -> bytes:
        return (json.dumps(asdict(replace(self.owner, renewed=self._wall()))) + "\n").encode()


def _parse(data: bytes, path: str) -> Holder:
    return decode.decode_versioned(data, Holder, path, _ADVICE)


def holder_of(path: str) -> Holder | None:
    """Reads who holds a lease; None where nobody does, or it cannot be read."""
    try:
        return _parse(storage.read_bytes(path), path)
    except (FileNotFoundError, StorageError, BadInput):
        return None


@contextlib.contextmanager
def held(lease: Lease, seconds: float = RENEW_SECONDS) -> Iterator[Lease]:
    """Holds a lease, renewed by a thread, while the block runs.

    The block calls `lease.check()` before it writes what others rely on.

    Raises:
        BadInput: another process is at work.
    """
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(seconds):
            # A bucket that fails now may answer the next time; a lost lease is seen by `check`.
            with contextlib.suppress(Exception):
                lease.renew()

    lease.acquire()
    try:
        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield lease
        finally:
            stop.set()
            thread.join()
    finally:
        with contextlib.suppress(Exception):
            lease.release()
