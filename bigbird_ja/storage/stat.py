"""What is known of a file without reading it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stat:
    """Size in bytes, last change in UNIX seconds, and a token that changes with every write.

    `crc32c` (base64 of the big-endian checksum, as Google Cloud Storage states it) is known
    without reading only on a bucket.
    """

    size: int
    modified: float
    token: str
    crc32c: str | None = None
