"""Files on disk, which are written under a temporary name, synced, and renamed.

So a reader sees the old file or the new one, never a file that is partly written. After a kill, a
temporary file may be left, which listings exclude.
"""

import contextlib
import errno
import fcntl
import glob as glob_module
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import BinaryIO

from bigbird_ja.process import cleanup
from bigbird_ja.storage import paths
from bigbird_ja.storage.paths import MAX_BYTES, TEMPORARY_PREFIX, Stat, encode_crc32c

# Minimum age of a temporary file to be removed. Clocks of two machines may differ by hours.
_ABANDONED_SECONDS = 24 * 3600.0
_BUFFER = 1 << 20


class Disk:
    """Files on this machine, with the same methods and guarantees as `gcs.Bucket`.

    Paths are strings. Errors (FileNotFoundError, PermissionError, `StorageError`) contain the path.
    """

    def open_read(self, path: str) -> BinaryIO:
        """Open a binary, seekable stream over one version of the file.

        Raises:
            BadInput: The path is a FIFO, a socket or a device. Reading it might never end.
        """
        paths.refuse_special(path, "", os.stat(path), "copy its output into a file first")
        return open(path, "rb")

    def read_with_token(self, path: str, limit: int = MAX_BYTES) -> tuple[bytes, str]:
        """Read a file, and return its content and its token.

        The token changes with every write. It is an argument of `replace_if`.

        Raises:
            BadInput: The file has more than `limit` bytes.
        """
        with self.open_read(path) as file:
            paths.check_size(path, os.fstat(file.fileno()).st_size, limit)
            data = file.read()
            return data, _make_token(os.fstat(file.fileno()))

    def stat(self, path: str) -> Stat:
        """Return the size and the token of a file."""
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return _make_stat(os.stat(path))

    def exists(self, path: str) -> bool:
        """Return whether a file or a directory exists. On a bucket, empty directories do not exist.

        A denied access or a failing bucket raises an error.
        """
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list_stats(self, directory: str) -> dict[str, Stat]:
        """Return the `Stat` of each file in a directory, by name in sorted order.

        A missing directory counts as empty. Temporary files and broken links are excluded. On a
        bucket, the stats contain checksums.
        """
        stats = {}
        for name in sorted(os.listdir(directory) if os.path.exists(directory) else ()):
            path = os.path.join(directory, name)
            if not name.startswith(TEMPORARY_PREFIX) and not os.path.isdir(path):
                # The path may be a broken link, or the file may have been removed meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    stats[name] = _make_stat(os.stat(path))
        return stats

    def list_tree(self, directory: str) -> list[str]:
        """Return the sorted paths of all files below a directory, relative to the directory.

        A missing directory counts as empty. Links to directories are not followed.
        """
        return sorted(
            os.path.relpath(os.path.join(parent, name), directory)
            for parent, _, files in os.walk(directory)
            for name in files
            if not name.startswith(TEMPORARY_PREFIX)
        )

    def glob(self, pattern: str) -> list[str]:
        """List the paths that match a pattern, sorted.

        Only `**` matches across directories. On disk, matching directories are included.
        """
        return sorted(glob_module.glob(pattern, recursive=True))

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file atomically. On disk, its directory must exist."""
        with self.writing(path) as file:
            file.write(data)

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """Context manager: open a file that becomes `path` if the block raises no exception."""
        with _open_temporary(path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            with _name_errors(path):
                os.replace(file.name, path)
            _sync_directory(path)

    def replace_if(self, path: str, data: bytes, token: str) -> str | None:
        """Replace a file, unless it was written since `token` was read.

        On disk, concurrent calls in one directory are serialized.

        Args:
            path: file to replace.
            data: new content.
            token: token of the file when it was read, or "" if it did not exist.

        Returns:
            The new token, or None if another process has written or deleted the file.
        """
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            # The kernel releases the lock if this process is killed.
            fcntl.flock(directory, fcntl.LOCK_EX)
            current = self.stat(path).token if os.path.exists(path) else ""
            if current != token:
                return None
            self.write_bytes(path, data)
            return self.stat(path).token
        finally:
            os.close(directory)

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file within the disk or the bucket. An existing target is replaced.

        On disk this is atomic and survives a power failure. On a bucket it is a copy and a
        deletion.
        """
        os.replace(source, target)
        _sync_directory(target)

    def copy(self, source: str, target: str) -> None:
        """Copy a file to a name that does not exist, by a hard link if possible.

        A hard link serves as a copy, since files are never changed in place.
        """
        try:
            os.link(source, target)
        except OSError:
            self.upload(source, target)

    def take(self, source: str, target: str) -> None:
        """Move a local file to `target`, by a rename on disk, or by an upload to a bucket."""
        with self.open_read(source) as file:
            os.fsync(file.fileno())
        self.rename(source, target)

    def upload(self, source: str, target: str) -> None:
        """Copy a local file to `target`. On a bucket, the checksum is verified."""
        with self.open_read(source) as reader, self.writing(target) as writer:
            shutil.copyfileobj(reader, writer, _BUFFER)

    def download(self, source: str, target: str) -> None:
        """Copy `source` to a local file. On a bucket, the checksum is verified."""
        self.upload(source, target)


def compute_file_crc32c(path: str) -> tuple[str, int]:
    """Return the CRC-32C of a local file (in base64, as in Cloud Storage) and its size in bytes.

    The file is read in chunks.
    """
    import google_crc32c

    value, count = 0, 0
    with Disk().open_read(path) as file:
        while chunk := file.read(_BUFFER):
            value = google_crc32c.extend(value, chunk)
            count += len(chunk)
    return encode_crc32c(value), count


def _make_stat(info: os.stat_result) -> Stat:
    return Stat(info.st_size, _make_token(info))


def _make_token(info: os.stat_result) -> str:
    return f"{info.st_ino}-{info.st_mtime_ns}-{info.st_size}"


@contextlib.contextmanager
def _open_temporary(path: str) -> Iterator[BinaryIO]:
    """Context manager: open a temporary file next to `path`, and remove this file on exit."""
    # `lstat` fails for a new file. Another cause of a failure is raised again when the temporary
    # file is opened.
    with contextlib.suppress(OSError):
        paths.refuse_special(path, "", os.lstat(path), "name a file")
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f"{TEMPORARY_PREFIX}{name}~{secrets.token_hex(4)}")
    try:
        # `mkstemp` is not used, as its mode 0600 would prevent other users from reading the data.
        with _name_errors(path), cleanup.remove_on_exit(temporary), open(temporary, "xb") as file:
            yield file
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def clean_temporary(directory: str, names: str, seconds: float = _ABANDONED_SECONDS) -> list[str]:
    """Remove temporary files of killed processes, and return their names.

    Args:
        directory: local folder. A missing folder or a folder on a bucket is ignored.
        names: regular expression for the final names of the files, without the temporary prefix.
        seconds: minimum age of the files to remove, in seconds since their last write.
    """
    pattern = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}({names})~[0-9a-f]{{8}}")
    removed = []
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        path = os.path.join(directory, name)
        if pattern.fullmatch(name):
            # Another process may have removed the file.
            with contextlib.suppress(OSError):
                if time.time() - os.stat(path).st_mtime > seconds:
                    os.unlink(path)
                    removed.append(name)
    return removed


@contextlib.contextmanager
def _name_errors(path: str) -> Iterator[None]:
    """Context manager: set the `filename` of an OSError to `path`.

    A `filename` that is present and does not name a temporary file is kept.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None or TEMPORARY_PREFIX in str(error.filename):
            error.filename = path
        raise


def _sync_directory(path: str) -> None:
    """Sync the directory of a renamed file, so that the rename survives a power failure."""
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def create_scratch_directory(parent: str | None = None, prefix: str = "") -> Iterator[str]:
    """Context manager: create an empty local folder (mode 0700), and remove it on exit.

    If the process is stopped, `cleanup.clean_up` removes the folder.

    Args:
        parent: parent folder, by default the system's folder for temporary files.
        prefix: prefix of the folder's name. If it is given, all existing folders with this prefix
            are removed first. The caller must own a lease, so that no running process uses them.
    """
    parent = parent or tempfile.gettempdir()
    for name in os.listdir(parent) if prefix else ():
        if name.startswith(prefix):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(
            prefix=prefix or "bigbird-ja-", dir=parent, ignore_cleanup_errors=True
        ) as path,
        cleanup.remove_on_exit(path),
    ):
        yield path
