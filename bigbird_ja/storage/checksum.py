"""CRC-32C, the checksum that Google Cloud Storage keeps for every object."""

from __future__ import annotations

import base64

from bigbird_ja.storage import local


def crc32c_text(data: bytes) -> str:
    """Base64 of the big-endian CRC-32C, the form in which object metadata states it."""
    import google_crc32c

    return as_text(google_crc32c.value(data))


def crc32c_of_file(path: str) -> tuple[str, int]:
    """CRC-32C (as `crc32c_text`) and size of a local file, read in chunks."""
    import google_crc32c

    value, count = 0, 0
    with local.open_read(path) as file:
        while chunk := file.read(1 << 20):
            value = google_crc32c.extend(value, chunk)
            count += len(chunk)
    return as_text(value), count


def as_text(value: int) -> str:
    """The form in which object metadata states a CRC-32C."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()
