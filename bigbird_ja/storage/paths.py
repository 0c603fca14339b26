"""Paths on disk and on gs://: splitting, joining, checks.

No check opens a file: opening a FIFO may wait forever, and a device may do anything. The message of
a refusal is one line with the parameter, the path, the problem and the advice.
"""

import base64
import os
import posixpath
import re
import stat
from dataclasses import dataclass

from bigbird_ja.errors import BadInput

SCHEME = "gs://"
# Prefixes of `inputs` that name data sets, not paths.
NAMED = ("tfds:", "hf:")
# Maximum size of a file that is read whole. A tokenizer has a few MB, and a manifest of 100,000
# shards 20 MB.
MAX_BYTES = 256 << 20
# Prefix of files that a writer has not finished; listings exclude them.
TEMPORARY_PREFIX = ".tmp-"

_CONTROL = re.compile(r"[\0-\x1f]")
_OTHER_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class Stat:
    """Size of a file in bytes, and a token that changes with every write.

    `crc32c` (base64 of the big-endian checksum, as Google Cloud Storage states it) is set only on a
    bucket.
    """

    size: int
    token: str
    crc32c: str | None = None


def crc32c_text(data: bytes) -> str:
    """Compute the CRC-32C in base64, big-endian, as object metadata states it."""
    import google_crc32c

    return encode_crc32c(google_crc32c.value(data))


def encode_crc32c(value: int) -> str:
    """Encode a CRC-32C as object metadata states it."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def is_remote(path: str) -> bool:
    """Return whether `path` is on a bucket."""
    return path.startswith(SCHEME)


def split_remote(path: str) -> tuple[str, str]:
    """Split `gs://bucket/name` into bucket and name, which is "" for the bucket itself.

    Raises:
        BadInput: The path names no bucket.
    """
    bucket, _, name = path.removeprefix(SCHEME).partition("/")
    if not is_remote(path) or not bucket:
        raise BadInput(f"{path!r}: expected gs://bucket/name")
    return bucket, name


def join(base: str, *names: str) -> str:
    """Join `base/name/...`, on disk or on a bucket, so that the result stays inside `base`.

    Names come from manifests, listings and archives, so none may leave `base`.

    Raises:
        BadInput: A name that is absolute, contains `..`, or names another place.
    """
    for name in names:
        check_inside(name)
    if is_remote(base):
        return "/".join([base.rstrip("/"), *(name.strip("/") for name in names)])
    return os.path.join(base, *names)


def check_inside(name: str) -> str:
    """Return `name` if it is relative and stays in the directory that it is joined to.

    Raises:
        BadInput: It is absolute or leaves the directory.
    """
    is_absolute = os.path.isabs(name) or name.startswith(("/", "\\", SCHEME))
    if not name or "\0" in name or is_absolute or ".." in name.replace("\\", "/").split("/"):
        raise BadInput(f"{name!r} is not a file name inside its directory: refused")
    return name


def directory_of(path: str) -> str:
    """Return the directory that contains `path`, or "." for a bare name."""
    if is_remote(path):
        return SCHEME + posixpath.dirname(path.removeprefix(SCHEME))
    return os.path.dirname(path) or "."


def base_name(path: str) -> str:
    """Return the last part of `path`."""
    return path.rstrip("/").rpartition("/")[2]


def check_name(path: str, flag: str) -> None:
    """Refuse what cannot be the name of a file or folder, on disk or on gs://.

    Args:
        path: path that the user gave.
        flag: parameter that named it, such as "`output`", for the message.

    Raises:
        BadInput: Empty, not UTF-8, with control characters, or of another scheme.
    """
    if not path:
        raise BadInput(f"{flag or 'a path'} is empty: name a path")
    try:
        path.encode("utf-8")
    except UnicodeError as error:
        raise refusal(path, flag, "has a name that is not UTF-8: rename it") from error
    if _CONTROL.search(path):
        raise refusal(path, flag, "has control characters in its name: rename it")
    if _OTHER_SCHEME.match(path) and not is_remote(path):
        raise refusal(path, flag, "is neither gs:// nor a path on this machine: name one of these")
    if is_remote(path):
        split_remote(path)


def refuse_special(path: str, flag: str, info: os.stat_result, advice: str) -> None:
    """Refuse a FIFO, a socket or a device, given its `stat`.

    Raises:
        BadInput: It is one of these.
    """
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        raise refusal(path, flag, f"is a FIFO, socket or device, not a file: {advice}")


def check_size(path: str, size: int, limit: float) -> None:
    """Refuse a file that is too large to be of the expected kind.

    Raises:
        BadInput: `size` bytes are more than `limit`.
    """
    if size > limit:
        reason = f"has more than {limit:,} bytes, which makes no sense here: name the right file"
        raise refusal(path, "", reason)


def refusal(path: str, flag: str, reason: str) -> BadInput:
    """Return the error for a path, whose `reason` begins with a verb."""
    return BadInput(f"{flag} {path} {reason}".lstrip())
