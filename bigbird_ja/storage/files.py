"""Functions on files by path, on disk or on a bucket. They are documented at `disk.Disk`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from bigbird_ja.errors import BadInput
from bigbird_ja.storage.disk import Disk
from bigbird_ja.storage.paths import (
    MAX_BYTES,
    check_name,
    get_base_name,
    get_directory,
    is_remote,
    join,
)

if TYPE_CHECKING:
    from bigbird_ja.storage.gcs import Bucket

P = ParamSpec("P")
R = TypeVar("R")

_DISK = Disk()


@functools.cache
def _get_bucket() -> Bucket:
    # Imported here, since importing the client library takes half a second.
    from bigbird_ja.storage.gcs import Bucket

    return Bucket()


def find_place(path: str) -> Disk | Bucket:
    """Return the `Disk` or `Bucket` that stores a path.

    Raises:
        BadInput: The path is invalid, such as s3://bucket/name.
    """
    check_name(path, "")
    return _get_bucket() if is_remote(path) else _DISK


def _dispatch(method: Callable[Concatenate[Any, str, P], R]) -> Callable[Concatenate[str, P], R]:
    """Return a function that calls `method` of the `Disk` or `Bucket` that stores a path.

    The path is the first argument of the returned function.
    """

    @functools.wraps(method)
    def call(path: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return getattr(find_place(path), method.__name__)(path, *args, **kwargs)

    return call


open_read = _dispatch(Disk.open_read)
read_with_token = _dispatch(Disk.read_with_token)
writing = _dispatch(Disk.writing)
write_bytes = _dispatch(Disk.write_bytes)
replace_if = _dispatch(Disk.replace_if)
delete = _dispatch(Disk.delete)
rename = _dispatch(Disk.rename)
exists = _dispatch(Disk.exists)
stat = _dispatch(Disk.stat)
list_stats = _dispatch(Disk.list_stats)
list_tree = _dispatch(Disk.list_tree)
glob = _dispatch(Disk.glob)
download = _dispatch(Disk.download)


def read_bytes(path: str, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a file, as `Disk.read_with_token` does, but without the token."""
    return read_with_token(path, limit)[0]


def read_text(path: str, limit: int = MAX_BYTES) -> str:
    """Read a file as UTF-8.

    Raises:
        BadInput: The file is not UTF-8, or has more than `limit` bytes.
    """
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 (byte {error.start}): convert the file") from error


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
    """Return a local path of a file. A file on a bucket is downloaded to `directory`."""
    if not is_remote(path):
        return path
    target = os.path.join(directory, get_base_name(path))
    download(path, target)
    return target


def upload(source: str, target: str) -> None:
    """Copy a local file to `target`, as `Disk.upload` does."""
    find_place(target).upload(source, target)


def take(source: str, target: str) -> None:
    """Move a local file to `target`, as `Disk.take` does."""
    find_place(target).take(source, target)


def delete_if(path: str, token: str) -> None:
    """Delete an object on a bucket, if its generation is still `token`."""
    _get_bucket().delete(path, int(token))


def find_free_name(path: str) -> str:
    """Return the first of PATH.replaced-1, PATH.replaced-2, ... that does not exist."""
    path, number = path.rstrip("/"), 1
    while exists(f"{path}.replaced-{number}"):
        number += 1
    return f"{path}.replaced-{number}"


def get_bucket_location(path: str) -> str | None:
    """Return a bucket's region in lower case, or None on disk or without permission to read it."""
    return _get_bucket().get_location(path) if is_remote(path) else None


def rename_all(names: Iterable[str], source: str, target: str) -> None:
    """Move files of a folder to another folder, in parallel."""
    run_all([partial(rename, join(source, name), join(target, name)) for name in names])


def delete_many(paths: Iterable[str]) -> None:
    """Delete files in parallel, and ignore missing ones."""
    run_all([partial(delete, path) for path in paths])


def put_all(files: Mapping[str, str], folder: str, put: Callable[[str, str], None] = take) -> None:
    """Move or copy local files to a folder, in parallel.

    Args:
        files: local path by name in the folder.
        folder: folder on disk or gs://, which is created with its subfolders.
        put: function for one file: `take` moves it, and `upload` copies it.
    """
    targets = {join(folder, name): path for name, path in files.items()}
    for parent in {get_directory(target) for target in targets}:
        make_directory(parent)
    run_all([partial(put, path, target) for target, path in targets.items()])


def run_all(tasks: Sequence[Callable[[], Any]]) -> None:
    """Run tasks in threads. If a task fails, cancel the waiting tasks and raise its exception.

    The `transfer_manager` of Cloud Storage's client library is not used, because it runs the
    waiting tasks even after a failure, and does not verify a resumed download.
    """
    with ThreadPoolExecutor(8, thread_name_prefix="storage") as pool:
        for _ in pool.map(lambda task: task(), tasks):
            pass
