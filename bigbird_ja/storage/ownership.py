"""Ownership manifest of a folder, `.bigbird-ja.json`: the list of files that this program wrote.

docs/ownership.md states the rules. A file is listed before it is written, so that the manifest also
lists the files of a killed process. Files that are not listed belong to the user, and are never
changed. If a listed file is replaced, its old content is kept as `NAME.replaced-N`. Some files,
such as the metadata of a checkpoint, are listed with size and checksum.

    owned = check_folder(path, "`output_dir`", "data set", "choose another folder")
    owned = owned or Owned.create(path, "data set")
    owned.write("manifest.json", data)
    owned.note({name: None})  # before the file is moved to the folder
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
# Kind of a user's folder that contains single files of this program.
FILES = "files"
_MAX_BYTES = 64 << 20
_ADVICE = "restore it from a copy, or remove it, so that all files in the folder count as yours"


@dataclass(frozen=True)
class FileVersion:
    """Size and CRC-32C of a file, which identify one version of its content.

    The CRC-32C is in base64, as in Cloud Storage.
    """

    size: decode.Count
    crc32c: str

    @classmethod
    def from_bytes(cls, data: bytes) -> FileVersion:
        """Compute the size and checksum of a file with these bytes."""
        return cls(len(data), storage.compute_crc32c(data))

    @classmethod
    def from_file(cls, path: str) -> FileVersion:
        """Return the size and checksum of a file. On disk, the file is read to compute them."""
        info = storage.stat(path)
        return cls(info.size, info.crc32c or storage.compute_file_crc32c(path)[0])


# Allowed sizes and checksums of a listed file, or None for any content. Version 0.1.0 of this
# program listed two for some files.
Versions = tuple[FileVersion, ...] | None


@dataclass(frozen=True)
class _Manifest:
    """Content of an ownership manifest.

    Attributes:
        id: Id of the folder.
        kind: Kind of the folder's content.
        files: Allowed sizes and checksums of each file of this program, by name.
        format_version: Version of the manifest's format.
        moving_to: Suffix of the path to which `set_aside` is moving files, such as ".replaced-1",
            or "".
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
    kind: str
    files: dict[str, Versions]
    format_version: str = ""
    moving_to: Annotated[str, msgspec.Meta(pattern=r"^(\.replaced-\d+)?\Z")] = ""


class Owned:
    """Reader and writer of a folder's ownership manifest.

    Threads and processes may change a manifest concurrently: each change is a compare-and-swap.

    Attributes:
        path: Path of the folder, on disk or gs://.
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
        """Read the manifest of a folder, which must contain one.

        Raises:
            StorageError: The manifest was removed.
        """
        if (owned := cls.load(path)) is None:
            raise StorageError(
                f"{storage.join(path, MANIFEST_NAME)} was removed by another process, so this"
                " process stops"
            )
        return owned

    @classmethod
    def create(cls, path: str, kind: str, new_id: str = "") -> Owned:
        """Load the manifest of a folder, or create one.

        A manifest of the kind `FILES` becomes one of the kind `kind`. This method does not
        check the other files in the folder. `check_folder` checks them.

        Args:
            path: folder, which must exist on disk.
            kind: kind of the folder's content for messages, such as "run" or "data set", or
                `FILES` for single files in a user's folder.
            new_id: id of a new manifest, 16 hexadecimal digits, random by default.

        Raises:
            BadInput: The manifest is of another kind, and neither of the two kinds is `FILES`.
        """
        while (owned := cls.load(path)) is None:
            new = _Manifest(new_id or secrets.token_hex(8), kind, {}, decode.FORMAT_VERSION)
            storage.create_exclusive(storage.join(path, MANIFEST_NAME), msgspec.json.encode(new))
        if kind not in (owned.kind, FILES):
            if owned.kind != FILES:
                raise BadInput(
                    f"{path} contains the output of another command of bigbird-ja ({owned.kind}):"
                    " choose another folder"
                )
            owned._change(kind=kind)
        return owned

    @property
    def id(self) -> str:
        """Id of the folder: 16 hexadecimal digits, random or chosen by `create`'s caller."""
        return self._manifest.id

    @property
    def place_id(self) -> str:
        """Hash of the folder's id and path.

        A copy of the folder has the same `id`, but another `place_id`.
        """
        place = self.path if storage.is_remote(self.path) else os.path.realpath(self.path)
        return hashlib.sha256(os.fsencode(f"{self.id} {place}")).hexdigest()[:16]

    @property
    def kind(self) -> str:
        """Kind of the folder's content, such as "run"."""
        return self._manifest.kind

    @property
    def files(self) -> Collection[str]:
        """Names of this program's files, relative to the folder."""
        return self._manifest.files.keys()

    def is_current(self) -> bool:
        """Return whether the manifest is unchanged since this object read or wrote it."""
        with contextlib.suppress(FileNotFoundError):
            return storage.stat(storage.join(self.path, MANIFEST_NAME)).token == self._token
        return False

    def has_version(self, name: str, made: FileVersion) -> bool:
        """Return whether the manifest lists the file `name` with this size and checksum."""
        return made in (self._manifest.files.get(name) or ())

    def note(self, files: Mapping[str, FileVersion | None]) -> None:
        """Add files to the manifest before they are written.

        Args:
            files: size and checksum by name, or None for any content.

        Raises:
            BadInput: A file of the user has one of the names.
            StorageError: The manifest was removed or replaced by another process.
        """
        self.refuse_foreign(files)
        self._change(added=files)

    def refuse_foreign(self, names: Iterable[str]) -> None:
        """Check that no file of the user has one of the names.

        Raises:
            BadInput: A file of the user has one of the names.
        """
        for name in sorted(self._find_existing(set(names) - set(self.files))):
            raise BadInput(
                f"{storage.join(self.path, name)} was not created by bigbird-ja: move it away, then"
                " rerun the same command"
            )

    def adopt(self, files: Mapping[str, FileVersion | None]) -> None:
        """Add existing files to the manifest. The caller has verified that this program wrote them.

        Raises:
            StorageError: As in `note`.
        """
        self._change(added={n: made for n, made in files.items() if n not in self.files})

    def forget(self, names: Collection[str]) -> None:
        """Remove files from the manifest, so that they belong to the user.

        Raises:
            StorageError: As in `note`.
        """
        self._change(gone=names)

    def write(self, name: str, data: bytes) -> None:
        """Add a file to the manifest and write it. An old version is kept as `NAME.replaced-N`.

        Raises:
            BadInput, StorageError: As in `note`.
        """
        with self.writing(name) as file:
            file.write(data)

    def overwrite(self, name: str, data: bytes) -> None:
        """Add a file to the manifest and write it. An old version is not kept.

        If the file's folder does not exist, it is created.

        Raises:
            BadInput, StorageError: As in `note`.
        """
        self.note({name: None})
        path = storage.join(self.path, name)
        storage.make_directory(storage.get_directory(path))
        storage.write_bytes(path, data)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Context manager: open a file that becomes `name` on exit, and add it to the manifest.

        An old version is kept as `NAME.replaced-N`.
        """
        path = storage.join(self.path, name)
        self.refuse_foreign([name])
        with storage.writing(path) as file:
            yield file
            file.flush()
            self.note({name: None})
            with contextlib.suppress(FileNotFoundError):
                if FileVersion.from_file(path) != FileVersion.from_file(file.name):
                    storage.find_place(path).copy(path, storage.find_free_name(path))

    def remove(self, names: Iterable[str]) -> list[str]:
        """Delete files in parallel, and return their names.

        Names that the manifest does not list are skipped. Callers may delete only temporary files,
        old checkpoints, and unfinished work of a killed command.
        """
        ours = [name for name in names if name in self.files]
        storage.delete_many(storage.join(self.path, name) for name in ours)
        self.forget(ours)
        return ours

    @property
    def moving_to(self) -> str:
        """Target folder of a `set_aside` that was interrupted by a kill, or ""."""
        suffix = self._manifest.moving_to
        return suffix and self.path.rstrip("/") + suffix

    def set_aside(self, names: Iterable[str], is_whole: bool = False) -> str:
        """Move this program's files to the folder PATH.replaced-N, and return its path.

        The manifest stores the new path before the first file moves, so that after a kill the next
        call completes the move.

        Args:
            names: names of files. The first one is moved before all others.
            is_whole: whether to move files of the user, too.

        Returns:
            The path of the folder, or "" if there are no such files.
        """
        names = [name for name in names if is_whole or name in self.files]
        existing = self._find_existing(set(names))
        first, *others = [name for name in names if name in existing] or [""]
        if not (first or self.moving_to):
            return ""
        target = self.moving_to or storage.find_free_name(self.path)
        self._change(moving_to=target.removeprefix(self.path.rstrip("/")))
        parents = {storage.get_directory(storage.join(target, name)) for name in existing}
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
        """Undo a `set_aside` of a whole folder: move this folder to `path`, which must be empty.

        After a kill, the next `set_aside` of `path` moves the files to this folder again.
        """
        suffix = self.path.removeprefix(path.rstrip("/"))
        old = msgspec.json.encode(replace(self._manifest, moving_to=suffix))
        storage.write_bytes(storage.join(path, MANIFEST_NAME), old)
        names = [name for name in storage.list_tree(self.path) if name != MANIFEST_NAME]
        storage.rename_all(names, self.path, path)
        storage.delete(storage.join(self.path, MANIFEST_NAME))
        Owned.open(path)._change(moving_to="")

    def _find_existing(self, names: Collection[str]) -> set[str]:
        """Return the names that exist, including those of broken links."""
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
        """Change the list of files, or other fields, of the manifest by a compare-and-swap."""
        where = storage.join(self.path, MANIFEST_NAME)
        with self._lock:
            while True:
                files = {name: v for name, v in self._manifest.files.items() if name not in gone}
                new_files = (added or {}).items()
                files.update({n: None if made is None else (made,) for n, made in new_files})
                # The names are sorted, so that equal manifests have equal bytes.
                by_name = dict(sorted(files.items()))
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
                        f"{where} was removed or replaced by another process, so this process stops"
                    )
                self._manifest, self._token = fresh._manifest, fresh._token
