"""Objects on Google Cloud Storage as files, by `google-cloud-storage`: `Bucket`.

The library retries what its documentation calls transient (`DEFAULT_RETRY`). Here are the deadline,
the warning that it logs nowhere, reads pinned to a generation, verified writes, and the exceptions
that callers handle.
"""

import contextlib
import errno
import functools
import io
import logging
import math
import mimetypes
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import google_crc32c
from google.api_core.exceptions import GoogleAPICallError, PreconditionFailed, RetryError
from google.auth import exceptions as auth
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.fileio import BlobReader
from google.cloud.storage.retry import DEFAULT_RETRY

from bigbird_ja.errors import Refused, StorageError
from bigbird_ja.process.console import shortened
from bigbird_ja.process.redact import redact
from bigbird_ja.storage import environment, fences, paths
from bigbird_ja.storage.disk import Disk, scratch_directory
from bigbird_ja.storage.paths import MAX_BYTES, SCHEME, Stat, encode_crc32c, split_remote

# Bytes per request of a large file, a multiple of 256 KiB as the protocol requires.
CHUNK = 16 << 20
# Maximum number of restarts of a transfer that was damaged or lost, or whose object was replaced.
MAX_RESTARTS = 3
# Maximum seconds between two tries.
_MAX_DELAY = 32.0
_FIELDS = "items(name,size,generation,crc32c),nextPageToken"

_logger = logging.getLogger(__name__)


def client() -> Any:
    """Return the client.

    `STORAGE_EMULATOR_HOST` sends it, anonymous, to an emulator instead of Google.
    """
    return _client(os.environ.get("STORAGE_EMULATOR_HOST"))


@functools.cache
def _client(emulator: str | None) -> Any:
    # Objects need no project, but the client requires one.
    return storage.Client(project=os.environ.get("GOOGLE_CLOUD_PROJECT", "unset"))


def blob_of(path: str) -> Any:
    """Return the object of a gs:// path, without a request."""
    bucket, name = split_remote(path)
    with faults(path):  # Credentials may be missing.
        return client().bucket(bucket).blob(name)


def current(path: str) -> Any:
    """Return the object with its metadata, so that further requests name its generation."""
    blob = blob_of(path)
    with faults(path):
        blob.reload(**options(path))
    return blob


class DamagedError(StorageError):
    """The bytes that were read, or stored, do not match the object's checksum."""


class ObjectReader(BlobReader):
    """Stream of the current generation of an object, in chunks.

    Read from the first byte to the last, it is checked against the object's CRC-32C.

    Raises:
        DamagedError: The checksum differs.
        StorageError: A fault lasted, or the object was replaced after this reader was opened.
    """

    def __init__(self, path: str) -> None:
        self._path, self._object = path, current(path)
        super().__init__(self._object, CHUNK, raw_download=True, **options(path))
        self._checked = self._checksum = 0

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, fewer at the end, or all for -1."""
        start, total = self.tell(), self._object.size
        count = min(size, total - start) if size >= 0 else total - start
        data = b""
        for _ in range(MAX_RESTARTS):
            if len(data) < count:  # A reply may be short.
                data += self._read(count - len(data))
        if len(data) < count:
            raise DamagedError(f"{self._path}: short replies ({len(data)} of {count} bytes)")
        if start == self._checked:
            self._checked += count
            self._checksum = google_crc32c.extend(self._checksum, data)
            if self._checked == total and encode_crc32c(self._checksum) != self._object.crc32c:
                raise DamagedError(f"{self._path}: damaged on the way, so rerun the same command")
        return data

    def _read(self, size: int) -> bytes:
        try:
            with faults(self._path):
                return bytes(super().read(size))
        except FileNotFoundError as error:
            if current(self._path).generation == self._object.generation:
                raise
            message = f"{self._path} was replaced while it was read: rerun the same command"
            raise StorageError(message) from error


def options(path: str, is_write: bool = False) -> dict[str, Any]:
    """Return timeout and retries for a method of the client library that may be repeated.

    Args:
        path: object of the request, for messages.
        is_write: whether the request changes the object: behind a fence, each try begins while the
            lease is certain to outlast it.
    """
    seconds = environment.storage_timeout()
    fence = fences.fence_of(path) if is_write else None

    def on_error(error: Exception) -> None:
        _logger.warning("%s: %s: trying again for up to %g s", path, reason(error), seconds)

    def retry(call: Callable[[], Any]) -> Callable[[], Any]:
        def fenced() -> Any:
            if fence is not None:
                fence.require(seconds)
            return call()

        return policy(fenced, on_error=on_error)

    policy = DEFAULT_RETRY.with_delay(seconds / 600, _MAX_DELAY).with_timeout(seconds)
    silence = min(60.0, max(seconds / 3, 0.2))  # The deadline allows three tries.
    if fence is not None:
        silence = min(silence, fence.request_seconds)
    return {"timeout": silence, "retry": retry}


@contextlib.contextmanager
def faults(path: str) -> Iterator[None]:
    """Turn the exceptions of the library within a block into those that callers handle.

    Raises:
        StorageError: A fault lasted beyond the deadline. The message names `path` and the cause.
        FileNotFoundError, PermissionError: `path` is their file name.
    """
    try:
        yield
    except Exception as error:
        translated = translate(error, path)
        if translated is error:
            raise
        raise translated from error


def translate(error: Exception, path: str) -> Exception:
    """Return the exception that callers handle for one of the library."""
    status = status_of(error)
    if isinstance(error, RetryError):
        return StorageError(
            f"{path} failed for {environment.storage_timeout():g} s ({reason(error.cause)}): check"
            " the bucket and the network, then rerun the same command"
        )
    if isinstance(error, DataCorruption):
        return DamagedError(f"{path}: damaged on the way each time, so rerun the same command")
    if status == 404:
        what = "bucket" if "bucket does not exist" in str(error) else "object"
        return FileNotFoundError(errno.ENOENT, f"no such {what}", path)
    if status in (401, 403):
        return PermissionError(errno.EACCES, f"permission denied ({reason(error)})", path)
    if isinstance(error, auth.GoogleAuthError):
        to_do = "run `gcloud auth application-default login`"
        return Refused(
            f"{path} needs Google credentials, which are missing, expired or revoked: {to_do}"
        )
    if status == 400:
        return Refused(f"{path}: the bucket refuses the request ({reason(error)})")
    if status is not None and status != 412:
        return StorageError(f"{path}: {reason(error)}")
    return error


def reason(error: BaseException | None) -> str:
    """Describe a fault in one short line, without addresses that carry secrets."""
    status = status_of(error)
    if status is not None:
        # The library puts the request's address before the server's own message.
        try:
            response: Any = getattr(error, "response", None)
            message = str(response.json()["error"]["message"])
        except (AttributeError, ValueError, TypeError, KeyError):
            message = type(error).__name__
        return shortened(f"{status} {redact(message)}", 200)
    # The message may contain a request's address.
    return f"no answer ({type(error).__name__})"


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status of an exception, if it has one."""
    if isinstance(error, InvalidResponse):
        return int(error.response.status_code)
    return error.code if isinstance(error, GoogleAPICallError) else None


class Bucket:
    """Objects on a bucket, by the methods of `Disk`, which documents each.

    There are no directories, and an object appears with its last byte.
    """

    def open_read(self, path: str) -> BinaryIO:
        """Open a buffered stream over the generation that is current now."""
        return io.BufferedReader(ObjectReader(path), 1 << 16)

    def read_with_token(self, path: str, limit: int = MAX_BYTES) -> tuple[bytes, str]:
        """Read by one request, which returns one generation."""
        content = io.BytesIO()
        blob = _download(path, content, limit)
        return content.getvalue(), str(blob.generation)

    def stat(self, path: str) -> Stat:
        """Request size, generation and checksum."""
        return _stat(current(path))

    def exists(self, path: str) -> bool:
        """Return whether there is an object of this name, or one below it."""
        prefix = _directory_prefix(path)
        if prefix:
            with contextlib.suppress(FileNotFoundError):
                self.stat(path.rstrip("/"))
                return True
        with contextlib.suppress(FileNotFoundError):  # The bucket may be missing.
            return any(_objects(path, prefix, "", page_size=10)) or not prefix
        return False

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write one object."""
        _put(path, io.BytesIO(data), len(data))

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """Open a local file, which is uploaded at the end."""
        with scratch_directory() as scratch:
            local_path = os.path.join(scratch, "object")
            with open(local_path, "wb") as file:
                yield file
            self.upload(local_path, path)

    def replace_if(self, path: str, data: bytes, token: str) -> str | None:
        """Replace one generation, where 0 stands for a missing object.

        The reply to an earlier try may have been lost after the object was stored. A random word
        in its metadata tells our write from another's.
        """
        mark = secrets.token_hex(8)
        with contextlib.suppress(PreconditionFailed):
            return _upload(path, io.BytesIO(data), len(data), int(token or 0), mark)
        with contextlib.suppress(FileNotFoundError):
            blob = current(path)
            if (blob.metadata or {}).get("writer") == mark:
                return str(blob.generation)
        return None

    def upload(self, source: str, target: str) -> None:
        """Upload a file.

        The bucket's checksum is compared with the file's.
        """
        with Disk().open_read(source) as file:
            _put(target, file, os.fstat(file.fileno()).st_size)

    def take(self, source: str, target: str) -> None:
        """Upload a local file and delete it."""
        self.upload(source, target)
        os.unlink(source)

    def download(self, source: str, target: str) -> None:
        """Download in chunks, each with its own retries."""
        with Disk().writing(target) as file:
            _download(source, file, in_chunks=True)

    def copy(self, source: str, target: str) -> None:
        """Copy on the bucket's side."""
        token, how = None, options(target, is_write=True)
        while True:  # A large copy needs several requests.
            with faults(source):
                token, *_ = blob_of(target).rewrite(blob_of(source), token, **how)
            if not token:
                return

    def rename(self, source: str, target: str) -> None:
        """Copy on the bucket's side, then delete the old name."""
        self.copy(source, target)
        self.delete(source)

    def delete(self, path: str, generation: int | None = None) -> None:
        """Delete an object, or one generation if it is still the current one."""
        with contextlib.suppress(FileNotFoundError, PreconditionFailed), faults(path):
            blob_of(path).delete(if_generation_match=generation, **options(path, is_write=True))

    def list_stats(self, directory: str) -> dict[str, Stat]:
        """List the objects directly below, in the bucket's order, which is alphabetical."""
        prefix = _directory_prefix(directory)
        return {o.name[len(prefix) :]: _stat(o) for o in _objects(directory, prefix, "/")}

    def list_tree(self, directory: str) -> list[str]:
        """List all objects below."""
        prefix = _directory_prefix(directory)
        return [o.name[len(prefix) :] for o in _objects(directory, prefix, "")]

    def glob(self, pattern: str) -> list[str]:
        """List matching objects, since a bucket has no directories."""
        bucket, name_pattern = split_remote(pattern)
        found = _objects(pattern, "", "", match_glob=name_pattern)
        return [f"{SCHEME}{bucket}/{o.name}" for o in found]

    def location(self, path: str) -> str | None:
        """Return the region in lower case (`us-central1`, `us`), or None without permission.

        Objects may be readable without the permission to read the bucket's metadata.
        """
        try:
            with faults(path):
                bucket = client().get_bucket(split_remote(path)[0], **options(path))
        except PermissionError:
            return None
        return (bucket.location or "").lower() or None


class _Checked(io.RawIOBase):
    """Writer to a file that computes the checksum, and accepts at most `limit` bytes."""

    def __init__(self, path: str, file: BinaryIO, limit: float) -> None:
        super().__init__()
        self._path, self._file, self._limit = path, file, limit
        self.crc32c = 0
        file.seek(0)
        file.truncate()

    def write(self, data: Any) -> int:
        if not data:  # Otherwise the library requests this part forever.
            raise DamagedError("an empty reply")
        paths.check_size(self._path, self._file.tell() + len(data), self._limit)
        self.crc32c = google_crc32c.extend(self.crc32c, data)
        return self._file.write(data)


def _download(path: str, file: BinaryIO, limit: float = math.inf, in_chunks: bool = False) -> Any:
    """Download one generation, again if it was replaced or damaged on the way.

    Raises:
        DamagedError: The checksum differs each time.
    """
    for number in range(MAX_RESTARTS):
        blob = current(path) if in_chunks else blob_of(path)
        checked = _Checked(path, file, limit)
        blob.chunk_size = CHUNK if blob.size else None
        try:
            with faults(path):
                blob.download_to_file(checked, raw_download=True, checksum=None, **options(path))
            if blob.crc32c in (None, encode_crc32c(checked.crc32c)):
                return blob
        except DamagedError:
            pass
        except FileNotFoundError:
            if not in_chunks or number == MAX_RESTARTS - 1:
                raise
    raise DamagedError(f"{path}: damaged on the way each time, so rerun the same command")


def _stat(blob: Any) -> Stat:
    return Stat(int(blob.size), str(blob.generation), blob.crc32c)


def _put(path: str, file: BinaryIO, size: int) -> None:
    """Upload a file.

    Behind a fence, replace only the generation that the lease's holder knows.
    """
    fence = fences.fence_of(path)
    if fence is None:
        _upload(path, file, size)
        return
    for _ in range(MAX_RESTARTS):
        known = fence.generations.get(path, 0)
        try:
            fence.generations[path] = int(_upload(path, file, size, known))
            return
        except PreconditionFailed:
            fence.check()
            # The object is older, was stored by a try without a reply, or the user changed it.
            try:
                fence.generations[path] = int(current(path).generation)
            except FileNotFoundError:
                fence.generations.pop(path, None)
    raise StorageError(f"{path}: other processes keep changing it, so rerun the same command")


def _upload(
    path: str, file: BinaryIO, size: int, generation: int | None = None, mark: str = ""
) -> str:
    """Upload a file, and return the generation.

    The library cuts large files into chunks, each with its own deadline and retries, so that a file
    may take its time while it advances, and compares the checksums.

    Args:
        path: name of the object.
        file: file to send.
        size: size of the file, in bytes.
        generation: required generation of the object, or None for any.
        mark: identity of the writer, stored with the object.
    """
    problem: Exception | None = None
    for _ in range(MAX_RESTARTS):
        blob = blob_of(path)
        blob.chunk_size = CHUNK
        if mark:
            blob.metadata = {"writer": mark}
        file.seek(0)
        try:
            with faults(path):
                blob.upload_from_file(
                    file,
                    size=size,
                    content_type=mimetypes.guess_type(path)[0] or "application/octet-stream",
                    checksum="crc32c",
                    if_generation_match=generation,
                    **options(path, is_write=True),
                )
            return str(blob.generation)
        except (FileNotFoundError, StorageError) as error:
            # The bucket has forgotten a resumable upload: it starts again from the first byte. See
            # https://cloud.google.com/storage/docs/performing-resumable-uploads
            is_lost = status_of(error.__cause__) in (404, 410)
            if "no such bucket" in str(error) or not (is_lost or isinstance(error, DamagedError)):
                raise
            problem = error
    raise StorageError(
        f"{path}: the bucket lost or damaged each upload, so rerun the same command"
    ) from problem


def _objects(path: str, prefix: str, delimiter: str, **filters: Any) -> Iterator[Any]:
    """List the objects under `prefix`, page by page, each page with its own retries.

    The empty objects `NAME/`, by which consoles show a folder, are left out.
    """
    how = {"prefix": prefix or None, "delimiter": delimiter or None, "fields": _FIELDS}
    with faults(path):
        for found in client().list_blobs(split_remote(path)[0], **how, **filters, **options(path)):
            if not found.name.endswith("/"):
                yield found


def _directory_prefix(directory: str) -> str:
    name = split_remote(directory)[1].rstrip("/")
    return f"{name}/" if name else ""
