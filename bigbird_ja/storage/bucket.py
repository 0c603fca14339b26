"""Reads and writes objects on Google Cloud Storage as files: pinned reads, verified writes."""

import contextlib
import io
import mimetypes
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import google_crc32c
from google.api_core.exceptions import PreconditionFailed

from bigbird_ja.process.errors import StorageError
from bigbird_ja.storage import gcs, paths
from bigbird_ja.storage.disk import Disk, scratch_directory
from bigbird_ja.storage.paths import MAX_BYTES, SCHEME, Stat, encode_crc32c, split_remote

_FIELDS = "items(name,size,generation,crc32c),nextPageToken"


class Bucket:
    """Handles objects, gs://bucket/name, by the methods of `Disk`, where each is documented.

    There are no directories, and an object appears with its last byte.
    """

    def open_read(self, path: str) -> BinaryIO:
        """Opens a buffered stream over the generation that is current now."""
        return io.BufferedReader(gcs.ObjectReader(path), 1 << 16)

    def read_with_token(self, path: str, limit: int = MAX_BYTES) -> tuple[bytes, str]:
        """Read by one request, which is one generation by nature."""
        content = _Bounded(path, limit)
        blob = _download(path, content, gcs.blob)
        return content.getvalue(), str(blob.generation)

    def stat(self, path: str) -> Stat:
        """Request size, generation and checksum."""
        return _stat(gcs.current(path))

    def exists(self, path: str) -> bool:
        """Looks for an object of this name, or one below it."""
        name = split_remote(path)[1].rstrip("/")
        if name:
            with contextlib.suppress(FileNotFoundError):
                self.stat(path.rstrip("/"))
                return True
        try:
            below = next(_objects(path, f"{name}/" if name else "", "", max_results=1), None)
        except FileNotFoundError:  # no such bucket
            return False
        return below is not None or not name

    def write_bytes(self, path: str, data: bytes) -> None:
        """Writes one object."""
        _put(path, io.BytesIO(data), len(data))

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """Opens a local file, which is uploaded at the end."""
        with scratch_directory() as scratch:
            local_path = os.path.join(scratch, "object")
            with open(local_path, "wb") as file:
                yield file
            self.upload(local_path, path)

    def create_exclusive(self, path: str, data: bytes) -> bool:
        """Creates an object: generation 0 stands for one that is absent."""
        return self.replace_if(path, data, "0") is not None

    def replace_if(self, path: str, data: bytes, token: str) -> str | None:
        """Replaces one generation.

        The reply to an earlier try may have been lost after the object was stored; a random word
        in its metadata tells our write from another's.
        """
        mark = secrets.token_hex(8)
        try:
            return _put(path, io.BytesIO(data), len(data), int(token), mark)
        except PreconditionFailed:
            pass
        try:
            blob = gcs.current(path)
        except FileNotFoundError:
            return None
        return str(blob.generation) if (blob.metadata or {}).get("writer") == mark else None

    def upload(self, source: str, target: str) -> None:
        """Upload a file; the bucket's checksum is compared with the file's."""
        with Disk().open_read(source) as file:
            _put(target, file, os.fstat(file.fileno()).st_size)

    def take(self, source: str, target: str) -> None:
        """Uploads a local file and removes it."""
        self.upload(source, target)
        os.unlink(source)

    def download(self, source: str, target: str) -> None:
        """Download in chunks, each with its own retries."""

        def chunked(path: str) -> Any:
            blob = gcs.current(path)
            blob.chunk_size = gcs.CHUNK if blob.size else None
            return blob

        with Disk().writing(target) as file:
            _download(source, file, chunked)

    def copy(self, source: str, target: str) -> None:
        """Copy on the bucket's side."""
        token = None
        while True:  # a large copy comes in several answers
            with gcs.faults(source):
                options = gcs.options(source)
                token, _, _ = gcs.blob(target).rewrite(gcs.blob(source), token, **options)
            if not token:
                return

    def rename(self, source: str, target: str) -> None:
        """Copy on the bucket's side, then delete the old name."""
        self.copy(source, target)
        self.delete(source)

    def delete(self, path: str) -> None:
        """Delete an object; a missing one is fine."""
        with contextlib.suppress(FileNotFoundError), gcs.faults(path):
            gcs.blob(path).delete(**gcs.options(path))

    def delete_if(self, path: str, token: str) -> None:
        """Delete one generation, if it's still the current one."""
        with contextlib.suppress(FileNotFoundError, PreconditionFailed), gcs.faults(path):
            gcs.blob(path).delete(if_generation_match=int(token), **gcs.options(path))

    def list_stats(self, directory: str) -> dict[str, Stat]:
        """Lists the objects directly below."""
        prefix = _directory_prefix(directory)
        stats = {blob.name[len(prefix) :]: _stat(blob) for blob in _objects(directory, prefix, "/")}
        return {name: stats[name] for name in sorted(stats) if name and not name.endswith("/")}

    def list_tree(self, directory: str) -> list[str]:
        """Lists all objects below."""
        prefix = _directory_prefix(directory)
        names = [blob.name[len(prefix) :] for blob in _objects(directory, prefix, "")]
        return sorted(name for name in names if name and not name.endswith("/"))

    def glob(self, pattern: str) -> list[str]:
        """List matching objects; there are no directories."""
        bucket, name_pattern = split_remote(pattern)
        names = [blob.name for blob in _objects(pattern, "", "", match_glob=name_pattern)]
        return sorted(f"{SCHEME}{bucket}/{name}" for name in names if name[-1:] != "/")

    def location(self, path: str) -> str | None:
        """Returns the region in lower case (`us-central1`, `us`); None where it may not be asked.

        Objects may be readable without the right to see the bucket itself.
        """
        try:
            with gcs.faults(path):
                bucket = gcs.client().get_bucket(split_remote(path)[0], **gcs.options(path))
        except PermissionError:
            return None
        return (bucket.location or "").lower() or None


class _Checked(io.RawIOBase):
    """Writer to a file that computes the checksum."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file, self.crc32c = file, 0

    def write(self, data: Any) -> int:
        if not data:  # the library would request this part again and again
            raise gcs.DamagedError("an empty reply")
        self.crc32c = google_crc32c.extend(self.crc32c, data)
        return self._file.write(data)


class _Bounded(io.BytesIO):
    """Holds bytes in memory, at most `limit` of them."""

    def __init__(self, path: str, limit: int) -> None:
        super().__init__()
        self._path, self._limit = path, limit

    def write(self, data: Any) -> int:
        paths.check_size(self._path, self.tell() + len(data), self._limit)
        return super().write(data)


def _download(path: str, file: BinaryIO, make_blob: Callable[[str], Any]) -> Any:
    """Download one generation; start again if it was replaced or damaged on the way.

    Raises:
        DamagedError: The checksum differs each time.
    """
    for number in range(gcs.MAX_RESTARTS):
        file.seek(0)
        file.truncate()
        blob, checked = make_blob(path), _Checked(file)
        is_known = blob.size is not None
        try:
            with gcs.faults(path):
                blob.download_to_file(
                    checked, raw_download=True, checksum=None, **gcs.options(path)
                )
            if blob.crc32c in (None, encode_crc32c(checked.crc32c)):
                return blob
        except gcs.DamagedError:
            pass
        except FileNotFoundError:
            if not is_known or number == gcs.MAX_RESTARTS - 1:
                raise
    raise gcs.DamagedError(f"{path}: damaged on the way each time: run again")


def _stat(blob: Any) -> Stat:
    return Stat(int(blob.size), str(blob.generation), blob.crc32c)


def _put(
    path: str, file: BinaryIO, size: int, generation: int | None = None, mark: str = ""
) -> str:
    """Upload a file, and return the generation.

    The library cuts large files into chunks, each with its own deadline and retries, so that a file
    may take its time while it advances, and compares the checksums.

    Args:
        path: of the object.
        file: to send.
        size: of the file, in bytes.
        generation: that the object must have; None for any.
        mark: stored with the object.
    """
    problem: Exception | None = None
    for _ in range(gcs.MAX_RESTARTS):
        blob = gcs.blob(path)
        blob.chunk_size = gcs.CHUNK
        if mark:
            blob.metadata = {"writer": mark}
        file.seek(0)
        try:
            with gcs.faults(path):
                blob.upload_from_file(
                    file,
                    size=size,
                    content_type=mimetypes.guess_type(path)[0] or "application/octet-stream",
                    checksum="crc32c",
                    if_generation_match=generation,
                    **gcs.options(path),
                )
            return str(blob.generation)
        except (FileNotFoundError, StorageError) as error:
            # The bucket has forgotten a resumable upload: it starts again from the first byte. See
            # https://cloud.google.com/storage/docs/performing-resumable-uploads
            is_lost = gcs.status_of(error.__cause__) in (404, 410)
            if "no such bucket" in str(error) or not (
                is_lost or isinstance(error, gcs.DamagedError)
            ):
                raise
            problem = error
    raise StorageError(f"{path}: the bucket lost or damaged each upload: run again") from problem


def _objects(path: str, prefix: str, delimiter: str, **filters: Any) -> Iterator[Any]:
    """List the objects under `prefix`, page by page, each page with its own retries."""
    with gcs.faults(path):
        yield from gcs.client().list_blobs(
            split_remote(path)[0],
            prefix=prefix or None,
            delimiter=delimiter or None,
            fields=_FIELDS,
            **filters,
            **gcs.options(path),
        )


def _directory_prefix(directory: str) -> str:
    name = split_remote(directory)[1].rstrip("/")
    return f"{name}/" if name else ""
