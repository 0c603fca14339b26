"""Files on disk: written to a temporary name in the same directory, synced, then renamed.

A reader sees the old file or the new one, never a part. A kill leaves at most one temporary file
per file being written; its name records the process, and the next writer of that file (or
`clean_temporary`) removes it once that process is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob as glob_module
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from typing import BinaryIO

from bigbird_ja.process import children, identity
from bigbird_ja.storage import paths
from bigbird_ja.storage.paths import TEMPORARY_PREFIX
from bigbird_ja.storage.place import MAX_BYTES, Place, Stat, encode_crc32c

# A temporary file of another machine is judged by its age alone.
_FOREIGN_AGE_SECONDS = 3600.0
_BUFFER = 1 << 20

_swept: set[str] = set()  # files whose leftovers this process has already removed


class Disk(Place):
    """Files of this machine."""

    def open_read(self, path: str) -> BinaryIO:
        """A FIFO, a socket or a device is refused: reading it might never end."""
        paths.refuse_special(path, "", os.stat(path), "copy what it gives into a file first")
        return open(path, "rb")

    def read_with_token(self, path: str, limit: int = MAX_BYTES) -> tuple[bytes, str]:
        """The size is checked before anything is read."""
        with self.open_read(path) as file:
            paths.check_size(path, os.fstat(file.fileno()).st_size, limit)
            data = file.read()
            return data, _token(os.fstat(file.fileno()))

    def stat(self, path: str) -> Stat:
        """Raises IsADirectoryError for a directory."""
        if os.path.isdir(path):
            raise IsADirectoryError(21, "is a directory", path)
        return _stat(os.stat(path))

    def exists(self, path: str) -> bool:
        """Unlike `os.path.exists`, raises where it may not look."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list_stats(self, directory: str) -> dict[str, Stat]:
        """A link that leads nowhere is listed with its own size."""
        try:
            with os.scandir(directory) as entries:
                names = sorted(entry.name for entry in entries if not entry.is_dir())
        except FileNotFoundError:
            return {}
        stats = {}
        for name in names:
            if not name.startswith(TEMPORARY_PREFIX):
                path = os.path.join(directory, name)
                with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                    stats[name] = _stat(os.stat(path) if os.path.exists(path) else os.lstat(path))
        return stats

    def list_tree(self, directory: str) -> list[str]:
        """Links are not followed."""
        return sorted(
            os.path.relpath(os.path.join(parent, name), directory)
            for parent, _, files in os.walk(directory)
            for name in files
            if not name.startswith(TEMPORARY_PREFIX)
        )

    def glob(self, pattern: str) -> list[str]:
        """Directories that match are listed too."""
        return sorted(glob_module.glob(pattern, recursive=True))

    def write_bytes(self, path: str, data: bytes) -> None:
        """`path` is the old file or the new one at every instant."""
        with self.writing(path) as file:
            file.write(data)

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """Writes to a temporary file beside `path`."""
        with _temporary(path) as file:
            yield file
            _sync(file)
            with _errors_named(path):
                os.replace(file.name, path)
            _sync_directory(path)

    def create_exclusive(self, path: str, data: bytes) -> bool:
        """A hard link refuses an existing name and shows the whole content at once."""
        with _temporary(path) as file:
            file.write(data)
            _sync(file)
            try:
                os.link(file.name, path)
            except FileExistsError:
                return False
            except PermissionError:
                raise
            except OSError:  # a filesystem without hard links
                return _create_without_link(path, data)
            _sync_directory(path)
            return True

    def replace_if(self, path: str, data: bytes, token: str) -> str | None:
        """Two of these in one directory take turns."""
        with _directory_lock(path):
            if not _is_version(path, token):
                return None
            self.write_bytes(path, data)
            return self.stat(path).token

    def delete_if(self, path: str, token: str) -> bool:
        """Takes turns with `replace_if`."""
        with _directory_lock(path):
            if not _is_version(path, token):
                return False
            os.unlink(path)
            return True

    def delete(self, path: str, missing_ok: bool = True) -> None:
        """Raises FileNotFoundError where there is none, if that is asked for."""
        with contextlib.suppress(*([FileNotFoundError] if missing_ok else [])):
            os.unlink(path)

    def rename(self, source: str, target: str) -> None:
        """One step, which survives a power cut."""
        os.replace(source, target)
        _sync_directory(target)

    def take(self, source: str, target: str) -> None:
        """The content is synced first: others have written it."""
        with self.open_read(source) as file:
            os.fsync(file.fileno())
        self.rename(source, target)

    def fetch(self, path: str, directory: str) -> str:
        """The file is here already."""
        return path

    def make_directory(self, path: str) -> None:
        """Fine where it exists."""
        os.makedirs(path, exist_ok=True)

    def upload(self, source: str, target: str) -> None:
        """A copy, which appears whole or not at all."""
        with self.open_read(source) as reader, self.writing(target) as writer:
            shutil.copyfileobj(reader, writer, _BUFFER)

    download = upload

    def clean_temporary(self, directory: str, older_than: float = 0.0) -> list[str]:
        """Spares the files of processes that run."""
        return _clean_temporary(directory, TEMPORARY_PREFIX, older_than)


def crc32c_of_file(path: str) -> tuple[str, int]:
    """CRC-32C (as `crc32c_text`) and size of a local file, read in chunks."""
    import google_crc32c

    value, count = 0, 0
    with Disk().open_read(path) as file:
        while chunk := file.read(_BUFFER):
            value = google_crc32c.extend(value, chunk)
            count += len(chunk)
    return encode_crc32c(value), count


def _stat(info: os.stat_result) -> Stat:
    return Stat(info.st_size, info.st_mtime, _token(info))


def _token(info: os.stat_result) -> str:
    return f"{info.st_ino}-{info.st_mtime_ns}-{info.st_size}"


def _is_version(path: str, token: str) -> bool:
    try:
        return _token(os.stat(path)) == token
    except FileNotFoundError:
        return False


def _create_without_link(path: str, data: bytes) -> bool:
    try:
        with open(path, "xb") as file:
            file.write(data)
            _sync(file)
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def _temporary(path: str) -> Iterator[BinaryIO]:
    """An open temporary file beside `path`, gone at the end; errors carry the name `path`."""
    with contextlib.suppress(OSError):  # making the temporary file reports what is wrong
        paths.refuse_special(path, "", os.lstat(path), "it is not replaced: name a file")
    directory, name = os.path.split(path)
    prefix = f"{TEMPORARY_PREFIX}{name}~"
    if (key := os.path.abspath(path)) not in _swept:
        _swept.add(key)
        with contextlib.suppress(OSError):
            _clean_temporary(directory or ".", prefix, 0.0)
    tag = identity.this_process().tag
    temporary = os.path.join(directory, f"{prefix}{tag}-{secrets.token_hex(4)}")
    try:
        # The umask decides, as for any file: 0600 of `mkstemp` would hide data from a team.
        with (
            _errors_named(path),
            children.remove_on_exit(temporary),
            open(temporary, "xb") as file,
        ):
            yield file
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _clean_temporary(directory: str, prefix: str, older_than: float) -> list[str]:
    removed = []
    names = os.listdir(directory) if os.path.isdir(directory) else []
    for name in names:
        path = os.path.join(directory, name)
        if name.startswith(prefix) and _is_abandoned(path, older_than):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                removed.append(name)
    return removed


def _is_abandoned(path: str, older_than: float) -> bool:
    """Whether the writer of a temporary file is gone."""
    try:
        age = time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return False
    if age < older_than:
        return False
    owner = identity.from_tag(path.rpartition("~")[2].rpartition("-")[0])
    if owner is not None and owner.is_here:
        return owner.has_ended
    return age > _FOREIGN_AGE_SECONDS


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
def _errors_named(path: str) -> Iterator[None]:
    """Gives an OSError the name that the user knows instead of none or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.filename is None or TEMPORARY_PREFIX in str(error.filename):
            error.filename = path
        raise


def _sync(file: BinaryIO) -> None:
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
