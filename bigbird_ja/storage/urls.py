"""Names of files: which are on a bucket, how they are joined, how to know unfinished ones."""

from __future__ import annotations

import os
import posixpath

from bigbird_ja.process.errors import BadInput

SCHEME = "gs://"
# Files that a writer has not finished; readers and listings never see them.
TEMPORARY_PREFIX = ".tmp-"


def is_remote(path: str) -> bool:
    """Whether `path` is on a bucket."""
    return path.startswith(SCHEME)


def split_remote(path: str) -> tuple[str, str]:
    """Bucket and object name of `gs://bucket/name`; the name is "" for the bucket itself.

    Raises:
        BadInput: no bucket, or a name that could leave its directory.
    """
    bucket, _, name = path.removeprefix(SCHEME).partition("/")
    if not is_remote(path) or not bucket:
        raise BadInput(f"{path!r}: expected gs://bucket/name")
    if "\0" in name or "\n" in name or "\r" in name:
        raise BadInput(f"{path!r}: control characters are not allowed in an object's name")
    return bucket, name


def join(base: str, *names: str) -> str:
    """`base/name/...`, on disk or on a bucket; what is joined stays inside `base`.

    Names come from manifests, listings and archives, so none may climb out.

    Raises:
        BadInput: a name that is absolute, contains `..`, or names another place.
    """
    for name in names:
        check_inside(name)
    if is_remote(base):
        return "/".join([base.rstrip("/"), *(name.strip("/") for name in names)])
    return os.path.join(base, *names)


def check_inside(name: str) -> str:
    """Returns `name` if it is relative and stays in the directory that it is joined to.

    Raises:
        BadInput: it does not.
    """
    parts = name.replace("\\", "/").split("/")
    if (
        not name
        or "\0" in name
        or os.path.isabs(name)
        or name.startswith(("/", "\\", SCHEME))
        or ".." in parts
    ):
        raise BadInput(f"{name!r} is not a file name inside its directory: refused")
    return name


def directory_of(path: str) -> str:
    """The directory that holds `path`; "." for a bare name."""
    if is_remote(path):
        return SCHEME + posixpath.dirname(path.removeprefix(SCHEME))
    return os.path.dirname(path) or "."


def base_name(path: str) -> str:
    """The last part of `path`."""
    return path.rstrip("/").rpartition("/")[2]
