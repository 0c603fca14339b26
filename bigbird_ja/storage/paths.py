"""Paths on disk and on gs://: splitting, joining, checks.

The checks do not open files, since opening a FIFO may block forever. Their messages are one line
with the parameter, the path, the problem and the advice.
"""

import base64
import os
import posixpath
import re
import stat
from dataclasses import dataclass

from bigbird_ja.errors import BadInput

SCHEME = "gs://"
# Prefixes of values of `inputs` that are names of data sets (TFDS, Hugging Face), not paths.
NAMED = ("tfds:", "hf:")
# Maximum size of a file that is read at once. Tokenizers have a few MB, and a manifest of 100,000
# shards has 20 MB.
MAX_BYTES = 256 << 20
# Prefix of temporary files, which listings exclude.
TEMPORARY_PREFIX = ".tmp-"

_CONTROL = re.compile(r"[\0-\x1f]")
_OTHER_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class Stat:
    """Size and token of a file.

    Attributes:
        size: Size in bytes.
        token: Text that changes with every write.
        crc32c: CRC-32C in base64, as in Cloud Storage; None on disk.
    """

    size: int
    token: str
    crc32c: str | None = None


def compute_crc32c(data: bytes) -> str:
    """Compute the CRC-32C of some bytes, in base64 as in Cloud Storage."""
    import google_crc32c

    return encode_crc32c(google_crc32c.value(data))


def encode_crc32c(value: int) -> str:
    """Encode a CRC-32C in base64 of its big-endian bytes, as in Cloud Storage."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def is_remote(path: str) -> bool:
    """Return whether `path` is on a bucket."""
    return path.startswith(SCHEME)


def split_remote(path: str) -> tuple[str, str]:
    """Split `gs://bucket/name` into bucket and name. For `gs://bucket`, the name is "".

    Raises:
        BadInput: The path does not contain a bucket.
    """
    bucket, _, name = path.removeprefix(SCHEME).partition("/")
    if not is_remote(path) or not bucket:
        raise BadInput(f"{path!r}: expected gs://bucket/name")
    return bucket, name


def join(base: str, *names: str) -> str:
    """Join paths, on disk or on a bucket, and check that the result is inside `base`.

    The check is required since names come from manifests, listings and archives.

    Raises:
        BadInput: A name is absolute, or contains `..`.
    """
    for name in names:
        check_inside(name)
    if is_remote(base):
        return "/".join([base.rstrip("/"), *(name.strip("/") for name in names)])
    return os.path.join(base, *names)


def check_inside(name: str) -> str:
    """Return `name` if it is relative and does not leave its directory.

    Raises:
        BadInput: The name is absolute, or contains `..`.
    """
    is_absolute = os.path.isabs(name) or name.startswith(("/", "\\", SCHEME))
    if not name or "\0" in name or is_absolute or ".." in name.replace("\\", "/").split("/"):
        raise BadInput(f"{name!r} is not a relative path inside its directory")
    return name


def get_directory(path: str) -> str:
    """Return the directory that contains `path`, or "." for a bare name."""
    if is_remote(path):
        return SCHEME + posixpath.dirname(path.removeprefix(SCHEME))
    return os.path.dirname(path) or "."


def get_base_name(path: str) -> str:
    """Return the last component of `path`."""
    return path.rstrip("/").rpartition("/")[2]


def check_name(path: str, flag: str) -> None:
    """Check that a path can name a file or folder, on disk or on gs://.

    Args:
        path: path from the user.
        flag: parameter that contains the path, such as "`output`", for the message.

    Raises:
        BadInput: The path is empty, is not UTF-8, or contains control characters or another scheme.
    """
    if not path:
        raise BadInput(f"{flag or 'a path'} is empty: name a path")
    try:
        path.encode("utf-8")
    except UnicodeError as error:
        raise make_refusal(path, flag, "is not UTF-8: rename it") from error
    if _CONTROL.search(path):
        raise make_refusal(path, flag, "contains control characters: rename it")
    if _OTHER_SCHEME.match(path) and not is_remote(path):
        raise make_refusal(path, flag, "is neither on gs:// nor a local path: use one of these")
    if is_remote(path):
        split_remote(path)


def refuse_special(path: str, flag: str, info: os.stat_result, advice: str) -> None:
    """Check that a path is a file or a folder, given its `stat`.

    Raises:
        BadInput: The path is a FIFO, a socket or a device.
    """
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        raise make_refusal(path, flag, f"is a FIFO, socket or device, not a file: {advice}")


def check_size(path: str, size: int, limit: float) -> None:
    """Check the size of a file.

    Raises:
        BadInput: The file has more than `limit` bytes.
    """
    if size > limit:
        reason = f"has more than {limit:,} bytes, too many for such a file: name another file"
        raise make_refusal(path, "", reason)


def make_refusal(path: str, flag: str, reason: str) -> BadInput:
    """Return the error for a path. `reason` begins with a verb, such as "is empty"."""
    return BadInput(f"{flag} {path} {reason}".lstrip())
