"""Ownership manifest of a folder, `.bigbird-ja.json`, which lists the files that we made.

We own a folder with a manifest, by the rule of docs/ownership.md. A file is listed before it is
written, so that the manifest also covers the files of a killed process. Unlisted files are never
touched, and a listed one that would be replaced is kept as `NAME.replaced-N`. Files on which others
rely, such as the metadata of a checkpoint, are listed with size and checksum.

    owned = check_folder(path, "`output_dir`", "data set", "choose another folder")
    owned = owned or Owned.create(path, "data set")
    owned.write("manifest.json", data)
    owned.note({name: None})  # a file that the caller moves into place
    storage.take(local, storage.join(path, name))
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO, Annotated

import msgspec

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.storage import decode

MANIFEST_NAME = ".bigbird-ja.json"
# Kind of a user's folder that also contains single files that we made.
FILES = "files"
_MAX_BYTES = 64 << 20
_ADVICE = "restore it from a copy, or remove it, after which we own nothing in the folder"


@dataclass(frozen=True)
class FileVersion:
    """Version of a file: its size and CRC-32C (base64, as Cloud Storage states it)."""

    size: decode.Count
    crc32c: str

    @classmethod
    def of(cls, data: bytes) -> FileVersion:
        """Return the version with this content."""
        return cls(len(data), storage.crc32c_text(data))

    @classmethod
    def of_file(cls, path: str) -> FileVersion:
        """Return the version of a file, which is read in chunks if it is on a disk."""
        info = storage.stat(path)
        return cls(info.size, info.crc32c or storage.crc32c_of_file(path)[0])


# Version 0.1.0 also stated the previous one. None accepts any content of the file.
Versions = tuple[FileVersion, ...] | None


@dataclass(frozen=True)
class _Manifest:
    """Content of an ownership manifest."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
    kind: str
    files: dict[str, Versions]
    format_version: str = ""
    # Suffix of the folder to which `set_aside` moves files.
    moving_to: Annotated[str, msgspec.Meta(pattern=r"^(\.replaced-\d+)?\Z")] = ""


class Owned:
    """Reader and writer of a folder's ownership manifest.

    Threads and processes may share one: each change is a compare-and-swap.

    Attributes:
        path: the folder, on disk or gs://.
    """

    def __init__(self, path: str, manifest: _Manifest, token: str) -> None:
        self.path, self._manifest, self._token = path, manifest, token
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: str) -> Owned | None:
        """Read the manifest of a folder, or return None if there is none.

        Raises:
            BadInput: The manifest is damaged, too large, or of another version.
        """
        where = storage.join(path, MANIFEST_NAME)
        try:
            data, token = storage.read_with_token(where, _MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        manifest = decode.decode_versioned(data, _Manifest, where, _ADVICE)
        for name in manifest.files:
            storage.check_inside(name)
        return cls(path, manifest, token)

    @classmethod
    def open(cls, path: str) -> Owned:
        """Read the manifest of a folder that must have one.

        Raises:
            StorageError: The manifest was removed.
        """
        if (owned := cls.load(path)) is None:
            raise StorageError(
                f"{storage.join(path, MANIFEST_NAME)}: removed by another process, so this one"
                " stopped"
            )
        return owned

    @classmethod
    def create(cls, path: str, kind: str, new_id: str = "") -> Owned:
        """Write the manifest of a folder, which must exist on disk, or load the one that it has.

        Call `check_folder` first: other files in the folder are ignored here.

        Args:
            path: the folder.
            kind: kind of its content for messages, such as "run" or "data set". It is `FILES` if
                we will make only some of its files.
            new_id: 16 hexadecimal digits for a new manifest, random by default.

        Raises:
            BadInput: The folder has a manifest of another kind.
        """
        while (owned := cls.load(path)) is None:
            new = _Manifest(new_id or secrets.token_hex(8), kind, {}, decode.FORMAT_VERSION)
            storage.create_exclusive(storage.join(path, MANIFEST_NAME), msgspec.json.encode(new))
        if kind not in (owned.kind, FILES):
            if owned.kind != FILES:
                raise BadInput(f"{path} {held_by_other(owned)}: choose another folder")
            owned._change(kind=kind)
        return owned

    @property
    def id(self) -> str:
        """Identity of the folder: 16 random hexadecimal digits."""
        return self._manifest.id

    @property
    def place_id(self) -> str:
        """Identity of the folder in its place, which a copy with the same `id` does not share."""
        place = self.path if storage.is_remote(self.path) else os.path.realpath(self.path)
        return hashlib.sha256(os.fsencode(f"{self.id} {place}")).hexdigest()[:16]

    @property
    def kind(self) -> str:
        """Kind of the folder."""
        return self._manifest.kind

    @property
    def files(self) -> Collection[str]:
        """Names of our files, relative to the folder."""
        return self._manifest.files.keys()

    def is_current(self) -> bool:
        """Check that no other process has changed the manifest since it was read or written."""
        with contextlib.suppress(FileNotFoundError):
            return storage.stat(storage.join(self.path, MANIFEST_NAME)).token == self._token
        return False

    def states(self, name: str, made: FileVersion) -> bool:
        """Return whether the manifest states this version of a file."""
        return made in (self._manifest.files.get(name) or ())

    def note(self, files: Mapping[str, FileVersion | None]) -> None:
        """List files that are about to appear, in one write of the manifest.

        Args:
            files: version by name. None accepts any content.

        Raises:
            BadInput: A file that we did not make has one of the names.
            StorageError: The manifest was removed or replaced by another process.
        """
        self.refuse_foreign(files)
        self._change(added=files)

    def refuse_foreign(self, names: Iterable[str]) -> None:
        """Check that none of the names belongs to a file that we did not make.

        Nothing is changed.

        Raises:
            BadInput: One of them does.
        """
        for name in sorted(self._existing(set(names) - set(self.files))):
            raise BadInput(
                f"{storage.join(self.path, name)} is not a file that this program made here: move"
                " it away, then rerun the same command"
            )

    def adopt(self, files: Mapping[str, FileVersion | None]) -> None:
        """List existing files that the caller has proved to be ours.

        Raises:
            StorageError: As in `note`.
        """
        self._change(added={n: made for n, made in files.items() if n not in self.files})

    def forget(self, names: Collection[str]) -> None:
        """Remove files from the list, so that they are the user's from now on.

        Raises:
            StorageError: As in `note`.
        """
        self._change(gone=names)

    def write(self, name: str, data: bytes) -> None:
        """List and write a file, keeping another content as `NAME.replaced-N`.

        Raises:
            BadInput, StorageError: As in `note`.
        """
        with self.writing(name) as file:
            file.write(data)

    def overwrite(self, name: str, data: bytes) -> None:
        """List and write a file, create its folder, and keep no earlier content of ours.

        Raises:
            BadInput, StorageError: As in `note`.
        """
        self.note({name: None})
        path = storage.join(self.path, name)
        storage.make_directory(storage.directory_of(path))
        storage.write_bytes(path, data)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file that becomes NAME when the block ends, as `write` does."""
        path = storage.join(self.path, name)
        self.refuse_foreign([name])
        with storage.writing(path) as file:
            yield file
            file.flush()
            self.note({name: None})
            with contextlib.suppress(FileNotFoundError):
                if FileVersion.of_file(path) != FileVersion.of_file(file.name):
                    storage.place_of(path).copy(path, storage.free_name(path))

    def remove(self, names: Iterable[str]) -> list[str]:
        """Delete our files, several at a time, and return the names of the listed ones.

        For temporary files and old checkpoints only.
        """
        ours = [name for name in names if name in self.files]
        storage.delete_many(storage.join(self.path, name) for name in ours)
        self.forget(ours)
        return ours

    @property
    def moving_to(self) -> str:
        """Folder of a `set_aside` that a kill has interrupted, or ""."""
        suffix = self._manifest.moving_to
        return suffix and self.path.rstrip("/") + suffix

    def set_aside(self, names: Iterable[str], is_whole: bool = False) -> str:
        """Move our files to the folder PATH.replaced-N, with a manifest, and return that folder.

        The folder is noted before the first file moves, so that the next call completes a move that
        a kill has interrupted.

        Args:
            names: names of files in the order of moving. The first is moved before all others.
            is_whole: whether files that we did not make move, too.
        """
        names = [name for name in names if is_whole or name in self.files]
        existing = self._existing(set(names))
        first, *others = [name for name in names if name in existing] or [""]
        if not (first or self.moving_to):
            return ""
        target = self.moving_to or storage.free_name(self.path)
        self._change(moving_to=target.removeprefix(self.path.rstrip("/")))
        parents = {storage.directory_of(storage.join(target, name)) for name in existing}
        for folder in {target, *parents}:
            storage.make_directory(folder)
        before = Owned.load(target)
        moved = dict(before._manifest.files) if before else {}
        moved |= {n: v for n, v in self._manifest.files.items() if is_whole or n in existing}
        aside = replace(self._manifest, files=moved, moving_to="")
        storage.write_bytes(storage.join(target, MANIFEST_NAME), msgspec.json.encode(aside))
        storage.rename_all([first] if first else [], self.path, target)
        storage.rename_all(others, self.path, target)
        self._change(gone=moved, moving_to="")
        return target

    def move_back(self, path: str) -> None:
        """Undo a `set_aside` of a whole folder, from this manifest's place to a free `path`.

        If a kill interrupts this, the next `set_aside` there moves everything aside again.
        """
        suffix = self.path.removeprefix(path.rstrip("/"))
        old = msgspec.json.encode(replace(self._manifest, moving_to=suffix))
        storage.write_bytes(storage.join(path, MANIFEST_NAME), old)
        names = [name for name in storage.list_tree(self.path) if name != MANIFEST_NAME]
        storage.rename_all(names, self.path, path)
        storage.delete(storage.join(self.path, MANIFEST_NAME))
        Owned.open(path)._change(moving_to="")

    def _existing(self, names: Collection[str]) -> set[str]:
        """Return the names that exist, including links that lead nowhere."""
        if not storage.is_remote(self.path):
            return {n for n in names if os.path.lexists(storage.join(self.path, n))}
        if len(names) <= 1:
            return {n for n in names if storage.exists(storage.join(self.path, n))}
        return set(names) & set(storage.list_tree(self.path))

    def _change(
        self,
        gone: Collection[str] = (),
        added: Mapping[str, FileVersion | None] | None = None,
        **fields: str,
    ) -> None:
        """Change the list, or other fields of the manifest, by compare-and-swap."""
        where = storage.join(self.path, MANIFEST_NAME)
        with self._lock:
            while True:
                files = {name: v for name, v in self._manifest.files.items() if name not in gone}
                new_files = (added or {}).items()
                files.update({n: None if made is None else (made,) for n, made in new_files})
                by_name = dict(sorted(files.items()))  # Equal content gives equal bytes.
                new = replace(self._manifest, files=by_name, **fields)
                if new == self._manifest:
                    return
                token = storage.replace_if(where, msgspec.json.encode(new), self._token)
                if token is not None:
                    self._manifest, self._token = new, token
                    return
                fresh = Owned.load(self.path)
                if fresh is None or fresh.id != self.id:
                    raise StorageError(
                        f"{where}: removed or replaced by another process, so this one stopped"
                    )
                self._manifest, self._token = fresh._manifest, fresh._token


def held_by_other(owned: Owned) -> str:
    """Return the reason for refusing a folder that belongs to another command."""
    return f"contains what another command of bigbird-ja made ({owned.kind})"
