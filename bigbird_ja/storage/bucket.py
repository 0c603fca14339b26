"""Objects on Google Cloud Storage, as files: see `bigbird_ja.storage` for what is promised."""

from __future__ import annotations

import io
import mimetypes
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from bigbird_ja.errors import StorageError
from bigbird_ja.storage import client as clients
from bigbird_ja.storage import local, resumable, retry, stream
from bigbird_ja.storage.checksum import crc32c_of_file, crc32c_text
from bigbird_ja.storage.names import SCHEME, split_remote
from bigbird_ja.storage.stat import Stat

# Above this size an upload is made of pieces that are repeated alone.
_ONE_REQUEST = 8 << 20
_DOWNLOAD_PIECE = 32 << 20
_MOST_RESTARTS = 3  # of a transfer that was damaged, or whose object was replaced meanwhile
_FIELDS = "items(name,size,updated,generation,crc32c),nextPageToken"

Progress = Callable[[int], None]


def read_bytes(path: str) -> bytes:
    """The whole object in one request, which is one generation by nature."""
    return read_with_token(path)[0]


def read_with_token(path: str) -> tuple[bytes, str]:
    """The whole object and its generation."""

    def attempt(_: int) -> tuple[bytes, str]:
        blob = clients.blob(path)
        data = blob.download_as_bytes(
            raw_download=True, checksum=None, timeout=_timeout(), retry=None
        )
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

    def attempt(_: int) -> Stat:
        blob = clients.blob(path)
        blob.reload(timeout=_timeout(), retry=None)
        return _stat_of(blob)

    return retry.run(path, attempt)


def _stat_of(blob: Any) -> Stat:
    updated = blob.updated.timestamp() if blob.updated else 0.0
    return Stat(int(blob.size), updated, str(blob.generation), blob.crc32c)


def exists(path: str) -> bool:
    """Whether there is an object of this name, or one below it."""
    name = split_remote(path)[1].rstrip("/")
    if name and _has_object(path.rstrip("/")):
        return True
    try:
        below, _ = next(_pages(path, f"{name}/" if name else "", "", most=1))
    except FileNotFoundError:  # no such bucket
        return False
    return bool(below) or not name


def _has_object(path: str) -> bool:
    try:
        stat(path)
    except FileNotFoundError:
        return False
    return True


def write_bytes(path: str, data: bytes) -> None:
    """One object, whole or not at all."""
    _put(path, io.BytesIO(data), len(data), crc32c_text(data), None, None, _new_mark())


def create_exclusive(path: str, data: bytes) -> bool:
    """Creates the object if there is none."""
    return _put_if(path, data, 0) is not None


def replace_if(path: str, data: bytes, token: str) -> str | None:
    """Replaces the generation `token`; the new one, or None where it is no longer current."""
    return _put_if(path, data, int(token))


def upload(source: str, target: str, progress: Progress | None = None) -> Stat:
    """Uploads a local file; the bucket's checksum is compared with the file's."""
    crc, size = crc32c_of_file(source)
    with open(source, "rb") as file:
        return _put(target, file, size, crc, None, progress, _new_mark())


def download(source: str, target: str, progress: Progress | None = None) -> None:
    """Downloads to a temporary name beside `target`, verifies, then renames."""
    for number in range(_MOST_RESTARTS):
        try:
            return _download_once(source, target, None if number else progress)
        except (stream.ReplacedError, stream.DamagedError):
            if number == _MOST_RESTARTS - 1:
                raise


def _download_once(source: str, target: str, progress: Progress | None) -> None:
    reader = stream.ObjectReader(source, stat(source), _DOWNLOAD_PIECE)
    with local.writing(target) as file:
        while piece := reader.read(_DOWNLOAD_PIECE):
            file.write(piece)
            if progress:
                progress(len(piece))


def rename(source: str, target: str) -> None:
    """Copies on the bucket's side, then deletes the old name."""

    def copy(_: int) -> None:
        token = None
        while True:  # a large copy comes in several answers
            done = clients.blob(target).rewrite(
                clients.blob(source), token=token, timeout=_timeout(), retry=None
            )
            token = done[0]
            if token is None:
                return

    retry.run(source, copy)
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


def list_files(directory: str) -> list[str]:
    """Sorted names of the objects directly below `directory`."""
    prefix = _directory_prefix(directory)
    names = [n[len(prefix) :] for n in _names(directory, prefix, "/")]
    return sorted(name for name in names if name and not name.endswith("/"))


def list_stats(directory: str) -> dict[str, Stat]:
    """Name to `Stat` of the objects directly below `directory`."""
    prefix = _directory_prefix(directory)
    found = {}
    for blobs, _ in _pages(directory, prefix, "/"):
        for blob in blobs:
            name = blob.name[len(prefix) :]
            if name and not name.endswith("/"):
                found[name] = _stat_of(blob)
    return dict(sorted(found.items()))


def list_tree(directory: str) -> list[str]:
    """Sorted names of all objects below `directory`, relative to it."""
    prefix = _directory_prefix(directory)
    names = [n[len(prefix) :] for n in _names(directory, prefix, "")]
    return sorted(name for name in names if name and not name.endswith("/"))


def glob(pattern: str) -> list[str]:
    """Sorted paths that match."""
    bucket, name_pattern = split_remote(pattern)
    fixed = re.split(r"[*?\[]", name_pattern, maxsplit=1)[0]
    is_flat = "/" not in name_pattern[len(fixed) :]
    matches = re.compile(_expression(name_pattern)).fullmatch
    names = _names(pattern, fixed, "/" if is_flat else "")
    return sorted(f"{SCHEME}{bucket}/{n}" for n in names if matches(n) and not n.endswith("/"))


def location(path: str) -> str | None:
    """The bucket's location in lower case (`us-central1`, `us`); None where it may not be asked."""

    def attempt(_: int) -> str:
        bucket = clients.client().get_bucket(split_remote(path)[0], timeout=_timeout(), retry=None)
        return bucket.location or ""

    try:
        return retry.run(path, attempt).lower() or None
    except PermissionError:  # objects may be readable without the right to see the bucket itself
        return None


def _put_if(path: str, data: bytes, generation: int) -> str | None:
    """Writes if the object's generation is `generation` (0: absent); the new one, or None."""
    from google.api_core.exceptions import PreconditionFailed

    mark = _new_mark()
    try:
        file = io.BytesIO(data)
        return _put(path, file, len(data), crc32c_text(data), generation, None, mark).token
    except PreconditionFailed:
        # The reply to an earlier try may have been lost after the object was stored.
        return _own_generation(path, mark)


def _own_generation(path: str, mark: str) -> str | None:
    def attempt(_: int) -> str | None:
        blob = clients.blob(path)
        blob.reload(timeout=_timeout(), retry=None)
        return str(blob.generation) if (blob.metadata or {}).get("writer") == mark else None

    try:
        return retry.run(path, attempt)
    except FileNotFoundError:
        return None


def _put(
    path: str,
    file: BinaryIO,
    size: int,
    crc: str,
    if_generation_match: int | None,
    progress: Progress | None,
    mark: str,
) -> Stat:
    """Uploads and compares the stored checksum with `crc`."""
    content_type = _content_type(path)
    corrupt = 0
    while True:
        blob = clients.blob(path)
        blob.metadata = {"writer": mark}
        if size > _ONE_REQUEST:
            stored = resumable.upload(
                path, blob, file, size, content_type, if_generation_match, progress
            )
        else:
            stored = _put_at_once(path, file, content_type, if_generation_match, mark)
            if progress:
                progress(size)
        if stored.get("crc32c") == crc:
            return Stat(size, 0.0, str(stored["generation"]), crc)
        corrupt += 1
        delete_if(path, str(stored["generation"]))
        if corrupt == _MOST_RESTARTS:
            raise StorageError(f"{path}: what the bucket stored is not what was sent: run again")


def _put_at_once(
    path: str, file: BinaryIO, content_type: str, if_generation_match: int | None, mark: str
) -> dict[str, Any]:
    file.seek(0)
    data = file.read()

    def attempt(_: int) -> dict[str, Any]:
        blob = clients.blob(path)
        blob.metadata = {"writer": mark}
        blob.upload_from_string(
            data,
            content_type=content_type,
            checksum="crc32c",
            if_generation_match=if_generation_match,
            timeout=_timeout(),
            retry=None,
        )
        return {"crc32c": blob.crc32c, "generation": blob.generation}

    return retry.run(path, attempt)


def _names(path: str, prefix: str, delimiter: str) -> list[str]:
    return [blob.name for blobs, _ in _pages(path, prefix, delimiter) for blob in blobs]


def _pages(
    path: str, prefix: str, delimiter: str, most: int | None = None
) -> Iterator[tuple[list[Any], str | None]]:
    """Pages of objects under `prefix`, each with its own retries."""
    bucket = split_remote(path)[0]
    token: str | None = None
    while True:

        def attempt(_: int, token: str | None = token) -> tuple[list[Any], str | None]:
            found = clients.client().list_blobs(
                bucket,
                prefix=prefix or None,
                delimiter=delimiter or None,
                page_token=token,
                max_results=most,
                fields=_FIELDS,
                timeout=_timeout(),
                retry=None,
            )
            page: Iterable[Any] = next(found.pages, [])
            return list(page), found.next_page_token

        blobs, token = retry.run(path, attempt)
        yield blobs, token
        if not token:
            return


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


def _timeout() -> float:
    return retry.Policy.from_environment().request_timeout
