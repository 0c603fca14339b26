"""Checks that a place to write to is free, or belongs to us by the ownership manifest.

Anything else is refused, even with `overwrite`. Checks come before any work, `write` after it. A
file is written next to its place and renamed, so that a link or a device is never written through.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from bigbird_ja import storage
from bigbird_ja.storage import paths
from bigbird_ja.storage.ownership import FILES, MANIFEST_NAME, Owned, held_by_other

_REPLACED = re.compile(r"\.replaced-\d+\Z")


def check_output_file(path: str, flag: str, replaces: bool = True) -> None:
    """Refuse a path that a file must not be written to.

    Nothing is changed.

    Args:
        path: path on disk or gs://. Its folder need not exist: `write` creates it.
        flag: parameter that named it, such as "`output`".
        replaces: whether an existing file will be replaced, so that we must own it.

    Raises:
        BadInput: A link, folder, FIFO, socket, device, a file that this program did not write, a
            folder that cannot be written to, a name that cannot be one.
    """
    paths.check_name(path, flag)
    if path.endswith("/"):
        raise paths.refusal(path, flag, "is a folder's name: name a file")
    if not storage.is_remote(path):
        if os.path.islink(path):
            raise paths.refusal(path, flag, "is a symbolic link: name the place that it leads to")
        if os.path.isdir(path):
            raise paths.refusal(path, flag, "is a folder: name a file")
        if os.path.exists(path):
            paths.refuse_special(path, flag, os.stat(path), "name a file")
        _check_parent(path, flag)
    if not replaces or not storage.exists(path):
        return
    owned = Owned.load(storage.directory_of(path))
    if owned is None or storage.base_name(path) not in owned.files:
        reason = "is a file that this program did not make: choose another name, or move it away"
        raise paths.refusal(path, flag, reason)


def check_folder_place(path: str, flag: str) -> None:
    """Refuse a path that is not a folder and can't become one.

    Links to folders are followed.

    Change nothing, request nothing from a bucket, and ignore the folder's content.

    Raises:
        BadInput: A file or something special, a folder that cannot be written to, a name that
            cannot be one.
    """
    paths.check_name(path, flag)
    if storage.is_remote(path):
        return
    if os.path.isdir(path):
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise paths.refusal(
                path, flag, "is a folder that cannot be written to: check permissions"
            )
    elif os.path.exists(path):
        raise paths.refusal(
            path, flag, "cannot be a folder, as a file of that name exists: name a folder"
        )
    elif os.path.islink(path.rstrip("/")):
        raise paths.refusal(path, flag, "is a symbolic link that leads nowhere: remove it")
    else:
        _check_parent(path, flag)


def check_folder(
    path: str, flag: str, kind: str, advice: str, apart: Collection[str] = ()
) -> Owned | None:
    """Refuse a folder that contains files that this program did not make.

    Nothing is changed.

    Args:
        path: folder, on disk or gs://.
        flag: parameter that named it.
        kind: kind of the folder to be made, as for `Owned.create`.
        advice: advice to the user, at the end of the message.
        apart: names in the folder that are ignored.

    Returns:
        The manifest of the folder if it exists and is of this kind. None if the folder is missing,
        or contains only single files that we made.

    Raises:
        BadInput: As in `check_folder_place`, or the folder contains other files.
    """
    check_folder_place(path, flag)
    owned = Owned.load(path)
    if owned is not None and owned.kind == kind:
        return owned
    if owned is not None and owned.kind != FILES:
        raise paths.refusal(path, flag, f"{held_by_other(owned)}: {advice}")
    ours = {MANIFEST_NAME, *owned.files} if owned else set()
    foreign = [name for name in _names(path) if _REPLACED.sub("", name) not in {*ours, *apart}]
    if foreign:
        such = f"files that this program did not make, such as {foreign[0][:80]}"
        raise paths.refusal(path, flag, f"contains {such}: {advice}")
    return None


def _names(path: str) -> list[str]:
    """List the files and folders directly in a folder, without unfinished files."""
    names: Iterable[str] = ()
    if storage.is_remote(path):
        names = {name.partition("/")[0] for name in storage.list_tree(path)}
    else:
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(path)
    return sorted(name for name in names if not name.startswith(storage.TEMPORARY_PREFIX))


def refuse_overlap(inputs: Mapping[str, str | None], output: str, flag: str) -> None:
    """Refuse an output that is an input, contains one, or lies in an input folder.

    Args:
        inputs: path by flag; None if the flag was not given.
        output: path of the output.
        flag: parameter that named it.

    Raises:
        BadInput: The output overlaps with an input.
    """
    one = f"{_real(output)}/"
    for in_flag, source in inputs.items():
        other = f"{_real(source)}/" if source else ""
        if other and (one.startswith(other) or other.startswith(one)):
            reason = f"overlaps with {in_flag} {source}: choose another place"
            raise paths.refusal(output, flag, reason)


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[None]:
    """Create a folder and its parents, and remove them if the block writes nothing.

    A new manifest is removed, too. The block may fail because the disk is full, for example.
    """
    if storage.is_remote(path):
        yield
        return
    made, folder = [], os.path.abspath(path)
    while not os.path.isdir(folder):
        made.append(folder)
        folder = os.path.dirname(folder)
    mark = os.path.join(path, MANIFEST_NAME)
    is_marked = os.path.lexists(mark)
    storage.make_directory(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if not is_marked and os.listdir(path) == [MANIFEST_NAME]:
                os.unlink(mark)
            for folder in made:
                os.rmdir(folder)  # It fails if the folder is not empty.


def write(path: str, data: bytes) -> None:
    """Write a file whose path was checked, and create its folder.

    The file appears whole or not at all.

    Raises:
        BadInput: Another file has appeared there meanwhile.
    """
    folder = storage.directory_of(path)
    with new_folder(folder):
        Owned.create(folder, FILES).write(storage.base_name(path), data)


def _check_parent(path: str, flag: str) -> None:
    """Refuse a local path whose nearest existing folder accepts no new entry."""
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent):
        raise paths.refusal(
            path, flag, f"is below {parent}, which is not a folder: choose another place"
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise paths.refusal(
            path, flag, f"is below {parent}, which cannot be written to: check permissions"
        )


def _real(path: str) -> str:
    """Return the real path, without a slash at its end."""
    if storage.is_remote(path):
        return path.rstrip("/")
    return os.path.realpath(os.path.expanduser(path)).rstrip("/")
