"""Mutual exclusion by a lock file, for `make-data`, `pretrain` and `launch`.

**On a disk** the holder keeps the file locked by `flock`. The kernel releases the lock when the
process ends, however it ends, and it is never taken from a process that lives.

**On a bucket** the holder creates the object if it is absent, and renews it: each renewal is a new
generation. A holder whose generation hasn't changed for `stale_seconds`, watched by our own
monotonic clock, is considered dead, and its object is replaced by a compare-and-swap, so that one
of several wins. While a lease is held, its folder is fenced: `storage` changes an object there only
while the lease is certain to outlast the request (`fences`). So a holder that lost the lease (it
was cut off, or its machine slept) changes nothing more: `renew`, `check` and every write raise
`LeaseLost`.

The content names the holder, for messages. The time in it is only shown: clocks may differ.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.process.console import log
from bigbird_ja.storage import decode, environment, fences, paths

LOCK_NAME = "lock.json"
_POLL_SECONDS = 2.0
_MAX_BYTES = 64 << 10
# A lock file on a disk is padded to this size with spaces.
_FILE_BYTES = 1024
_ADVICE = "if no process works here, remove it"


def boot_clock() -> float:
    """Return monotonic seconds, which on Linux count while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseLost(StorageError):
    """Loss of a lease to another process, after which nothing may be written."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process and one of its acquisitions: the content of a lock file."""

    host: str
    pid: int
    id: str  # A random one for each acquisition.
    renewed: float = 0.0  # UNIX seconds by the holder's clock, for messages only.
    format_version: str = ""

    @property
    def name(self) -> str:
        """Name of the process, for messages."""
        return f"process {self.pid} on host {self.host}"


class Lease:
    """Exclusive lease on a storage path.

    Args:
        path: lock file, whose folder must exist on disk.
        busy: error message if another process holds it, with `{owner}` for that process.
        log: callback for a line when a holder on a bucket is watched, or a stale lease is taken.
        stale_seconds: silence on a bucket after which a holder is considered dead.
        clock: monotonic seconds, which count while the machine sleeps.
        sleep: waits some seconds.
        owner: future holder, by default this process.
        wall: UNIX seconds, written to the file and never compared.

    Attributes:
        owner: the acquisition that this lease stands for.
        renew_seconds: time between two renewals.
        request_seconds, generations: see `fences.Fence`.
    """

    def __init__(
        self,
        path: str,
        busy: str,
        log: Callable[[str], None],
        stale_seconds: float | None = None,
        clock: Callable[[], float] = boot_clock,
        sleep: Callable[[float], None] = time.sleep,
        owner: Holder | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._busy, self._log = path, busy, log
        self._stale_seconds = stale_seconds or environment.lease_seconds()
        self.renew_seconds = self._stale_seconds / 4
        self.request_seconds = self._stale_seconds / 2
        self.generations: dict[str, int] = {}
        self._clock, self._sleep, self._wall = clock, sleep, wall
        self.owner = owner or Holder(
            host=socket.gethostname(),
            pid=os.getpid(),
            id=secrets.token_hex(8),
            format_version=decode.FORMAT_VERSION,
        )
        self._is_object = paths.is_remote(path)
        self._token: str | None = None
        # Until this time of `clock` no other process can have taken over.
        self._end = 0.0
        self._file: int | None = None  # Descriptor of the locked file.
        self._lock = threading.Lock()

    def acquire(self) -> Holder | None:
        """Take the lease, and return the dead holder that it was taken from, or None.

        Raises:
            BadInput: Another process holds it, or the file is no lock file.
        """
        before = self._acquire_object() if self._is_object else self._acquire_file()
        if before is not None:
            self._log(f"took over the stale lock of {before.name} ({self._path}): it has ended")
        if self._is_object:
            self._token = self._token_if_ours()
            fences.put_up(self._path, self)
        return before

    def _acquire_file(self) -> Holder | None:
        while True:
            file = _open(self._path)
            try:
                if not _lock(file, self._path):
                    raise self._refusal(_read(file, self._path))
                if _is_at(file, self._path):
                    before = _read(file, self._path)
                    os.ftruncate(file, _FILE_BYTES)
                    self._write(file)
                    self._file = file
                    return before
            finally:
                if self._file != file:
                    os.close(file)  # Its holder removed it at this moment, so try again.

    def _acquire_object(self) -> Holder | None:
        while not self._write_object(""):
            try:
                holder, token = _read_object(self._path)
            except FileNotFoundError:
                continue  # It was released at this moment.
            if self._is_silent(holder, token) and self._write_object(token):
                return holder
        return None

    def _write_object(self, token: str) -> str | None:
        """Replace one version of the object, and return the new token or None."""
        began = self._clock()
        new = storage.replace_if(self._path, self._content(), token)
        # Another process watches this version for `stale_seconds` before it takes over.
        if new is not None:
            self._end = began + self._stale_seconds
        return new

    def renew(self) -> None:
        """Renew the lease, which shows that the holder lives.

        Raises:
            LeaseLost: Another process has taken over.
            StorageError: The bucket fails, and a later call may succeed.
        """
        with self._lock:
            if not self._is_object:
                self.check()
                self._write(self._file)
                return
            token = self._write_object(self._token or self._token_if_ours())
            self._token = token or self._token_if_ours()

    def require(self, seconds: float) -> None:
        """Implement `fences.Fence.require`."""
        give_up = self._clock() + seconds
        while self._end - self._clock() < self.request_seconds:
            try:
                self.renew()
            except LeaseLost:
                raise
            except StorageError:
                if self._clock() >= give_up:
                    raise

    def share(self) -> LeaseShare:
        """Return the fence for the worker processes of this one."""
        return LeaseShare(self._path, self.owner.id, self._stale_seconds)

    def expect(self, versions: Mapping[str, str]) -> None:
        """State the tokens of replaceable files, while others are expected to be missing."""
        if self._is_object:
            self.generations.update((path, int(token)) for path, token in versions.items())

    def check(self) -> None:
        """Verify that this process holds the lease, before it writes files that others rely on.

        Raises:
            LeaseLost: Another process has taken over.
        """
        if self._is_object:
            self._token_if_ours()
        elif self._file is None or not _is_at(self._file, self._path):
            raise _lost(self._path, "another process")

    def release(self) -> None:
        """Delete the file, if this process still holds the lease."""
        with self._lock:
            if self._is_object:
                self._token = None
                with contextlib.suppress(LeaseLost):  # The fence stays then.
                    storage.delete_if(self._path, self._token_if_ours())
                    fences.take_down(self._path)
            elif self._file is not None:
                if _is_at(self._file, self._path):
                    os.unlink(self._path)
                os.close(self._file)
                self._file = None

    def _token_if_ours(self) -> str:
        """Return the object's token.

        Raises:
            LeaseLost: It names another holder, or does not exist.
        """
        self._token = None
        return _read_ours(self._path, self.owner.id)[1]

    def _is_silent(self, holder: Holder, token: str) -> bool:
        """Return whether the object still exists after its holder was silent for long enough.

        Raises:
            BadInput: The holder lives.
        """
        self._log(
            f"{self._path}: held by {holder.name}; watching for {self._stale_seconds:.0f} s whether"
            " that process is alive"
        )
        deadline = self._clock() + self._stale_seconds
        while self._clock() < deadline:
            self._sleep(min(_POLL_SECONDS, self.renew_seconds))
            try:
                if storage.read_with_token(self._path)[1] != token:
                    raise self._refusal(holder)
            except FileNotFoundError:
                return False
        return True

    def _refusal(self, holder: Holder | None) -> BadInput:
        name = holder.name if holder else "another process"
        return BadInput(self._busy.replace("{owner}", name))

    def _write(self, file: int | None) -> None:
        """Write the content into the locked file, in one length, so that a reader sees it whole."""
        assert file is not None
        os.pwrite(file, self._content().ljust(_FILE_BYTES), 0)

    def _content(self) -> bytes:
        return (json.dumps(asdict(replace(self.owner, renewed=self._wall()))) + "\n").encode()


@dataclass
class LeaseShare:
    """Fence of a worker process, on the machine of the holder that renews the lease."""

    path: str
    owner_id: str
    stale_seconds: float
    generations: dict[str, int] = field(default_factory=dict)
    # Until this time, in UNIX seconds, no other process can have taken over.
    _end: float = 0.0

    @property
    def request_seconds(self) -> float:
        """Maximum silence of the bucket within a request."""
        return self.stale_seconds / 2

    def put_up(self) -> None:
        """Fence the folder of the lease for this process, if it is on a bucket."""
        if paths.is_remote(self.path):
            fences.put_up(self.path, self)

    def require(self, seconds: float) -> None:
        """Implement `fences.Fence.require`."""
        give_up = boot_clock() + seconds
        while self._ends_soon():
            self.check()
            if self._ends_soon():
                if boot_clock() >= give_up:
                    raise StorageError(f"{self.path} was not renewed: rerun the same command")
                time.sleep(min(_POLL_SECONDS, self.stale_seconds / 8))

    def check(self) -> None:
        """Verify on the bucket that the lease is still the holder's, and when it was renewed."""
        self._end = _read_ours(self.path, self.owner_id)[0].renewed + self.stale_seconds

    def _ends_soon(self) -> bool:
        return self._end - time.time() < self.request_seconds


def _open(path: str) -> int:
    """Open a lock file, or create it.

    Links are not followed, and special files are not opened.

    Raises:
        BadInput: A link, a folder or something special has the name.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise BadInput(f"{path} is no lock file of bigbird-ja: {_ADVICE}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _lock(file: int, path: str) -> bool:
    """Lock an open file, and return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # The file system may lack locks.
    except OSError as error:
        error.filename = path
        raise
    return True


def _is_at(file: int, path: str) -> bool:
    """Check that an open file is the one of this name."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def _read_object(path: str) -> tuple[Holder, str]:
    """Read the holder that a lock on a bucket names, and the object's token."""
    data, token = storage.read_with_token(path, _MAX_BYTES)
    return _parse(data, path), token


def _read_ours(path: str, owner_id: str) -> tuple[Holder, str]:
    """Read a lock on a bucket that names this holder.

    Raises:
        LeaseLost: It names another one, or does not exist.
    """
    name = "another process"
    with contextlib.suppress(FileNotFoundError, BadInput):
        holder, token = _read_object(path)
        if holder.id == owner_id:
            return holder, token
        name = holder.name
    raise _lost(path, name)


def _lost(path: str, name: str) -> LeaseLost:
    return LeaseLost(
        f"{path}: {name} has taken over while this process was silent, so it writes nothing more"
    )


def _read(file: int, path: str) -> Holder | None:
    """Read the holder that a lock file names.

    It is None if the file is empty, as after a kill or on a full disk.

    Raises:
        BadInput: It is no lock file.
    """
    data = os.pread(file, _MAX_BYTES, 0).strip(b"\0 \n")
    return _parse(data, path) if data else None


def _parse(data: bytes, path: str) -> Holder:
    return decode.decode_versioned(data, Holder, path, _ADVICE)


def holder_of(path: str) -> Holder | None:
    """Return the holder, alive or dead, that a lock file names, or None if it can't be read."""
    try:
        return _parse(storage.read_bytes(path, _MAX_BYTES), path)
    except (OSError, StorageError, BadInput):
        return None


def exclusive(folder: str) -> contextlib.AbstractContextManager[Lease]:
    """Hold the lease of a folder, for its only writer.

    Raises:
        BadInput: Another process holds it.
    """
    busy = f"{{owner}} is writing to {folder}: wait until it has ended, or choose another folder"
    return held(Lease(storage.join(folder, LOCK_NAME), busy, log))


@contextlib.contextmanager
def held(lease: Lease) -> Iterator[Lease]:
    """Hold a lease, renewed by a thread, while the block runs.

    The block calls `lease.check()` before it writes files that others rely on.

    Raises:
        BadInput: Another process holds it.
    """
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(lease.renew_seconds):
            # A bucket that fails now may answer the next time. `check` detects a lost lease.
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
