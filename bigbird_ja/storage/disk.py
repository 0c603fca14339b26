"""Files on disk, written to a temporary name, synced, then renamed.

A reader sees the old file or the new one, never a part. A kill leaves at most one temporary file
per file being written, which no listing includes.
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

# Minimum age of a temporary file to be removed. A machine's clock may be hours off.
_ABANDONED_SECONDS = 24 * 3600.0
_BUFFER = 1 << 20


class Disk:
    """Files of this machine, with the same methods and guarantees as `gcs.Bucket`.

    Paths are strings, and errors name them: FileNotFoundError, PermissionError, `StorageError`.
    """

    def open_read(self, path: str) -> BinaryIO:
        """Open a binary, seekable stream over one version of the file, in constant memory.

        Raises:
            BadInput: A FIFO, a socket or a device, which reading might never finish.
        """
        paths.refuse_special(path, "", os.stat(path), "copy what it gives into a file first")
        return open(path, "rb")

    def read_with_token(self, path: str, limit: int = MAX_BYTES) -> tuple[bytes, str]:
        """Read the content, and the token of this version for `replace_if`.

        Raises:
            BadInput: The file has more than `limit` bytes.
        """
        with self.open_read(path) as file:
            paths.check_size(path, os.fstat(file.fileno()).st_size, limit)
            data = file.read()
            return data, _token(os.fstat(file.fileno()))

    def stat(self, path: str) -> Stat:
        """Return size and version of a file."""
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return _stat(os.stat(path))

    def exists(self, path: str) -> bool:
        """Return whether a file or a directory exists (on a bucket: a directory that is not empty).

        Return False only if that is certain: a refusal or a failing bucket raises.
        """
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list_stats(self, directory: str) -> dict[str, Stat]:
        """Map the sorted names of the files in a directory to `Stat`.

        It is empty if there is no directory.

        One request on a bucket, checksums included. Excluded are unfinished files and broken links.
        """
        stats = {}
        for name in sorted(os.listdir(directory) if os.path.exists(directory) else ()):
            path = os.path.join(directory, name)
            if not name.startswith(TEMPORARY_PREFIX) and not os.path.isdir(path):
                # It may be removed since, or a broken link.
                with contextlib.suppress(FileNotFoundError):
                    stats[name] = _stat(os.stat(path))
        return stats

    def list_tree(self, directory: str) -> list[str]:
        """List all files under a directory, relative to it and sorted.

        It is empty if there is no directory.

        Links are not followed.
        """
        return sorted(
            os.path.relpath(os.path.join(parent, name), directory)
            for parent, _, files in os.walk(directory)
            for name in files
            if not name.startswith(TEMPORARY_PREFIX)
        )

    def glob(self, pattern: str) -> list[str]:
        """List the paths that match, sorted.

        Only `**` matches across directories.

        On disk, directories that match are included.
        """
        return sorted(glob_module.glob(pattern, recursive=True))

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a whole file, so that `path` is the old or the new one at every instant.

        Its directory must exist on disk.
        """
        with self.writing(path) as file:
            file.write(data)

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """Open a file that becomes `path` when the block ends without an exception."""
        with _temporary(path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            with _errors_named(path):
                os.replace(file.name, path)
            _sync_directory(path)

    def replace_if(self, path: str, data: bytes, token: str) -> str | None:
        """Replace a file if it is still of version `token`, and return the new token or None.

        The token "" stands for a missing file. Calls in one directory are serialized.
        """
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)  # The kernel releases it on a kill.
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
        """Rename a file within the disk or the bucket, replacing the target.

        It is one step on disk, which survives a power failure, and on a bucket a copy and a
        deletion.
        """
        os.replace(source, target)
        _sync_directory(target)

    def copy(self, source: str, target: str) -> None:
        """Copy a file that is never changed in place to a free name, by a hard link."""
        try:
            os.link(source, target)
        except OSError:  # The file system lacks hard links.
            self.upload(source, target)

    def take(self, source: str, target: str) -> None:
        """Move a local file to `target`, by a rename on the same disk or by an upload."""
        with self.open_read(source) as file:
            os.fsync(file.fileno())
        self.rename(source, target)

    def upload(self, source: str, target: str) -> None:
        """Copy a local file to `target`, and verify the checksum."""
        with self.open_read(source) as reader, self.writing(target) as writer:
            shutil.copyfileobj(reader, writer, _BUFFER)

    def download(self, source: str, target: str) -> None:
        """Copy `source` to a local file, and verify the checksum."""
        self.upload(source, target)


def crc32c_of_file(path: str) -> tuple[str, int]:
    """Compute CRC-32C (as `crc32c_text`) and size of a local file, reading in chunks."""
    import google_crc32c

    value, count = 0, 0
    with Disk().open_read(path) as file:
        while chunk := file.read(_BUFFER):
            value = google_crc32c.extend(value, chunk)
            count += len(chunk)
    return encode_crc32c(value), count


def _stat(info: os.stat_result) -> Stat:
    return Stat(info.st_size, _token(info))


def _token(info: os.stat_result) -> str:
    return f"{info.st_ino}-{info.st_mtime_ns}-{info.st_size}"


@contextlib.contextmanager
def _temporary(path: str) -> Iterator[BinaryIO]:
    """Open a temporary file next to `path`, deleted at the end, whose errors name `path`."""
    with contextlib.suppress(OSError):  # Opening the temporary file reports the error.
        paths.refuse_special(path, "", os.lstat(path), "it is not replaced: name a file")
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f"{TEMPORARY_PREFIX}{name}~{secrets.token_hex(4)}")
    try:
        # The umask applies, as for any file: 0600 of `mkstemp` would hide data from a team.
        with _errors_named(path), cleanup.remove_on_exit(temporary), open(temporary, "xb") as file:
            yield file
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def clean_temporary(directory: str, names: str, seconds: float = _ABANDONED_SECONDS) -> list[str]:
    """Remove our temporary files that are older than `seconds`, and return their names.

    Args:
        directory: a folder with an ownership manifest.
        names: regular expression of the files that are written there.
        seconds: minimum time since the last write.
    """
    pattern = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}({names})~[0-9a-f]{{8}}")
    removed = []
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        path = os.path.join(directory, name)
        if pattern.fullmatch(name):
            with contextlib.suppress(OSError):  # Another process may have removed it.
                if time.time() - os.stat(path).st_mtime > seconds:
                    os.unlink(path)
                    removed.append(name)
    return removed


@contextlib.contextmanager
def _errors_named(path: str) -> Iterator[None]:
    """Set the file name of an OSError that has none or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.filename is None or TEMPORARY_PREFIX in str(error.filename):
            error.filename = path
        raise


def _sync_directory(path: str) -> None:
    """Make a rename survive a power failure, if the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def scratch_directory(parent: str | None = None, prefix: str = "") -> Iterator[str]:
    """Create an empty local folder (0700) for this block.

    `cleanup.clean_up` removes it, too.

    Args:
        parent: parent folder, by default the system's folder for temporary files.
        prefix: prefix of the folder's name that only holders of the caller's lease use. Other
            folders with that prefix belong to killed processes, and are removed.
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
