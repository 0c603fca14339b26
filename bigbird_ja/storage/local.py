"""Files on disk: written to a temporary name in the same directory, synced, then renamed.

A reader sees the old file or the new one, never a part. A kill leaves at most one temporary file
per file being written; its name holds host and process, and the next writer of that file (or
`clean_temporary`) removes it once that process is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob as glob_module
import hashlib
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from typing import BinaryIO

from bigbird_ja.process import children, identity
from bigbird_ja.storage import paths
from bigbird_ja.storage.stat import Stat
from bigbird_ja.storage.urls import TEMPORARY_PREFIX

# A temporary file of another host is judged by its age alone.
_FOREIGN_AGE_SECONDS = 3600.0
_BUFFER = 1 << 20

_host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
_live: set[str] = set()  # temporary names that this process is writing now
_swept: set[str] = set()  # files whose leftovers this process has already looked for


def open_read(path: str) -> BinaryIO:
    """A buffered stream over the file.

    Raises:
        BadInput: a FIFO, a socket or a device: reading it might never end.
    """
    paths.refuse_special(path, "", os.stat(path), "copy what it gives into a file first")
    return open(path, "rb")


def stat(path: str) -> Stat:
    """Size and age of a file.

    Raises:
        IsADirectoryError: `path` is a directory.
    """
    if os.path.isdir(path):
        raise IsADirectoryError(21, "is a directory", path)
    return _stat_of(os.stat(path))


def _stat_of(info: os.stat_result) -> Stat:
    return Stat(info.st_size, info.st_mtime, _token_of(info))


def _token_of(info: os.stat_result) -> str:
    return f"{info.st_ino}-{info.st_mtime_ns}-{info.st_size}"


def _follow(path: str) -> os.stat_result:
    """`stat`; of a link that leads nowhere, the link's own."""
    try:
        return os.stat(path)
    except OSError:
        return os.lstat(path)


def exists(path: str) -> bool:
    """Whether there is a file or directory; unlike `os.path.exists`, a refusal raises."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def list_stats(directory: str) -> dict[str, Stat]:
    """Name to `Stat` of the finished files in `directory`; none where there is no directory."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
    except FileNotFoundError:
        return {}
    found = {}
    for name in sorted(names):
        if not name.startswith(TEMPORARY_PREFIX):
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                found[name] = _stat_of(_follow(os.path.join(directory, name)))
    return found


def list_tree(directory: str) -> list[str]:
    """Sorted relative names of the finished files under `directory`; links are not followed."""
    names = [
        os.path.relpath(os.path.join(parent, name), directory)
        for parent, _, files in os.walk(directory)
        for name in files
        if not name.startswith(TEMPORARY_PREFIX)
    ]
    return sorted(names)


def glob(pattern: str) -> list[str]:
    """Sorted paths that match; `**` crosses directories."""
    return sorted(glob_module.glob(pattern, recursive=True))


def write_bytes(path: str, data: bytes) -> None:
    """Writes `data` so that `path` is the old file or the new one at every instant."""
    with writing(path) as file:
        file.write(data)


@contextlib.contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` when the block ends without an exception."""
    with _temporary(path) as (temporary, file):
        yield file
        _finish(file)
        with _named(path):
            os.replace(temporary, path)
        _sync_directory(path)


def create_exclusive(path: str, data: bytes) -> bool:
    """Creates `path` with `data` in one step; False where it exists already."""
    with _temporary(path) as (temporary, file):
        file.write(data)
        _finish(file)
        try:
            # A hard link refuses an existing name and shows the whole content at once.
            os.link(temporary, path)
        except FileExistsError:
            return False
        except PermissionError:
            raise
        except OSError:  # a filesystem without hard links
            return _create_without_link(path, data)
        _sync_directory(path)
        return True


def _create_without_link(path: str, data: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        _finish(file)
    return True


def read_with_token(path: str, limit: int) -> tuple[bytes, str]:
    """The content, and a token that changes with every write.

    Raises:
        BadInput: more than `limit` bytes; nothing is read then.
    """
    with open_read(path) as file:
        paths.check_size(path, os.fstat(file.fileno()).st_size, limit)
        data = file.read()
        return data, _token_of(os.fstat(file.fileno()))


def replace_if(path: str, data: bytes, token: str) -> str | None:
    """Replaces the content if it is still the one of `token`; the new token, or None."""
    with _directory_lock(path):
        if _token(path) != token:
            return None
        write_bytes(path, data)
        return _token(path)


def delete_if(path: str, token: str) -> bool:
    """Deletes the file if it is still the one of `token`."""
    with _directory_lock(path):
        if _token(path) != token:
            return False
        os.unlink(path)
        return True


def delete(path: str, missing_ok: bool) -> None:
    """Removes a file."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        if not missing_ok:
            raise


def rename(source: str, target: str) -> None:
    """Renames a file over another, durably."""
    os.replace(source, target)
    _sync_directory(target)


def take(source: str, target: str) -> None:
    """Moves a file that others have written, its content synced first."""
    with open_read(source) as file:
        os.fsync(file.fileno())
    rename(source, target)


def fetch(path: str, directory: str) -> str:
    """The file is here already."""
    return path


def make_directory(path: str) -> None:
    """Creates a directory and its parents; fine where it exists."""
    os.makedirs(path, exist_ok=True)


def upload(source: str, target: str) -> None:
    """Copies a file; `target` appears whole or not at all."""
    with open_read(source) as reader, writing(target) as writer:
        shutil.copyfileobj(reader, writer, _BUFFER)


download = upload


def clean_temporary(directory: str, older_than: float) -> list[str]:
    """Removes what killed writers left in `directory`; the names removed.

    Args:
        older_than: seconds since the last write; younger ones stay.
    """
    removed = []
    for entry in _temporaries(directory):
        if _is_abandoned(os.path.join(directory, entry), older_than):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, entry))
                removed.append(entry)
    return removed


@contextlib.contextmanager
def _temporary(path: str) -> Iterator[tuple[str, BinaryIO]]:
    """An open temporary file beside `path`, gone at the end; errors carry the name `path`."""
    with contextlib.suppress(OSError):  # making the temporary file says what is wrong
        paths.refuse_special(path, "", os.lstat(path), "it is not replaced: name a file")
    directory, name = os.path.split(path)
    prefix = f"{TEMPORARY_PREFIX}{name}."
    _sweep(path, directory or ".", prefix)
    own = f"{prefix}{_host}-{os.getpid()}-{secrets.token_hex(4)}"
    temporary = os.path.join(directory, own)
    _live.add(own)
    try:
        with _named(path), children.remove_on_exit(temporary):
            # The umask decides, as for any file: 0600 of `mkstemp` would hide data from a team.
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            with os.fdopen(descriptor, "wb") as file:
                yield temporary, file
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        _live.discard(own)


def _sweep(path: str, directory: str, prefix: str) -> None:
    """Removes the leftovers of killed writers of this very file, once per process."""
    key = os.path.abspath(path)
    if key in _swept:
        return
    _swept.add(key)
    for entry in _temporaries(directory):
        full = os.path.join(directory, entry)
        if entry.startswith(prefix) and _is_abandoned(full, 0.0):
            with contextlib.suppress(OSError):
                os.unlink(full)


def _temporaries(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if name.startswith(TEMPORARY_PREFIX)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_abandoned(path: str, older_than: float) -> bool:
    """Whether the writer of a temporary file is gone."""
    try:
        age = time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return False
    name = os.path.basename(path)
    host, _, rest = name.rpartition(".")[2].partition("-")
    process = rest.partition("-")[0]
    if age < older_than or name in _live:
        return False
    if host != _host or not process.isdigit():
        return age > _FOREIGN_AGE_SECONDS
    # In containers every start may get the same process id: `_live` has told those apart.
    return int(process) == os.getpid() or not identity.is_running(int(process))


def _token(path: str) -> str | None:
    try:
        return _token_of(os.stat(path))
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _directory_lock(path: str) -> Iterator[None]:
    """Keeps two compare-and-swaps in one directory apart; the kernel frees it on a kill."""
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Gives an OSError the name that the user knows instead of none or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.filename is None or TEMPORARY_PREFIX in str(error.filename):
            error.filename = path
        raise


def _finish(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: str) -> None:
    """Makes a rename survive a power cut; filesystems that cannot are left alone."""
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
