"""One `make-data` at a time for an output directory; a lock whose owner died is taken over.

On disk the operating system holds the lock (flock) and drops it when the process ends, however it
ends. On a bucket the lock is an object that its owner renews; one not renewed for five minutes, or
whose owner ran on this machine and is gone, is stale.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator

from bigbird_ja import processes, storage
from bigbird_ja.console import log
from bigbird_ja.errors import BadInput

NAME = ".make-data.lock"
_RENEW_SECONDS = 60.0
_STALE_SECONDS = 300.0


@contextlib.contextmanager
def exclusive(directory: str, clock: Callable[[], float] = time.time) -> Iterator[None]:
    """Holds the directory's lock.

    Raises:
        BadInput: another process holds it.
    """
    path = storage.join(directory, NAME)
    with _on_bucket(path, clock) if storage.is_remote(path) else _on_disk(path):
        yield


@contextlib.contextmanager
def _on_disk(path: str) -> Iterator[None]:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise BadInput(f"{path}: not a file that make-data made: move it away") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise BadInput(f"{path}: not a file that make-data made: move it away")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(file, 200, 0).decode(errors="replace").strip()
            raise _refusal(path, owner) from error
        if not _is_still(path, file):  # its last owner finished between our two steps
            raise _refusal(path, "another process")
        os.ftruncate(file, 0)
        owner = processes.name(processes.this_process().as_dict())
        os.pwrite(file, f"{owner}\n".encode(), 0)
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    finally:
        os.close(file)


def _is_still(path: str, file: int) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(file).st_ino
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _on_bucket(path: str, clock: Callable[[], float]) -> Iterator[None]:
    token = _acquire(path, clock)
    stop = threading.Event()

    def renew() -> None:
        nonlocal token
        while not stop.wait(_RENEW_SECONDS):
            with contextlib.suppress(Exception):  # the next renewal may succeed; stale takes five
                token = storage.replace_if(path, _owner(clock), token) or token

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        storage.delete_if(path, token)


def _acquire(path: str, clock: Callable[[], float]) -> str:
    mine = _owner(clock)
    if storage.create_exclusive(path, mine):
        return storage.read_with_token(path)[1]
    try:
        data, token = storage.read_with_token(path)
    except FileNotFoundError as error:
        raise _refusal(path, "another process") from error
    try:
        owner = json.loads(data)
        name = processes.name(owner)
        age = clock() - float(owner["time"])
        is_stale = processes.has_ended(owner) or age > _STALE_SECONDS
    except (ValueError, KeyError, TypeError, AttributeError):
        name, is_stale = "an unknown process", True
    if not is_stale:
        raise _refusal(path, name)
    taken = storage.replace_if(path, mine, token)
    if taken is None:
        raise _refusal(path, "another process")
    log(f"{path}: left behind by {name}; taken over")
    return taken


def _owner(clock: Callable[[], float]) -> bytes:
    return json.dumps({**processes.this_process().as_dict(), "time": clock()}).encode()


def _refusal(path: str, owner: str) -> BadInput:
    directory = storage.directory_of(path)
    return BadInput(
        f"{directory}: {owner or 'another process'} is making data there: wait for it to end, or"
        " choose another --output_dir"
    )
