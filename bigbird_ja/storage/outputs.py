"""Checks of output paths, which commands call before any work.

A path is accepted if it does not exist, is an empty folder, or belongs to this program according to
an ownership manifest. All other paths are errors, even with `overwrite`.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from bigbird_ja import storage
from bigbird_ja.storage import paths
from bigbird_ja.storage.ownership import FILES, MANIFEST_NAME, Owned

_REPLACED = re.compile(r"\.replaced-\d+\Z")


def check_output_file(path: str, flag: str, replaces: bool = True) -> None:
    """Check that a file may be written to a path, without changing anything.

    Args:
        path: path on disk or gs://. `write` creates a missing folder.
        flag: parameter that contains the path, such as "`output`".
        replaces: whether an existing file will be replaced. If so, this program must own the file.

    Raises:
        BadInput: The path is invalid, its folder is not writable, or the path is a link, a folder,
            a special file, or a file that this program did not write.
    """
    paths.check_name(path, flag)
    if path.endswith("/"):
        raise paths.make_refusal(path, flag, "ends with a slash: name a file")
    if not storage.is_remote(path):
        if os.path.islink(path):
            raise paths.make_refusal(path, flag, "is a symbolic link: name its target")
        if os.path.isdir(path):
            raise paths.make_refusal(path, flag, "is a folder: name a file")
        if os.path.exists(path):
            paths.refuse_special(path, flag, os.stat(path), "name a file")
        _check_parent(path, flag)
    if not replaces or not storage.exists(path):
        return
    owned = Owned.load(storage.get_directory(path))
    if owned is None or storage.get_base_name(path) not in owned.files:
        reason = "was not created by bigbird-ja: choose another name, or move the file away"
        raise paths.make_refusal(path, flag, reason)


def check_folder_place(path: str, flag: str) -> None:
    """Check that a path is a folder or can become one, without changing anything.

    The folder's content is not checked. Links to folders are followed. On a bucket, only the name
    is checked.

    Raises:
        BadInput: The path is a file, is invalid, or is not writable.
    """
    paths.check_name(path, flag)
    if storage.is_remote(path):
        return
    if os.path.isdir(path):
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise paths.make_refusal(
                path, flag, "is a folder that is not writable: check permissions"
            )
    elif os.path.exists(path):
        raise paths.make_refusal(path, flag, "is a file: name a folder")
    elif os.path.islink(path.rstrip("/")):
        raise paths.make_refusal(path, flag, "is a broken symbolic link: remove it")
    else:
        _check_parent(path, flag)


def check_folder(
    path: str, flag: str, kind: str, advice: str, apart: Collection[str] = ()
) -> Owned | None:
    """Check that a folder can be used for an output of this kind, without changing anything.

    Args:
        path: folder, on disk or gs://.
        flag: parameter that contains the path.
        kind: kind of the output folder, as for `Owned.create`.
        advice: advice to the user, at the end of the message.
        apart: names of files and folders that the folder may contain in any case.

    Returns:
        The folder's manifest, if it is of this kind. None if the folder is missing or empty, or
        contains only single files that commands of this program wrote to it. Such a folder has a
        manifest of the kind `ownership.FILES`.

    Raises:
        BadInput: As in `check_folder_place`, or the folder has no manifest of this kind but
            contains files of the user or the output of another command.
    """
    check_folder_place(path, flag)
    owned = Owned.load(path)
    if owned is not None and owned.kind == kind:
        return owned
    if owned is not None and owned.kind != FILES:
        reason = f"contains the output of another command of bigbird-ja ({owned.kind}): {advice}"
        raise paths.make_refusal(path, flag, reason)
    ours = {MANIFEST_NAME, *owned.files} if owned else set()
    foreign = [name for name in _list_names(path) if _REPLACED.sub("", name) not in {*ours, *apart}]
    if foreign:
        such = f"files that were not created by bigbird-ja, such as {foreign[0][:80]}"
        raise paths.make_refusal(path, flag, f"contains {such}: {advice}")
    return None


def _list_names(path: str) -> list[str]:
    """List the files and folders directly in a folder, without temporary files."""
    names: Iterable[str] = ()
    if storage.is_remote(path):
        names = {name.partition("/")[0] for name in storage.list_tree(path)}
    else:
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(path)
    return sorted(name for name in names if not name.startswith(storage.TEMPORARY_PREFIX))


def refuse_overlap(inputs: Mapping[str, str | None], output: str, flag: str) -> None:
    """Check that an output and an input are different paths, and that neither contains the other.

    Args:
        inputs: path by parameter; None if the parameter was not given.
        output: path of the output.
        flag: parameter that contains the output.

    Raises:
        BadInput: The output overlaps with an input.
    """
    one = f"{_resolve(output)}/"
    for in_flag, source in inputs.items():
        other = f"{_resolve(source)}/" if source else ""
        if other and (one.startswith(other) or other.startswith(one)):
            reason = f"overlaps with {in_flag} {source}: choose another path"
            raise paths.make_refusal(output, flag, reason)


@contextlib.contextmanager
def create_folder(path: str) -> Iterator[None]:
    """Context manager: create a missing folder, and remove it if the block writes nothing.

    Missing parents are also created, and removed if they remain empty. A new ownership manifest is
    also removed if the block writes nothing else, for example because the disk is full.
    """
    if storage.is_remote(path):
        yield
        return
    made, folder = [], os.path.abspath(path)
    while not os.path.isdir(folder):
        made.append(folder)
        folder = os.path.dirname(folder)
    manifest = os.path.join(path, MANIFEST_NAME)
    has_manifest = os.path.lexists(manifest)
    storage.make_directory(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if not has_manifest and os.listdir(path) == [MANIFEST_NAME]:
                os.unlink(manifest)
            # This raises OSError for a folder that is not empty.
            for folder in made:
                os.rmdir(folder)


def write(path: str, data: bytes) -> None:
    """Write a file atomically to a path that `check_output_file` accepted, and create its folder.

    Raises:
        BadInput: A file of the user has been created at this path since the check.
    """
    folder = storage.get_directory(path)
    with create_folder(folder):
        Owned.create(folder, FILES).write(storage.get_base_name(path), data)


def _check_parent(path: str, flag: str) -> None:
    """Check that the nearest existing folder of a local path is writable."""
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent):
        raise paths.make_refusal(
            path, flag, f"is below {parent}, which is not a folder: choose another path"
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise paths.make_refusal(
            path, flag, f"is below {parent}, which is not writable: check permissions"
        )


def _resolve(path: str) -> str:
    """Return the absolute path with its links resolved and without a slash at its end."""
    if storage.is_remote(path):
        return path.rstrip("/")
    return os.path.realpath(os.path.expanduser(path)).rstrip("/")
