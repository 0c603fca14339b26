"""Objects on Google Cloud Storage as files, by the library `google-cloud-storage`.

The library retries faults that its documentation calls transient (`DEFAULT_RETRY`). This module
adds a deadline, a warning about retries, reads of one generation, verified writes, and the
exceptions that callers handle.
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
from bigbird_ja.process.console import shorten
from bigbird_ja.process.redact import redact
from bigbird_ja.storage import environment, fences, paths
from bigbird_ja.storage.disk import Disk, create_scratch_directory
from bigbird_ja.storage.paths import MAX_BYTES, SCHEME, Stat, encode_crc32c, split_remote

# Bytes per request of a large file. The protocol requires a multiple of 256 KiB.
CHUNK = 16 << 20
# Maximum number of tries of a transfer that is damaged or lost, or whose object is replaced.
MAX_RESTARTS = 3
# Maximum seconds between two tries.
_MAX_DELAY = 32.0
_FIELDS = "items(name,size,generation,crc32c),nextPageToken"

_logger = logging.getLogger(__name__)


def get_client() -> Any:
    """Return the client of Cloud Storage, or of the emulator at `STORAGE_EMULATOR_HOST`."""
    return _get_client(os.environ.get("STORAGE_EMULATOR_HOST"))


@functools.cache
def _get_client(emulator: str | None) -> Any:
    # The client requires a project, although requests for objects do not use it.
    return storage.Client(project=os.environ.get("GOOGLE_CLOUD_PROJECT", "unset"))


def make_blob(path: str) -> Any:
    """Return the client library's `Blob` for a gs:// path, without sending a request."""
    bucket, name = split_remote(path)
    # This raises an error if credentials are missing.
    with translate_faults(path):
        return get_client().bucket(bucket).blob(name)


def load_current(path: str) -> Any:
    """Request an object's metadata, and return the client library's `Blob`.

    The `Blob` refers to the present generation of the object, also in further requests.
    """
    blob = make_blob(path)
    with translate_faults(path):
        blob.reload(**make_options(path))
    return blob


class DamagedError(StorageError):
    """Incomplete transfer, or transferred bytes that do not match the object's checksum."""


class ObjectReader(BlobReader):
    """Stream of the current generation of an object, which is downloaded in chunks.

    If it is read from the first byte to the last, its CRC-32C is verified.

    Raises:
        DamagedError: The checksum differs, or the bucket sent too few bytes.
        StorageError: Retries failed, or the object was replaced after this reader was opened.
    """

    def __init__(self, path: str) -> None:
        self._path, self._object = path, load_current(path)
        super().__init__(self._object, CHUNK, raw_download=True, **make_options(path))
        self._checked = self._checksum = 0

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, or fewer at the end of the object. If `size` is -1, read the rest."""
        start, total = self.tell(), self._object.size
        count = min(size, total - start) if size >= 0 else total - start
        data = b""
        for _ in range(MAX_RESTARTS):
            # A reply may contain fewer bytes than requested.
            if len(data) < count:
                data += self._read(count - len(data))
        if len(data) < count:
            raise DamagedError(
                f"{self._path}: the bucket sent only {len(data)} of {count} bytes, so rerun the"
                " same command"
            )
        if start == self._checked:
            self._checked += count
            self._checksum = google_crc32c.extend(self._checksum, data)
            if self._checked == total and encode_crc32c(self._checksum) != self._object.crc32c:
                raise DamagedError(f"{self._path}: damaged in transit, so rerun the same command")
        return data

    def _read(self, size: int) -> bytes:
        try:
            with translate_faults(self._path):
                return bytes(super().read(size))
        except FileNotFoundError as error:
            if load_current(self._path).generation == self._object.generation:
                raise
            message = f"{self._path} was replaced during the read, so rerun the same command"
            raise StorageError(message) from error


def make_options(path: str, is_write: bool = False) -> dict[str, Any]:
    """Return the arguments `timeout` and `retry` for a method of the client library.

    Args:
        path: object of the request, for messages.
        is_write: whether the request changes the object. In a fenced folder, each try waits until
            the lease will last longer than the request.
    """
    seconds = environment.get_storage_timeout()
    fence = fences.find_fence(path) if is_write else None

    def log_retry(error: Exception) -> None:
        _logger.warning("%s: %s: trying again for up to %g s", path, describe_fault(error), seconds)

    def retry(call: Callable[[], Any]) -> Callable[[], Any]:
        def call_fenced() -> Any:
            if fence is not None:
                fence.require(seconds)
            return call()

        return policy(call_fenced, on_error=log_retry)

    policy = DEFAULT_RETRY.with_delay(seconds / 600, _MAX_DELAY).with_timeout(seconds)
    # With this timeout of a request, at least three tries are possible before the deadline.
    silence = min(60.0, max(seconds / 3, 0.2))
    if fence is not None:
        silence = min(silence, fence.request_seconds)
    return {"timeout": silence, "retry": retry}


@contextlib.contextmanager
def translate_faults(path: str) -> Iterator[None]:
    """Context manager: convert exceptions of the client library, as `translate` does.

    Raises:
        StorageError: Retries failed until the deadline, or a transfer was damaged, or the bucket
            replied with another error. The message contains `path` and the cause.
        FileNotFoundError, PermissionError: The object is missing, or access is denied. `path` is
            the exception's file name.
        Refused: Credentials are missing, or the request is invalid.
    """
    try:
        yield
    except Exception as error:
        translated = translate(error, path)
        if translated is error:
            raise
        raise translated from error


def translate(error: Exception, path: str) -> Exception:
    """Return the exception that callers handle for an exception of the client library.

    An exception that needs no conversion is returned unchanged.
    """
    status = status_of(error)
    if isinstance(error, RetryError):
        return StorageError(
            f"{path} failed for {environment.get_storage_timeout():g} s"
            f" ({describe_fault(error.cause)}): check the bucket and the network, then rerun the"
            " same command"
        )
    if isinstance(error, DataCorruption):
        return DamagedError(f"{path}: damaged in transit each time, so rerun the same command")
    if status == 404:
        what = "bucket" if "bucket does not exist" in str(error) else "object"
        return FileNotFoundError(errno.ENOENT, f"no such {what}", path)
    if status in (401, 403):
        return PermissionError(errno.EACCES, f"permission denied ({describe_fault(error)})", path)
    if isinstance(error, auth.GoogleAuthError):
        to_do = "run `gcloud auth application-default login`"
        return Refused(
            f"{path} requires Google credentials, which are missing, expired or revoked: {to_do}"
        )
    if status == 400:
        return Refused(f"{path}: the bucket refused the request ({describe_fault(error)})")
    if status is not None and status != 412:
        return StorageError(f"{path}: {describe_fault(error)}")
    return error


def describe_fault(error: BaseException | None) -> str:
    """Describe a fault in one short line, without addresses, which may contain secrets."""
    status = status_of(error)
    if status is not None:
        # The library's message contains the request's address, so use the server's message.
        try:
            response: Any = getattr(error, "response", None)
            message = str(response.json()["error"]["message"])
        except (AttributeError, ValueError, TypeError, KeyError):
            message = type(error).__name__
        return shorten(f"{status} {redact(message)}", 200)
    return f"no answer ({type(error).__name__})"


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status of an exception, if it has one."""
    if isinstance(error, InvalidResponse):
        return int(error.response.status_code)
    return error.code if isinstance(error, GoogleAPICallError) else None


class Bucket:
    """Objects on a bucket. The methods are documented at `Disk`.

    There are no directories, and an object appears when its upload is complete.
    """

    def open_read(self, path: str) -> BinaryIO:
        """Open a buffered stream over the current generation."""
        return io.BufferedReader(ObjectReader(path), 1 << 16)

    def read_with_token(self, path: str, limit: int = MAX_BYTES) -> tuple[bytes, str]:
        """Read one generation with one request."""
        content = io.BytesIO()
        blob = _download(path, content, limit)
        return content.getvalue(), str(blob.generation)

    def stat(self, path: str) -> Stat:
        """Request the size, generation and checksum of an object."""
        return _make_stat(load_current(path))

    def exists(self, path: str) -> bool:
        """Return whether an object has this name, or is in a folder with this name."""
        prefix = _format_prefix(path)
        if prefix:
            with contextlib.suppress(FileNotFoundError):
                self.stat(path.rstrip("/"))
                return True
        # The bucket may not exist.
        with contextlib.suppress(FileNotFoundError):
            return any(_list_objects(path, prefix, "", page_size=10)) or not prefix
        return False

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write one object."""
        _put(path, io.BytesIO(data), len(data))

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """Open a local file, which is uploaded on exit."""
        with create_scratch_directory() as scratch:
            local_path = os.path.join(scratch, "object")
            with open(local_path, "wb") as file:
                yield file
            self.upload(local_path, path)

    def replace_if(self, path: str, data: bytes, token: str) -> str | None:
        """Replace one generation, or create a missing object.

        The reply to an earlier try may have been lost after the object was stored. A random word in
        the object's metadata shows whether this call has written the object.
        """
        mark = secrets.token_hex(8)
        with contextlib.suppress(PreconditionFailed):
            return _upload(path, io.BytesIO(data), len(data), int(token or 0), mark)
        with contextlib.suppress(FileNotFoundError):
            blob = load_current(path)
            if (blob.metadata or {}).get("writer") == mark:
                return str(blob.generation)
        return None

    def upload(self, source: str, target: str) -> None:
        """Upload a file, and verify its checksum."""
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
        """Copy an object on the server."""
        how = make_options(target, is_write=True)

        def send(known: int | None) -> int:
            token, blob = None, make_blob(target)
            # A large copy requires several requests.
            while True:
                with translate_faults(source):
                    token, *_ = blob.rewrite(
                        make_blob(source), token, if_generation_match=known, **how
                    )
                if not token:
                    return int(blob.generation)

        _change(target, send)

    def rename(self, source: str, target: str) -> None:
        """Copy an object on the server, then delete the source."""
        self.copy(source, target)
        self.delete(source)

    def delete(self, path: str, generation: int | None = None) -> None:
        """Delete an object. If `generation` is given, keep an object of any other generation."""

        def send(known: int | None) -> None:
            make_blob(path).delete(if_generation_match=known, **make_options(path, is_write=True))

        fence = fences.find_fence(path)
        with contextlib.suppress(FileNotFoundError), translate_faults(path):
            if generation is not None:
                with contextlib.suppress(PreconditionFailed):
                    send(generation)
                return
            if fence is not None and path not in fence.generations:
                fence.generations[path] = int(load_current(path).generation)
            _change(path, send)

    def list_stats(self, directory: str) -> dict[str, Stat]:
        """List the objects directly in a folder, in the bucket's order, which is alphabetical."""
        prefix = _format_prefix(directory)
        return {o.name[len(prefix) :]: _make_stat(o) for o in _list_objects(directory, prefix, "/")}

    def list_tree(self, directory: str) -> list[str]:
        """List all objects below a folder."""
        prefix = _format_prefix(directory)
        return [o.name[len(prefix) :] for o in _list_objects(directory, prefix, "")]

    def glob(self, pattern: str) -> list[str]:
        """List matching objects."""
        bucket, name_pattern = split_remote(pattern)
        found = _list_objects(pattern, "", "", match_glob=name_pattern)
        return [f"{SCHEME}{bucket}/{o.name}" for o in found]

    def get_location(self, path: str) -> str | None:
        """Return the region in lower case (`us-central1`, `us`), or None without permission.

        The permission to read objects does not suffice to read the bucket's metadata.
        """
        try:
            with translate_faults(path):
                bucket = get_client().get_bucket(split_remote(path)[0], **make_options(path))
        except PermissionError:
            return None
        return (bucket.location or "").lower() or None


class _Checked(io.RawIOBase):
    """File writer that computes the checksum, and accepts at most `limit` bytes."""

    def __init__(self, path: str, file: BinaryIO, limit: float) -> None:
        super().__init__()
        self._path, self._file, self._limit = path, file, limit
        self.crc32c = 0
        file.seek(0)
        file.truncate()

    def write(self, data: Any) -> int:
        # If a reply of the bucket is empty, the library would repeat the request forever.
        if not data:
            raise DamagedError("an empty reply")
        paths.check_size(self._path, self._file.tell() + len(data), self._limit)
        self.crc32c = google_crc32c.extend(self.crc32c, data)
        return self._file.write(data)


def _download(path: str, file: BinaryIO, limit: float = math.inf, in_chunks: bool = False) -> Any:
    """Download one generation, with retries if it is replaced or damaged in transit.

    Raises:
        DamagedError: The checksum differs each time.
    """
    for number in range(MAX_RESTARTS):
        blob = load_current(path) if in_chunks else make_blob(path)
        checked = _Checked(path, file, limit)
        blob.chunk_size = CHUNK if blob.size else None
        try:
            with translate_faults(path):
                blob.download_to_file(
                    checked, raw_download=True, checksum=None, **make_options(path)
                )
            if blob.crc32c in (None, encode_crc32c(checked.crc32c)):
                return blob
        except DamagedError:
            pass
        except FileNotFoundError:
            if not in_chunks or number == MAX_RESTARTS - 1:
                raise
    raise DamagedError(f"{path}: damaged in transit each time, so rerun the same command")


def _make_stat(blob: Any) -> Stat:
    return Stat(int(blob.size), str(blob.generation), blob.crc32c)


def _put(path: str, file: BinaryIO, size: int) -> None:
    """Upload a file. In a fenced folder, replace only the generation that this process knows."""
    _change(path, lambda known: int(_upload(path, file, size, known)))


def _change(path: str, send: Callable[[int | None], int | None]) -> None:
    """Send a request that replaces or deletes an object.

    In a fenced folder the request states the generation that this process knows. So it has no
    effect on an object that another process has written, even if the network delivers it late.

    Args:
        path: name of the object.
        send: function that sends the request, and returns the object's new generation, or None if
            the object is deleted. Its argument is the required generation: 0 if the object must not
            exist, None for any.

    Raises:
        LeaseLost: Another process has taken over the folder.
        StorageError: The object changes before each try.
    """
    fence = fences.find_fence(path)
    if fence is None:
        send(None)
        return
    for _ in range(MAX_RESTARTS):
        try:
            generation = send(fence.generations.get(path, 0))
        except PreconditionFailed:
            fence.check()
            fence.generations.pop(path, None)
            # This process still owns the lease. So an earlier run, a try whose reply was lost, or
            # the user has written the present generation, and the next try replaces it.
            with contextlib.suppress(FileNotFoundError):
                fence.generations[path] = int(load_current(path).generation)
        else:
            fence.generations.pop(path, None)
            if generation is not None:
                fence.generations[path] = generation
            return
    raise StorageError(f"{path}: other processes keep changing it, so rerun the same command")


def _upload(
    path: str, file: BinaryIO, size: int, generation: int | None = None, mark: str = ""
) -> str:
    """Upload a file, and return the generation.

    The library uploads a large file in chunks, each with its own deadline and retries, and compares
    the checksums.

    Args:
        path: name of the object.
        file: file to send.
        size: size of the file, in bytes.
        generation: required generation of the object, or None for any.
        mark: random word that identifies the writer, stored in the object's metadata.
    """
    problem: Exception | None = None
    for _ in range(MAX_RESTARTS):
        blob = make_blob(path)
        blob.chunk_size = CHUNK
        if mark:
            blob.metadata = {"writer": mark}
        file.seek(0)
        try:
            with translate_faults(path):
                blob.upload_from_file(
                    file,
                    size=size,
                    content_type=mimetypes.guess_type(path)[0] or "application/octet-stream",
                    checksum="crc32c",
                    if_generation_match=generation,
                    **make_options(path, is_write=True),
                )
            return str(blob.generation)
        except (FileNotFoundError, StorageError) as error:
            # If the bucket has lost a resumable upload, the upload must be restarted. See
            # https://cloud.google.com/storage/docs/performing-resumable-uploads
            is_lost = status_of(error.__cause__) in (404, 410)
            if "no such bucket" in str(error) or not (is_lost or isinstance(error, DamagedError)):
                raise
            problem = error
    raise StorageError(
        f"{path}: the bucket lost or damaged each upload, so rerun the same command"
    ) from problem


def _list_objects(path: str, prefix: str, delimiter: str, **filters: Any) -> Iterator[Any]:
    """List the objects under `prefix`, page by page, each with its own retries.

    Empty objects `NAME/`, which consoles create for folders, are skipped.
    """
    how = {"prefix": prefix or None, "delimiter": delimiter or None, "fields": _FIELDS}
    with translate_faults(path):
        for found in get_client().list_blobs(
            split_remote(path)[0], **how, **filters, **make_options(path)
        ):
            if not found.name.endswith("/"):
                yield found


def _format_prefix(directory: str) -> str:
    name = split_remote(directory)[1].rstrip("/")
    return f"{name}/" if name else ""
