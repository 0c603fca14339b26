"""Reads and writes objects on Google Cloud Storage as files: pinned reads, verified writes."""

import contextlib
import errno
import io
import mimetypes
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, BinaryIO

from bigbird_ja.process.errors import StorageError
from bigbird_ja.storage import gcs, paths
from bigbird_ja.storage.disk import Disk, crc32c_of_file, scratch_directory
from bigbird_ja.storage.paths import (
    MAX_BYTES,
    SCHEME,
    Stat,
    crc32c_text,
    encode_crc32c,
    split_remote,
)

# Above this size the library makes an upload of chunks that are repeated alone.
_ONE_REQUEST = 8 << 20
CHUNK = 16 << 20  # bytes; a multiple of the 256 KiB that the protocol demands
_MAX_RESTARTS = 3  # of a transfer that was damaged or lost, or whose object was replaced meanwhile
_FIELDS = "items(name,size,generation,crc32c),nextPageToken"


class Bucket:
    """Handles objects, gs://bucket/name, by the methods of `Disk`, where each is documented.

    There are no directories, and an object appears with its last byte.
    """

    def open_read(self, path: str) -> BinaryIO:
        """Opens a buffered stream over the generation that is current now."""
        return io.BufferedReader(gcs.ObjectReader(path, self.stat(path)), 1 << 16)

    def read_with_token(self, path: str, limit: int = MAX_BYTES) -> tuple[bytes, str]:
        """Read by one request, which is one generation by nature."""

        def attempt() -> tuple[bytes, str]:  # the library does not verify a resumed download
            blob, content = gcs.blob(path), _Bounded(path, limit)
            how = {"timeout": gcs.request_timeout(), "retry": None}
            blob.download_to_file(content, raw_download=True, checksum=None, **how)
            data = content.getvalue()
            if blob.crc32c is not None and crc32c_text(data) != blob.crc32c:
                raise ConnectionError(f"checksum mismatch ({len(data)} bytes came)")
            return data, str(blob.generation)

        with gcs.faults(path):
            data, token = gcs.retry(path)(attempt)()
        return data, token

    def stat(self, path: str) -> Stat:
        """Request size, generation and checksum."""
        return _stat(_current(path))

    def exists(self, path: str) -> bool:
        """Looks for an object of this name, or one below it."""
        name = split_remote(path)[1].rstrip("/")
        if name:
            with contextlib.suppress(FileNotFoundError):
                self.stat(path.rstrip("/"))
                return True
        try:
            below = next(_objects(path, f"{name}/" if name else "", "", most=1), None)
        except FileNotFoundError:  # no such bucket
            return False
        return below is not None or not name

    def write_bytes(self, path: str, data: bytes) -> None:
        """Writes one object."""
        _put(path, io.BytesIO(data), len(data), crc32c_text(data))

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
        from google.api_core.exceptions import PreconditionFailed

        mark = secrets.token_hex(8)
        try:
            return _put(path, io.BytesIO(data), len(data), crc32c_text(data), int(token), mark)
        except PreconditionFailed:
            pass
        try:
            blob = _current(path)
        except FileNotFoundError:
            return None
        return str(blob.generation) if (blob.metadata or {}).get("writer") == mark else None

    def upload(self, source: str, target: str) -> None:
        """Uploads a file and compares the bucket's checksum with the file's."""
        crc, size = crc32c_of_file(source)
        with Disk().open_read(source) as file:
            _put(target, file, size, crc)

    def take(self, source: str, target: str) -> None:
        """Uploads a local file and removes it."""
        self.upload(source, target)
        os.unlink(source)

    def download(self, source: str, target: str) -> None:
        """Download in chunks; start again if the object was replaced or damaged on the way."""
        for number in range(_MAX_RESTARTS):
            blob = _current(source)  # which names its generation
            try:
                with Disk().writing(target) as file:
                    _fetch(blob, source, file)
                return
            except (FileNotFoundError, gcs.DamagedError):
                if number == _MAX_RESTARTS - 1:
                    raise

    def rename(self, source: str, target: str) -> None:
        """Copy on the bucket's side, then delete the old name."""
        _copy(source, target)
        self.delete(source)

    def copy_exclusive(self, source: str, target: str) -> None:
        """Copy on the bucket's side."""
        from google.api_core.exceptions import PreconditionFailed

        try:
            _copy(source, target, if_generation_match=0)
        except PreconditionFailed as error:  # or an earlier try, whose reply was lost: a copy more
            raise FileExistsError(errno.EEXIST, "exists", target) from error

    def delete(self, path: str) -> None:
        """Delete an object; a missing one is fine."""
        with contextlib.suppress(FileNotFoundError), gcs.faults(path):
            gcs.blob(path).delete(**gcs.options(path))

    def delete_if(self, path: str, token: str) -> bool:
        """Delete one generation; if a repeated request finds nothing, the first has done it."""
        from google.api_core.exceptions import PreconditionFailed

        faults: list[Exception] = []
        try:
            with gcs.faults(path):
                options = gcs.options(path, faults.append)
                gcs.blob(path).delete(if_generation_match=int(token), **options)
        except PreconditionFailed:
            return False
        except FileNotFoundError:
            return bool(faults)
        return True

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
        """Lists matching objects; there are no directories."""
        bucket, name_pattern = split_remote(pattern)
        fixed = re.split(r"[*?\[]", name_pattern, maxsplit=1)[0]
        is_flat = "/" not in name_pattern[len(fixed) :]
        names = [blob.name for blob in _objects(pattern, fixed, "/" if is_flat else "")]
        wanted = name_pattern.split("/")
        return sorted(
            f"{SCHEME}{bucket}/{n}"
            for n in names
            if n[-1:] != "/" and _matches(n.split("/"), wanted)
        )

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


class _Bounded(io.BytesIO):
    """Holds bytes in memory, at most `limit` of them."""

    def __init__(self, path: str, limit: int) -> None:
        super().__init__()
        self._path, self._limit = path, limit

    def write(self, data: Any) -> int:
        paths.check_size(self._path, self.tell() + len(data), self._limit)
        return super().write(data)


def _copy(source: str, target: str, **conditions: int) -> None:
    token = None
    while True:  # a large copy comes in several answers
        with gcs.faults(source):
            how = {**conditions, **gcs.options(source)}
            token, _, _ = gcs.blob(target).rewrite(gcs.blob(source), token, **how)
        if not token:
            return


def _current(path: str) -> Any:
    """Return the object with its metadata; further requests name its generation."""
    blob = gcs.blob(path)
    with gcs.faults(path):
        blob.reload(**gcs.options(path))
    return blob


def _fetch(blob: Any, path: str, file: BinaryIO) -> None:
    """Download the generation of `_current` into a file, in chunks, each with its own retries.

    Raises:
        DamagedError: The checksum differs.
        FileNotFoundError: The object was replaced or deleted.
    """
    import google_crc32c

    checksum = google_crc32c.Checksum()

    class Checked(io.RawIOBase):
        def write(self, data: Any) -> int:
            checksum.update(data)
            return file.write(data)

    if blob.size:
        blob.chunk_size = CHUNK
        with gcs.faults(path):
            blob.download_to_file(Checked(), raw_download=True, checksum=None, **gcs.options(path))
    if encode_crc32c(int.from_bytes(checksum.digest(), "big")) != blob.crc32c:
        raise gcs.DamagedError(f"{path}: damaged on the way each time: run again")


def _stat(blob: Any) -> Stat:
    return Stat(int(blob.size), str(blob.generation), blob.crc32c)


def _put(
    path: str, file: BinaryIO, size: int, crc: str, generation: int | None = None, mark: str = ""
) -> str:
    """Uploads a file, compares the stored checksum with its own, and returns the generation.

    The library cuts large files into chunks, each with its own deadline and retries, so that a file
    may take its time while it advances. The comparison is ours: the library would remove a damaged
    object without asking whether it is still its own.

    Args:
        path: of the object.
        file: to send.
        size: of the file, in bytes.
        crc: its checksum, as `crc32c_text`.
        generation: that the object must have; None for any.
        mark: stored with the object.
    """
    problem = ""
    for _ in range(_MAX_RESTARTS):
        blob = gcs.blob(path)
        blob.chunk_size = CHUNK
        if mark:
            blob.metadata = {"writer": mark}
        file.seek(0)
        try:
            with gcs.faults(path):
                blob.upload_from_file(
                    file,
                    size=size,
                    content_type=mimetypes.guess_type(path)[0] or "application/octet-stream",
                    checksum="crc32c" if size <= _ONE_REQUEST else None,
                    if_generation_match=generation,
                    **gcs.options(path),
                )
        except (FileNotFoundError, StorageError) as error:
            # The bucket has forgotten a resumable upload: it starts again from the first byte. See
            # https://cloud.google.com/storage/docs/performing-resumable-uploads
            if "no such bucket" in str(error) or gcs.status_of(error.__cause__) not in (404, 410):
                raise
            problem = "the bucket forgot the upload each time"
            continue
        if blob.crc32c == crc:
            return str(blob.generation)
        problem = "what the bucket stored is not what was sent"
        Bucket().delete_if(path, str(blob.generation))
    raise StorageError(f"{path}: {problem}: run again")


def _objects(path: str, prefix: str, delimiter: str, most: int | None = None) -> Iterator[Any]:
    """Lists the objects under `prefix`, page by page, each page with its own retries."""
    with gcs.faults(path):
        yield from gcs.client().list_blobs(
            split_remote(path)[0],
            prefix=prefix or None,
            delimiter=delimiter or None,
            max_results=most,
            fields=_FIELDS,
            **gcs.options(path),
        )


def _directory_prefix(directory: str) -> str:
    name = split_remote(directory)[1].rstrip("/")
    return f"{name}/" if name else ""


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Matches a name with a pattern, both split at "/"; `**` stands for any number of parts."""
    if not pattern or not parts:
        return not parts and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
