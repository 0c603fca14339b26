"""Large uploads in pieces: after a fault the bucket is asked what it holds, and the rest follows.

Protocol: https://cloud.google.com/storage/docs/performing-resumable-uploads
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

from bigbird_ja.storage import client as clients
from bigbird_ja.storage import retry

PIECE = 16 << 20  # bytes; a multiple of the 256 KiB that the protocol demands
_MOST_SESSIONS = 5


class _SessionLostError(Exception):
    """The bucket has forgotten the upload: it starts again from the first byte."""


def upload(
    path: str,
    blob: Any,
    file: BinaryIO,
    size: int,
    content_type: str,
    if_generation_match: int | None,
    progress: Callable[[int], None] | None,
) -> dict[str, Any]:
    """Uploads `size` bytes of `file`; returns the object's metadata as the bucket states it.

    Each piece has its own deadline, so that a large file may take its time while it advances.

    Raises:
        StorageError: lasting faults, or a session lost again and again.
    """
    told = 0

    def advanced(position: int) -> None:
        nonlocal told
        if progress and position > told:
            progress(position - told)
            told = position

    for _ in range(_MOST_SESSIONS):
        url = retry.run(path, lambda n: _open(blob, size, content_type, if_generation_match))
        try:
            return _send_all(path, url, file, size, advanced)
        except _SessionLostError:
            continue
    raise retry.StorageError(f"{path}: the bucket lost the upload {_MOST_SESSIONS} times")


def _open(blob: Any, size: int, content_type: str, if_generation_match: int | None) -> str:
    return blob.create_resumable_upload_session(
        content_type=content_type,
        size=size,
        client=clients.client(),
        timeout=retry.Policy.from_environment().request_timeout,
        checksum=None,
        if_generation_match=if_generation_match,
        retry=None,
    )


def _send_all(
    path: str, url: str, file: BinaryIO, size: int, advanced: Callable[[int], None]
) -> dict[str, Any]:
    position = 0
    while True:
        start = position

        def attempt(number: int, start: int = start) -> int | dict[str, Any]:
            if number:  # a part of the piece, or all of it, may have arrived
                held = _put(url, b"", f"bytes */{size}")
                if isinstance(held, dict) or held > start:
                    return held
            file.seek(start)
            data = file.read(min(PIECE, size - start))
            return _put(url, data, f"bytes {start}-{start + len(data) - 1}/{size}")

        result = retry.run(path, attempt)
        if isinstance(result, dict):
            advanced(size)
            return result
        position = result
        advanced(position)


def _put(url: str, data: bytes, content_range: str) -> int | dict[str, Any]:
    """Sends one piece: the number of bytes held, or the metadata of the finished object."""
    response = clients.session().put(
        url,
        data=data,
        headers={"Content-Range": content_range},
        timeout=retry.Policy.from_environment().request_timeout,
        allow_redirects=False,
    )
    if response.status_code == 308:
        held = response.headers.get("Range", "")
        return int(held.rpartition("-")[2]) + 1 if held else 0
    if response.status_code in (404, 410):
        raise _SessionLostError
    if response.status_code not in (200, 201):
        from google.api_core import exceptions

        raise exceptions.from_http_response(response)
    return response.json()
