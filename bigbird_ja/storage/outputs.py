"""Where a command may write: into nothing, or over what the same command has made.

What a command made is recognised by its content, never by its name. Anything else is refused, even
with `--overwrite`. Checks come before any work; `write` comes after it. A file is written
beside its place and renamed, so that a link or a device is never written through.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from bigbird_ja import storage
from bigbird_ja.storage import paths

# Whether what is at a path was made by the command that asks.
IsOurs = Callable[[str], bool]

_HEAD = 8192  # bytes in which a picture or a page says who made it
_MOST_JSON = 64 << 20  # bytes; no command writes a larger JSON file
PICTURE_SOFTWARE = "bigbird-ja"  # in a PNG's `Software` text
PAGE_MARK = '<meta name="generator" content="bigbird-ja report">'


def check_output_file(
    path: str, flag: str, overwrite: bool, is_ours: IsOurs, made_by: str = "this command"
) -> None:
    """Refuses a place that a file must not be written to; changes nothing.

    Args:
        path: on disk or gs://. Its folder need not exist: `write` makes it.
        flag: that named it, such as `--output`.
        overwrite: whether a file that the command has made may be replaced; True for commands
            without that flag, which renew their own file.
        is_ours: asked only where a regular file is.
        made_by: the command, for the message.

    Raises:
        BadInput: a link, folder, FIFO, socket, device, a file of another make, an existing file
            without `overwrite`, a folder that cannot be written to, a name that cannot be one.
    """
    paths.check_name(path, flag)
    if path.endswith("/"):
        raise paths.refusal(path, flag, "a folder's name: name a file")
    if storage.is_remote(path):
        if not storage.exists(path):
            return
        if path not in storage.glob(path):
            raise paths.refusal(path, flag, "a folder: name a file")
    elif not _is_file(path, flag):
        return
    if not is_ours(path):
        raise paths.refusal(path, flag, f"a file that {made_by} did not make: {_CHOOSE}")
    if not overwrite:
        raise paths.refusal(path, flag, "exists: choose another name, or give --overwrite")


def check_folder_place(path: str, flag: str) -> None:
    """Refuses a place where no folder is and none can be made; a link to a folder is followed.

    Changes nothing, asks nothing of a bucket, and does not care what is in the folder.

    Raises:
        BadInput: a file or something special, a folder that cannot be written to, a name that
            cannot be one.
    """
    paths.check_name(path, flag)
    if storage.is_remote(path):
        return
    info = paths.stat_or_none(path, flag)
    if info is None:
        if os.path.islink(path.rstrip("/")):
            raise paths.refusal(path, flag, "a symbolic link that leads nowhere: remove it")
        _check_parent(path, flag)
        return
    paths.refuse_special(path, flag, info, "name a folder")
    if not stat.S_ISDIR(info.st_mode):
        raise paths.refusal(path, flag, "a file of that name exists: name a folder")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise paths.refusal(path, flag, "a folder that cannot be written to: check permissions")


def check_output_directory(
    path: str, flag: str, overwrite: bool, is_ours: IsOurs, made_by: str = "this command"
) -> None:
    """`check_folder_place`, and refuses a folder that holds what the command did not make.

    An empty folder counts as none. A link to a folder is followed: use `refuse_link` too where
    the folder itself is replaced.

    Args:
        path, flag, overwrite, is_ours, made_by: as of `check_output_file`; `is_ours` is asked
            where the folder holds anything.

    Raises:
        BadInput: also a folder of another make, or one of ours without `overwrite`.
    """
    check_folder_place(path, flag)
    if storage.is_remote(path):
        is_empty = not storage.list_tree(path)
    else:
        is_empty = not os.path.isdir(path) or not os.listdir(path)
    if is_empty:
        return
    if not is_ours(path):
        raise paths.refusal(
            path, flag, f"a folder with something that {made_by} did not make in it: {_CHOOSE}"
        )
    if not overwrite:
        raise paths.refusal(path, flag, "exists: choose another folder, or give --overwrite")


_CHOOSE = "choose another name, or move it away yourself (--overwrite replaces only our own)"


def refuse_link(path: str, flag: str) -> None:
    """Refuses a local path that is a symbolic link.

    Raises:
        BadInput: it is one.
    """
    if not storage.is_remote(path) and os.path.islink(path.rstrip("/") or path):
        raise paths.refusal(path, flag, "a symbolic link: name the place that it leads to")


def refuse_overlap(inputs: Mapping[str, str | None], outputs: Mapping[str, str | None]) -> None:
    """Refuses an output folder or file that is an input, holds one, or lies in an input folder.

    Args:
        inputs, outputs: flag to path; None where it was not given.

    Raises:
        BadInput: two of them overlap.
    """
    for out_flag, output in outputs.items():
        for in_flag, source in inputs.items():
            if output and source and _overlap(_real(output), _real(source)):
                reason = f"overlaps with {in_flag} {source}: choose another place"
                raise paths.refusal(output, out_flag, reason)


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[None]:
    """A folder for the time of the block: made with the folders above it where it is missing, and
    what was made is removed again where nothing was written in it."""
    made = []
    folder = os.path.abspath(path)
    while not storage.is_remote(path) and not os.path.isdir(folder):
        made.append(folder)
        folder = os.path.dirname(folder)
    storage.make_directory(path)
    try:
        yield
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # something is in it
                os.rmdir(folder)


def write(path: str, data: bytes) -> None:
    """Writes a file whose place was checked, with the folders above it; whole or not at all."""
    storage.make_directory(storage.directory_of(path))
    storage.write_bytes(path, data)


def is_our_picture(path: str) -> bool:
    """Whether a file is a PNG that one of our commands drew."""
    head = _head(path)
    return head.startswith(b"\x89PNG") and b"Software\0" + PICTURE_SOFTWARE.encode() in head


def is_our_page(path: str) -> bool:
    """Whether a file is a page that `report` wrote."""
    return PAGE_MARK.encode() in _head(path)


def is_json_with(*keys: str) -> IsOurs:
    """A recogniser of JSON files whose object has all of `keys`."""

    def is_ours(path: str) -> bool:
        if storage.stat(path).size > _MOST_JSON:
            return False
        try:
            content = msgspec.json.decode(storage.read_bytes(path), type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        return content.keys() >= set(keys)

    return is_ours


def _head(path: str) -> bytes:
    with storage.open_read(path) as file:
        return file.read(_HEAD)


def _is_file(path: str, flag: str) -> bool:
    """Whether a regular file is at a local path; False where nothing is and a file can be made."""
    refuse_link(path, flag)
    info = paths.stat_or_none(path, flag)
    if info is None:
        _check_parent(path, flag)
        return False
    if stat.S_ISDIR(info.st_mode):
        raise paths.refusal(path, flag, "a folder: name a file")
    paths.refuse_special(path, flag, info, "name a file")
    _check_parent(path, flag)
    return True


def _check_parent(path: str, flag: str) -> None:
    """Refuses a local path whose nearest existing folder cannot take a new entry."""
    parent = os.path.dirname(os.path.abspath(path))
    while True:
        info = paths.stat_or_none(parent, flag)
        if info is not None or os.path.islink(parent) or parent == os.path.dirname(parent):
            break
        parent = os.path.dirname(parent)
    if info is None or not stat.S_ISDIR(info.st_mode):
        raise paths.refusal(path, flag, f"{parent} is not a folder: choose another place")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise paths.refusal(path, flag, f"{parent} cannot be written to: check permissions")


def _real(path: str) -> str:
    """One name per place, without a slash at its end."""
    if storage.is_remote(path):
        return path.rstrip("/")
    return os.path.realpath(os.path.expanduser(path)).rstrip("/")


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
