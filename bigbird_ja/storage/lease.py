"""One worker at a time: a small file, on disk or gs://, that its owner renews while it lives.

`make-data` holds one on its output, `pretrain` on MODEL_DIR, `launch` on the run that it watches.

An owner is known to be gone when its process has ended (same machine), or when the file's token has
not changed while we watched for `stale_seconds` on our own monotonic clock. Times in the file are
for people: two machines' clocks need not agree. Taking over is a compare-and-swap, so of several
that try one wins; whoever was taken over (a machine that slept) learns of it from `renew` or
`check`, and must not write any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from bigbird_ja import storage
from bigbird_ja.process import identity
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.process.identity import Process
from bigbird_ja.storage import decode

RENEW_SECONDS = 10.0
STALE_SECONDS = 40.0
_POLL_SECONDS = 2.0
_MOST_BYTES = 64 << 10
# What `make-data` of earlier versions wrote on disk, where the kernel's lock said the rest.
_FLOCK_OWNER = re.compile(rb"process (\d+) on host (.*)\n")


class LeaseLost(StorageError):
    """Another process has taken over; nothing may be written any more."""


@dataclass(frozen=True)
class Owner(Process):
    """A process, and which of its acquisitions."""

    id: str  # random, one per acquisition


@dataclass(frozen=True)
class Holder:
    """What a lease file says. Files of earlier versions lack some keys, or name them otherwise."""

    host: str
    pid: int
    machine: str = ""
    started: int = 0
    id: str = ""
    token: str = ""  # `id` in files of earlier versions of `launch`
    renewed: float = 0.0  # UNIX seconds by the owner's clock, for people
    time: float = 0.0  # `renewed` in files of earlier versions of `launch` and `make-data`

    @property
    def name(self) -> str:
        """The process in words."""
        return identity.name(asdict(self))

    @property
    def has_ended(self) -> bool:
        """Whether its process is known to have ended."""
        return identity.has_ended(asdict(self))


def this_owner() -> Owner:
    """A new owner that is this process."""
    return Owner(**identity.this_process().as_dict(), id=secrets.token_hex(8))


class Lease:
    """The right to be the only one at work on something.

    Args:
        path: of the file; its folder must exist on disk.
        busy: the line that refuses; `{owner}` in it becomes the owner in words.
        log: told when an owner elsewhere is watched, or a stale lease is taken over.
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
        owner: Owner | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._busy, self._log = path, busy, log
        self._stale_seconds, self._clock, self._sleep = stale_seconds, clock, sleep
        self._wall = wall
        self.owner = owner or this_owner()
        self._token: str | None = None
        self._one_at_a_time = threading.Lock()

    def acquire(self) -> Holder | None:
        """Takes the lease; the owner that it was taken over from, or None.

        Raises:
            BadInput: another process is at work, or what is at the path is no lease of ours.
        """
        try:
            return self._acquire()
        except KeyboardInterrupt:  # perhaps between the file and its being noted
            with contextlib.suppress(Exception):
                self.release()
            raise

    def _acquire(self) -> Holder | None:
        while True:
            self._refuse_what_is_no_file()
            if storage.create_exclusive(self._path, self._content()):
                return self._confirmed(None)
            found = self._read()
            if found is None:
                continue  # released this moment
            holder, token = found
            if holder.id == self.owner.id:  # created, but the answer was lost
                return self._confirmed(None)
            if not self._is_gone(holder, token):
                continue
            if storage.replace_if(self._path, self._content(), token) is not None:
                self._log(
                    f"took over the stale lock of {holder.name} ({self._path}): that process is"
                    " gone"
                )
                return self._confirmed(holder)

    def renew(self) -> None:
        """Shows that the owner lives.

        Raises:
            LeaseLost: another process has taken over.
            StorageError: the bucket fails; try again later.
        """
        with self._one_at_a_time:
            if self._token is None:
                self._raise_unless_ours()
                return
            token = storage.replace_if(self._path, self._content(), self._token)
            self._token = token or self._raise_unless_ours()

    def check(self) -> None:
        """Asks the file itself whose it is; for use before anything that others rely on is written.

        Raises:
            LeaseLost: not ours any more.
        """
        self._raise_unless_ours()

    def release(self) -> None:
        """Gives the lease back, if it is still ours."""
        with self._one_at_a_time:
            self._token = None
            with contextlib.suppress(LeaseLost):
                storage.delete_if(self._path, self._raise_unless_ours())

    def _confirmed(self, taken_from: Holder | None) -> Holder | None:
        self._token = self._raise_unless_ours()
        return taken_from

    def _raise_unless_ours(self) -> str:
        """The file's token."""
        try:
            found = self._read()
        except BadInput:  # it holds something else now
            found = None
        if found is None or found[0].id != self.owner.id:
            self._token = None
            who = "another process" if found is None else found[0].name
            raise LeaseLost(
                f"{self._path}: {who} has taken over while this process was silent: stopped without"
                " writing"
            )
        return found[1]

    def _is_gone(self, holder: Holder, token: str) -> bool:
        """Whether the owner is gone; False where the file has vanished meanwhile.

        Raises:
            BadInput: it is alive.
        """
        if identity.is_here(asdict(holder)):
            if holder.has_ended:
                return True
            raise self._refusal(holder.name)
        self._log(
            f"{self._path}: held by {holder.name}; watching for {self._stale_seconds:.0f} s whether"
            " that process is alive"
        )
        deadline = self._clock() + self._stale_seconds
        while self._clock() < deadline:
            self._sleep(_POLL_SECONDS)
            try:
                now = storage.read_with_token(self._path)[1]
            except FileNotFoundError:
                return False
            if now != token:
                raise self._refusal(holder.name)
        return True

    def _refusal(self, owner: str) -> BadInput:
        return BadInput(self._busy.replace("{owner}", owner))

    def _read(self) -> tuple[Holder, str] | None:
        try:
            data, token = storage.read_with_token(self._path)
        except FileNotFoundError:
            return None
        return self._parse(data), token

    def _parse(self, data: bytes) -> Holder:
        if not storage.is_remote(self._path) and (found := _FLOCK_OWNER.fullmatch(data)):
            return self._flock_holder(int(found[1]), found[2].decode("utf-8", "replace"))
        return parse(data, self._path)

    def _flock_holder(self, pid: int, host: str) -> Holder:
        """The owner of a file of an earlier `make-data`, which kept it locked while it lived."""
        with open(self._path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise self._refusal(f"process {pid} on host {host}") from error
        here = identity.this_process()
        return Holder(host, pid=0, machine=here.machine)  # id 0 runs nowhere: it has ended

    def _refuse_what_is_no_file(self) -> None:
        if storage.is_remote(self._path):
            return
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise BadInput(f"{self._path}: not a lock file of ours: {_REMOVE}")

    def _content(self) -> bytes:
        return (json.dumps({**self.owner.as_dict(), "renewed": self._wall()}) + "\n").encode()


_REMOVE = "make sure that nobody is at work here, then remove it"


def parse(data: bytes, path: str) -> Holder:
    """The owner that a lease file names.

    Raises:
        BadInput: it is no lease file.
    """
    holder = decode.decode_json(data, Holder, path, f"not a lock file of ours: {_REMOVE}")
    return replace(holder, id=holder.id or holder.token, renewed=holder.renewed or holder.time)


def holder_of(path: str) -> Holder | None:
    """Who holds a lease; None where nobody does, or nobody knows."""
    try:
        return parse(storage.read_bytes(path), path)
    except (FileNotFoundError, StorageError, BadInput):
        return None


@contextlib.contextmanager
def held(lease: Lease, seconds: float = RENEW_SECONDS) -> Iterator[Lease]:
    """Holds a lease, renewed by a thread, for the time of the block.

    The block asks `lease.check()` before it writes what others rely on.

    Raises:
        BadInput: another process is at work.
    """
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(seconds):
            # A bucket that fails now may answer the next time; who is lost hears it from `check`.
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
