"""Mutual exclusion by a lock file: only one process at a time may write to a folder.

**On a disk** the holder locks the file by `flock`. The kernel releases the lock when the process
ends for any reason, and nothing can take the lock from a running process.

**On a bucket** the holder creates the object, and renews it: each renewal is a new generation. If
another process sees no new generation for `stale_seconds` of its own monotonic clock, it takes the
holder for dead, and replaces the object by a compare-and-swap. If several processes try this, only
one of them succeeds. The folder of a lease is fenced: `storage` sends a request that changes an
object there only if the lease will last longer than the request (`fences`). So a process that lost
its lease, because it was disconnected or suspended, changes nothing more: `renew`, `check` and
every write raise `LeaseLost`.

The file contains the holder's name and the time of the last renewal. Only worker processes on the
holder's machine use this time (`LeaseShare`), as the clocks of machines differ.
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
_ADVICE = "remove it if no process uses this folder"


def read_boot_clock() -> float:
    """Return the seconds of a monotonic clock that, on Linux, also counts during suspension."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseLost(StorageError):
    """Loss of a lease to another process, after which nothing may be written."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Holder of a lease, the content of a lock file.

    Attributes:
        host: Name of the holder's machine.
        pid: Process id of the holder.
        id: Random id of the holder.
        renewed: UNIX time of the last renewal, in seconds, by the clock of the holder's machine.
        format_version: Version of the file's format.
    """

    host: str
    pid: int
    id: str
    renewed: float = 0.0
    format_version: str = ""

    @property
    def name(self) -> str:
        """Name of the process, for messages."""
        return f"process {self.pid} on host {self.host}"


class Lease:
    """Exclusive lease on a storage path.

    Args:
        path: lock file. On disk, its folder must exist.
        busy: error message if another process owns the lease, with `{owner}` for that process.
        log: callback that logs a line. It is called before the wait for another holder, and after a
            takeover.
        stale_seconds: seconds without a renewal on a bucket after which a holder counts as dead.
        clock: monotonic clock in seconds, which also counts during suspension.
        sleep: callback that waits some seconds.
        owner: holder of this lease, by default this process.
        wall: UNIX clock in seconds, for the time of the renewal in the file.

    Attributes:
        owner: Holder of this lease.
        renew_seconds: Time between two renewals.
        request_seconds: Maximum timeout of a request that changes an object in the folder.
        generations: Known generations of the objects in the folder, by path.
    """

    def __init__(
        self,
        path: str,
        busy: str,
        log: Callable[[str], None],
        stale_seconds: float | None = None,
        clock: Callable[[], float] = read_boot_clock,
        sleep: Callable[[float], None] = time.sleep,
        owner: Holder | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._busy, self._log = path, busy, log
        self._stale_seconds = stale_seconds or environment.get_lease_seconds()
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
        # Time of `clock` until which no other process can take over.
        self._end = 0.0
        # Descriptor of the locked file.
        self._file: int | None = None
        self._lock = threading.Lock()

    def acquire(self) -> Holder | None:
        """Acquire the lease.

        Returns:
            The dead holder from which the lease was taken over, or None.

        Raises:
            BadInput: Another process owns the lease, or the file is not a lock file.
        """
        before = self._acquire_object() if self._is_object else self._acquire_file()
        if before is not None:
            self._log(f"took over the stale lock of {before.name}, which has ended ({self._path})")
        if self._is_object:
            self._token = self._read_own_token()
            fences.add_fence(self._path, self)
        return before

    def _acquire_file(self) -> Holder | None:
        while True:
            file = _open(self._path)
            try:
                if not _lock(file, self._path):
                    raise self._make_refusal(_read(file, self._path))
                if _is_at(file, self._path):
                    before = _read(file, self._path)
                    os.ftruncate(file, _FILE_BYTES)
                    self._write(file)
                    self._file = file
                    return before
            finally:
                # The lease was not acquired. If another holder removed the open file, the loop
                # opens a new one.
                if self._file != file:
                    os.close(file)

    def _acquire_object(self) -> Holder | None:
        while not self._write_object(""):
            try:
                holder, token = _read_object(self._path)
            except FileNotFoundError:
                # The lease was released meanwhile.
                continue
            if self._is_silent(holder, token) and self._write_object(token):
                return holder
        return None

    def _write_object(self, token: str) -> str | None:
        """Write the lock's object, if its current token equals `token`.

        If `token` is "", no object may exist yet.

        Returns:
            The new token, or None if the object has changed.
        """
        began = self._clock()
        new = storage.replace_if(self._path, self._encode(), token)
        # Another process takes over only if the object does not change for `stale_seconds`.
        if new is not None:
            self._end = began + self._stale_seconds
        return new

    def renew(self) -> None:
        """Renew the lease.

        Raises:
            LeaseLost: Another process has taken over.
            StorageError: The bucket fails. A later call may succeed.
        """
        with self._lock:
            if not self._is_object:
                self.check()
                self._write(self._file)
                return
            token = self._write_object(self._token or self._read_own_token())
            self._token = token or self._read_own_token()

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

    def make_share(self) -> LeaseShare:
        """Return the `LeaseShare` with which a worker process fences the folder of this lease."""
        return LeaseShare(self._path, self.owner.id, self._stale_seconds)

    def expect(self, versions: Mapping[str, str]) -> None:
        """Set the expected generations of existing objects. Others are expected not to exist.

        If an object has another generation, a write verifies the lease before it replaces the
        object.

        Args:
            versions: generation of each object, by path. On disk, the argument is ignored.
        """
        if self._is_object:
            self.generations.update((path, int(token)) for path, token in versions.items())

    def check(self) -> None:
        """Verify that this process still owns the lease, before it writes important files.

        Raises:
            LeaseLost: Another process has taken over.
        """
        if self._is_object:
            self._read_own_token()
        elif self._file is None or not _is_at(self._file, self._path):
            raise _make_lost_error(self._path, "another process")

    def release(self) -> None:
        """Release the lease: delete the lock file, if this process still owns the lease."""
        with self._lock:
            if self._is_object:
                self._token = None
                # After a loss of the lease, the fence remains, so that this process writes nothing.
                with contextlib.suppress(LeaseLost):
                    storage.delete_if(self._path, self._read_own_token())
                    fences.remove_fence(self._path)
            elif self._file is not None:
                if _is_at(self._file, self._path):
                    os.unlink(self._path)
                os.close(self._file)
                self._file = None

    def _read_own_token(self) -> str:
        """Return the token of the lock's object, if this process still owns the lease.

        Raises:
            LeaseLost: The object contains another holder, or does not exist.
        """
        self._token = None
        return _read_ours(self._path, self.owner.id)[1]

    def _is_silent(self, holder: Holder, token: str) -> bool:
        """Watch another holder's lease, and return whether `stale_seconds` pass without a renewal.

        The result is False if the holder released the lease.

        Raises:
            BadInput: The holder renewed the lease.
        """
        self._log(
            f"{self._path}: leased by {holder.name}; waiting {self._stale_seconds:.0f} s to see"
            " whether that process is alive"
        )
        deadline = self._clock() + self._stale_seconds
        while self._clock() < deadline:
            self._sleep(min(_POLL_SECONDS, self.renew_seconds))
            try:
                if storage.read_with_token(self._path)[1] != token:
                    raise self._make_refusal(holder)
            except FileNotFoundError:
                return False
        return True

    def _make_refusal(self, holder: Holder | None) -> BadInput:
        name = holder.name if holder else "another process"
        return BadInput(self._busy.replace("{owner}", name))

    def _write(self, file: int | None) -> None:
        """Write the locked file, padded to a fixed length, so that readers see complete content."""
        assert file is not None
        os.pwrite(file, self._encode().ljust(_FILE_BYTES), 0)

    def _encode(self) -> bytes:
        return (json.dumps(asdict(replace(self.owner, renewed=self._wall()))) + "\n").encode()


@dataclass
class LeaseShare:
    """Fence for a worker process on the same machine as the lease's holder.

    The holder renews the lease, and the worker only checks that the lease is still valid.

    Attributes:
        path: Path of the lock file.
        owner_id: Id of the holder.
        stale_seconds: Seconds without a renewal after which the holder counts as dead.
        generations: Known generations of the objects in the folder, by path.
    """

    path: str
    owner_id: str
    stale_seconds: float
    generations: dict[str, int] = field(default_factory=dict)
    # UNIX time, in seconds, until which no other process can take over.
    _end: float = 0.0

    @property
    def request_seconds(self) -> float:
        """Maximum timeout, in seconds, of a request that changes an object in the folder."""
        return self.stale_seconds / 2

    def add_fence(self) -> None:
        """Fence the folder of the lease in this process, if it is on a bucket."""
        if paths.is_remote(self.path):
            fences.add_fence(self.path, self)

    def require(self, seconds: float) -> None:
        """Implement `fences.Fence.require`."""
        give_up = read_boot_clock() + seconds
        while self._ends_soon():
            self.check()
            if self._ends_soon():
                if read_boot_clock() >= give_up:
                    raise StorageError(
                        f"the lease {self.path} was not renewed in time: rerun the same command"
                    )
                time.sleep(min(_POLL_SECONDS, self.stale_seconds / 8))

    def check(self) -> None:
        """Verify on the bucket that the holder still owns the lease, and read its last renewal."""
        self._end = _read_ours(self.path, self.owner_id)[0].renewed + self.stale_seconds

    def _ends_soon(self) -> bool:
        return self._end - time.time() < self.request_seconds


def _open(path: str) -> int:
    """Open a lock file, or create it.

    Raises:
        BadInput: The path is a link, a folder or a special file.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise BadInput(f"{path} is not a lock file of bigbird-ja: {_ADVICE}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _lock(file: int, path: str) -> bool:
    """Lock an open file, and return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # Some file systems do not support locks.
    except OSError as error:
        error.filename = path
        raise
    return True


def _is_at(file: int, path: str) -> bool:
    """Return whether `path` still names this open file."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def _read_object(path: str) -> tuple[Holder, str]:
    """Read a lock on a bucket, and return its holder and the object's token."""
    data, token = storage.read_with_token(path, _MAX_BYTES)
    return _parse(data, path), token


def _read_ours(path: str, owner_id: str) -> tuple[Holder, str]:
    """Read a lock on a bucket, and check that its holder has the id `owner_id`.

    Returns:
        The holder, and the object's token.

    Raises:
        LeaseLost: The lock contains another holder, or does not exist.
    """
    name = "another process"
    with contextlib.suppress(FileNotFoundError, BadInput):
        holder, token = _read_object(path)
        if holder.id == owner_id:
            return holder, token
        name = holder.name
    raise _make_lost_error(path, name)


def _make_lost_error(path: str, name: str) -> LeaseLost:
    return LeaseLost(
        f"{path}: {name} has taken over, since this process did not renew its lease in time. This"
        " process stops writing"
    )


def _read(file: int, path: str) -> Holder | None:
    """Read the holder in a lock file, or return None if the file is empty.

    The file may be empty because its writer was killed, or because the disk is full.

    Raises:
        BadInput: The file is not a lock file.
    """
    data = os.pread(file, _MAX_BYTES, 0).strip(b"\0 \n")
    return _parse(data, path) if data else None


def _parse(data: bytes, path: str) -> Holder:
    return decode.decode_versioned(data, Holder, path, _ADVICE)


def read_holder(path: str) -> Holder | None:
    """Return the holder named in a lock file, alive or dead, or None if the file is unreadable."""
    try:
        return _parse(storage.read_bytes(path, _MAX_BYTES), path)
    except (OSError, StorageError, BadInput):
        return None


def lease_folder(folder: str) -> contextlib.AbstractContextManager[Lease]:
    """Context manager: acquire the lease of a folder, so that only this process writes to it.

    Raises:
        BadInput: Another process owns the lease.
    """
    busy = f"{{owner}} is writing to {folder}: wait until it has ended, or choose another folder"
    return keep_lease(Lease(storage.join(folder, LOCK_NAME), busy, log))


@contextlib.contextmanager
def keep_lease(lease: Lease) -> Iterator[Lease]:
    """Context manager: acquire a lease, renew it in a thread, and release it on exit.

    The block must call `lease.check()` before it writes important files.

    Raises:
        BadInput: Another process owns the lease.
    """
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(lease.renew_seconds):
            # A failing bucket may work again at the next renewal. `check` detects a lost lease.
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
