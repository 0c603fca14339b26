"""Objects on Google Cloud Storage, as files: see `bigbird_ja.storage` for what is promised."""

from __future__ import annotations

import contextlib
import io
import mimetypes
import os
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from bigbird_ja.process.errors import StorageError
from bigbird_ja.storage import client as clients
from bigbird_ja.storage import local, paths, retry, stream
from bigbird_ja.storage.checksum import crc32c_of_file, crc32c_text
from bigbird_ja.storage.scratch import scratch_directory
from bigbird_ja.storage.stat import Stat
from bigbird_ja.storage.urls import SCHEME, base_name, split_remote

# Above this size the library makes an upload of chunks that are repeated alone.
_ONE_REQUEST = 8 << 20
CHUNK = 16 << 20  # bytes; a multiple of the 256 KiB that the protocol demands
_MOST_RESTARTS = 3  # of a transfer that was damaged or lost, or whose object was replaced meanwhile
_FIELDS = "items(name,size,updated,generation,crc32c),nextPageToken"


class _Bounded(io.BytesIO):
    """Bytes in memory, at most `limit` of them."""

    def __init__(self, path: str, limit: int) -> None:
        super().__init__()
        self._path, self._limit = path, limit

    def write(self, data: Any) -> int:
        paths.check_size(self._path, self.tell() + len(data), self._limit)
        return super().write(data)


def read_with_token(path: str, limit: int) -> tuple[bytes, str]:
    """The whole object in one request, which is one generation by nature, and that generation.

    Raises:
        BadInput: more than `limit` bytes; what lies beyond is not fetched.
    """

    def attempt(_: int) -> tuple[bytes, str]:  # the library would not verify a resumed download
        blob, content = clients.blob(path), _Bounded(path, limit)
        blob.download_to_file(
            content, raw_download=True, checksum=None, timeout=_timeout(), retry=None
        )
        data = content.getvalue()
        generation, crc = blob.generation, blob.crc32c
        if crc is not None and crc32c_text(data) != crc:
            raise retry.CorruptError(f"checksum mismatch ({len(data)} bytes came)")
        return data, str(generation)

    return retry.run(path, attempt)


def open_read(path: str) -> BinaryIO:
    """A buffered stream over the generation that is current now."""
    return io.BufferedReader(stream.ObjectReader(path, stat(path)), 1 << 16)


def stat(path: str) -> Stat:
    """Size, age, generation and checksum."""
    blob = clients.blob(path)
    blob.reload(**_how(path))
    return _stat_of(blob)


def _stat_of(blob: Any) -> Stat:
    updated = blob.updated.timestamp() if blob.updated else 0.0
    return Stat(int(blob.size), updated, str(blob.generation), blob.crc32c)


def exists(path: str) -> bool:
    """Whether there is an object of this name, or one below it."""
    name = split_remote(path)[1].rstrip("/")
    if name and _has_object(path.rstrip("/")):
        return True
    try:
        below = next(_objects(path, f"{name}/" if name else "", "", most=1), None)
    except FileNotFoundError:  # no such bucket
        return False
    return below is not None or not name


def _has_object(path: str) -> bool:
    try:
        stat(path)
    except FileNotFoundError:
        return False
    return True


def write_bytes(path: str, data: bytes) -> None:
    """One object, whole or not at all."""
    _put(path, io.BytesIO(data), len(data), crc32c_text(data), None, _new_mark())


@contextlib.contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """A local file that is uploaded when the block ends without an exception."""
    with scratch_directory() as scratch:
        local_path = os.path.join(scratch, "object")
        with open(local_path, "wb") as file:
            yield file
        upload(local_path, path)


def create_exclusive(path: str, data: bytes) -> bool:
    """Creates the object if there is none."""
    return _put_if(path, data, 0) is not None


def replace_if(path: str, data: bytes, token: str) -> str | None:
    """Replaces the generation `token`; the new one, or None where it is no longer current."""
    return _put_if(path, data, int(token))


def upload(source: str, target: str) -> None:
    """Uploads a local file; the bucket's checksum is compared with the file's."""
    crc, size = crc32c_of_file(source)
    with local.open_read(source) as file:
        _put(target, file, size, crc, None, _new_mark())


def take(source: str, target: str) -> None:
    """Uploads a local file and removes it."""
    upload(source, target)
    os.unlink(source)


def fetch(path: str, directory: str) -> str:
    """Downloads into a local directory; the copy's path."""
    target = os.path.join(directory, base_name(path))
    download(path, target)
    return target


def download(source: str, target: str) -> None:
    """Downloads to a temporary name beside `target`, verifies, then renames."""
    for number in range(_MOST_RESTARTS):
        try:
            return _download_once(source, target)
        except (stream.ReplacedError, stream.DamagedError):
            if number == _MOST_RESTARTS - 1:
                raise


def _download_once(source: str, target: str) -> None:
    reader = stream.ObjectReader(source, stat(source), CHUNK)
    with local.writing(target) as file:
        while chunk := reader.read(CHUNK):
            file.write(chunk)


def make_directory(path: str) -> None:
    """A bucket has no directories."""


def clean_temporary(directory: str, older_than: float) -> list[str]:
    """Objects are never unfinished."""
    return []


def rename(source: str, target: str) -> None:
    """Copies on the bucket's side, then deletes the old name."""

    token, _, _ = clients.blob(target).rewrite(clients.blob(source), **_how(source))
    while token:  # a large copy comes in several answers
        token, _, _ = clients.blob(target).rewrite(clients.blob(source), token, **_how(source))
    delete(source, missing_ok=True)


def delete(path: str, missing_ok: bool) -> None:
    """Removes the object."""

    def attempt(number: int) -> None:
        from google.api_core.exceptions import NotFound

        try:
            clients.blob(path).delete(timeout=_timeout(), retry=None)
        except NotFound:
            # After a lost reply the first try has done it.
            if not missing_ok and number == 0:
                raise

    retry.run(path, attempt)


def delete_if(path: str, token: str) -> bool:
    """Removes the generation `token`; False where it is no longer current."""

    def attempt(number: int) -> bool:
        from google.api_core.exceptions import NotFound, PreconditionFailed

        try:
            clients.blob(path).delete(
                if_generation_match=int(token), timeout=_timeout(), retry=None
            )
        except PreconditionFailed:
            return False
        except NotFound:
            return number > 0
        return True

    return retry.run(path, attempt)


def list_stats(directory: str) -> dict[str, Stat]:
    """Name to `Stat` of the objects directly below `directory`."""
    prefix = _directory_prefix(directory)
    found = {}
    for blob in _objects(directory, prefix, "/"):
        name = blob.name[len(prefix) :]
        if name and not name.endswith("/"):
            found[name] = _stat_of(blob)
    return dict(sorted(found.items()))


def list_tree(directory: str) -> list[str]:
    """Sorted names of all objects below `directory`, relative to it."""
    prefix = _directory_prefix(directory)
    names = [blob.name[len(prefix) :] for blob in _objects(directory, prefix, "")]
    return sorted(name for name in names if name and not name.endswith("/"))


def glob(pattern: str) -> list[str]:
    """Sorted paths that match."""
    bucket, name_pattern = split_remote(pattern)
    fixed = re.split(r"[*?\[]", name_pattern, maxsplit=1)[0]
    is_flat = "/" not in name_pattern[len(fixed) :]
    matches = re.compile(_expression(name_pattern)).fullmatch
    names = [blob.name for blob in _objects(pattern, fixed, "/" if is_flat else "")]
    return sorted(f"{SCHEME}{bucket}/{n}" for n in names if matches(n) and not n.endswith("/"))


def location(path: str) -> str | None:
    """The bucket's location in lower case (`us-central1`, `us`); None where it may not be asked."""
    try:
        bucket = clients.client().get_bucket(split_remote(path)[0], **_how(path))
    except PermissionError:  # objects may be readable without the right to see the bucket itself
        return None
    return (bucket.location or "").lower() or None


def _put_if(path: str, data: bytes, generation: int) -> str | None:
    """Writes if the object's generation is `generation` (0: absent); the new one, or None."""
    from google.api_core.exceptions import PreconditionFailed

    mark = _new_mark()
    try:
        return _put(path, io.BytesIO(data), len(data), crc32c_text(data), generation, mark)
    except PreconditionFailed:
        # The reply to an earlier try may have been lost after the object was stored.
        return _own_generation(path, mark)


def _own_generation(path: str, mark: str) -> str | None:
    blob = clients.blob(path)
    try:
        blob.reload(**_how(path))
    except FileNotFoundError:
        return None
    return str(blob.generation) if (blob.metadata or {}).get("writer") == mark else None


def _put(
    path: str, file: BinaryIO, size: int, crc: str, if_generation_match: int | None, mark: str
) -> str:
    """Uploads, and compares the stored checksum with `crc`; the new generation.

    The library cuts large files into chunks, each with its own deadline, so that a file may take
    its time while it advances. The comparison is ours: the library's would remove what it finds
    damaged without asking whether it is still its own.
    """
    problem = ""
    for _ in range(_MOST_RESTARTS):
        blob = clients.blob(path)
        blob.metadata, blob.chunk_size = {"writer": mark}, CHUNK
        file.seek(0)
        try:
            blob.upload_from_file(
                file,
                size=size,
                content_type=_content_type(path),
                checksum="crc32c" if size <= _ONE_REQUEST else None,
                if_generation_match=if_generation_match,
                timeout=_timeout(),
                retry=_UploadRequests(path),
            )
        except _SessionLostError:
            problem = "the bucket forgot the upload each time"
            continue
        if blob.crc32c == crc:
            return str(blob.generation)
        problem = "what the bucket stored is not what was sent"
        delete_if(path, str(blob.generation))
    raise StorageError(f"{path}: {problem}: run again")


class _SessionLostError(Exception):
    """The bucket has forgotten a resumable upload: it starts again from the first byte."""


class _UploadRequests:
    """The library's `retry` of one upload: our loop around each of its requests.

    Of a large file the first request opens a session, and the others send chunks of it; after a
    fault a chunk is sent again, and the bucket ignores what it already holds. See
    https://cloud.google.com/storage/docs/performing-resumable-uploads
    """

    def __init__(self, path: str) -> None:
        self._path, self._is_open = path, False

    def __call__(self, request: Callable[[], Any]) -> Callable[[], Any]:
        def attempts() -> Any:
            try:
                answer = retry.run(self._path, lambda _: request())
            except (FileNotFoundError, StorageError) as error:
                if self._is_open and retry.status_of(error.__cause__) in (404, 410):
                    raise _SessionLostError from error
                raise
            self._is_open = True
            return answer

        return attempts


def _objects(path: str, prefix: str, delimiter: str, most: int | None = None) -> Iterator[Any]:
    """The objects under `prefix`, page by page, each page with its own repetitions."""
    yield from clients.client().list_blobs(
        split_remote(path)[0],
        prefix=prefix or None,
        delimiter=delimiter or None,
        max_results=most,
        fields=_FIELDS,
        **_how(path),
    )


def _directory_prefix(directory: str) -> str:
    name = split_remote(directory)[1].rstrip("/")
    return f"{name}/" if name else ""


def _expression(pattern: str) -> str:
    """A glob pattern as a regular expression in which `*` and `?` stay within one directory."""
    parts = []
    for part in re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|.", pattern, re.S):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        if part in known:
            parts.append(known[part])
        elif part.startswith("[") and len(part) > 2:
            inner = part[1:-1].replace("\\", r"\\")
            parts.append(f"[^{inner[1:]}]" if inner[0] == "!" else f"[{inner}]")
        else:
            parts.append(re.escape(part))
    return "".join(parts)


def _content_type(path: str) -> str:
    kind, encoding = mimetypes.guess_type(path)
    return kind if kind and not encoding else "application/octet-stream"


def _new_mark() -> str:
    """Tells our own write from another's when its reply was lost."""
    return secrets.token_hex(8)


def _how(path: str) -> dict[str, Any]:
    """Time and repetitions of a request that may be repeated as it is."""
    return {"timeout": _timeout(), "retry": lambda call: lambda: retry.run(path, lambda _: call())}


def _timeout() -> float:
    return retry.Policy.from_environment().request_timeout
