"""Functions on files by path, for a disk or a bucket.

The methods of `disk.Disk` document each function.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from bigbird_ja.errors import BadInput
from bigbird_ja.storage.disk import Disk
from bigbird_ja.storage.paths import MAX_BYTES, base_name, check_name, directory_of, is_remote, join

if TYPE_CHECKING:
    from bigbird_ja.storage.gcs import Bucket

P = ParamSpec("P")
R = TypeVar("R")

_DISK = Disk()


@functools.cache
def _bucket() -> Bucket:
    from bigbird_ja.storage.gcs import Bucket  # Importing the client library takes half a second.

    return Bucket()


def place_of(path: str) -> Disk | Bucket:
    """Return the disk or the bucket that a path is on.

    Raises:
        BadInput: The path cannot name a file, as s3://bucket/name.
    """
    check_name(path, "")
    return _bucket() if is_remote(path) else _DISK


def _by_path(method: Callable[Concatenate[Any, str, P], R]) -> Callable[Concatenate[str, P], R]:
    """Return a function that calls the method of the disk or the bucket that the path is on."""

    @functools.wraps(method)
    def call(path: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return getattr(place_of(path), method.__name__)(path, *args, **kwargs)

    return call


open_read = _by_path(Disk.open_read)
read_with_token = _by_path(Disk.read_with_token)
writing = _by_path(Disk.writing)
write_bytes = _by_path(Disk.write_bytes)
replace_if = _by_path(Disk.replace_if)
delete = _by_path(Disk.delete)
rename = _by_path(Disk.rename)
exists = _by_path(Disk.exists)
stat = _by_path(Disk.stat)
list_stats = _by_path(Disk.list_stats)
list_tree = _by_path(Disk.list_tree)
glob = _by_path(Disk.glob)
download = _by_path(Disk.download)


def read_bytes(path: str, limit: int = MAX_BYTES) -> bytes:
    """Read the whole file, as `Disk.read_with_token` does."""
    return read_with_token(path, limit)[0]


def read_text(path: str, limit: int = MAX_BYTES) -> str:
    """Read the whole file as UTF-8.

    Raises:
        BadInput: Not UTF-8, or larger than `limit` bytes.
    """
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 (byte {error.start})") from error


def write_text(path: str, text: str) -> None:
    """Write text as UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def create_exclusive(path: str, data: bytes) -> bool:
    """Create a file unless it exists, and return whether it was created."""
    return replace_if(path, data, "") is not None


def list_files(directory: str) -> list[str]:
    """List the names of the files in a directory, as `Disk.list_stats` does."""
    return list(list_stats(directory))


def make_directory(path: str) -> None:
    """Create a directory and its parents on disk, and do nothing on a bucket."""
    if not is_remote(path):
        os.makedirs(path, exist_ok=True)


def fetch(path: str, directory: str) -> str:
    """Return a local path of the file, after a download to `directory` if it is on a bucket."""
    if not is_remote(path):
        return path
    target = os.path.join(directory, base_name(path))
    download(path, target)
    return target


def upload(source: str, target: str) -> None:
    """Copy a local file to `target`, as `Disk.upload` does."""
    place_of(target).upload(source, target)


def take(source: str, target: str) -> None:
    """Move a local file to `target`, as `Disk.take` does."""
    place_of(target).take(source, target)


def delete_if(path: str, token: str) -> None:
    """Delete an object on a bucket if it is still the generation `token`."""
    _bucket().delete(path, int(token))


def free_name(path: str) -> str:
    """Return the first of PATH.replaced-1, PATH.replaced-2, ... that doesn't exist."""
    path, number = path.rstrip("/"), 1
    while exists(f"{path}.replaced-{number}"):
        number += 1
    return f"{path}.replaced-{number}"


def bucket_location(path: str) -> str | None:
    """Return the bucket's region in lower case.

    It is None on disk, and without the permission to ask.
    """
    return _bucket().location(path) if is_remote(path) else None


def rename_all(names: Iterable[str], source: str, target: str) -> None:
    """Rename files of a folder to the same names in another folder, several at a time."""
    run_all([partial(rename, join(source, name), join(target, name)) for name in names])


def delete_many(paths: Iterable[str]) -> None:
    """Delete files, several at a time, and ignore missing ones."""
    run_all([partial(delete, path) for path in paths])


def put_all(files: Mapping[str, str], folder: str, put: Callable[[str, str], None] = take) -> None:
    """Put local files into a folder, several at a time.

    The caller writes the record of them after this.

    Args:
        files: name in the folder to local path.
        folder: folder on disk or gs://, created with its subfolders.
        put: `take` or `upload`.
    """
    targets = {join(folder, name): path for name, path in files.items()}
    for parent in {directory_of(target) for target in targets}:
        make_directory(parent)
    run_all([partial(put, path, target) for target, path in targets.items()])


def run_all(tasks: Sequence[Callable[[], Any]]) -> None:
    """Run `tasks` in threads, and raise the first failure after those in flight have ended.

    The client library's `transfer_manager` is not used: after a failure it waits for all other
    tasks, and it does not verify a resumed download.
    """
    with ThreadPoolExecutor(8, thread_name_prefix="storage") as pool:
        for _ in pool.map(lambda task: task(), tasks):  # An error cancels the waiting tasks.
            pass
