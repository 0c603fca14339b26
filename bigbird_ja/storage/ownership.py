"""Proves what this program wrote in a folder, by a mark that holds an id and checksums.

The mark, `.bigbird-ja.json`, holds a random id, what the folder is, and size and checksum of the
files that we wrote. A file is replaced or removed only while it is one of these; where somebody
else wrote or changed it, the command refuses. A file is noted before it appears under its name, so
that what a kill leaves is still known as ours; until then both the old and the new version are.

Records such as a manifest or a checkpoint's sidecar state size and checksum of further files. Once
a record is written, these leave the mark, which then proves the record alone; `trust` takes them
from it.

    owned = check_folder(path, "--output_dir", "data set", "choose another folder")
    owned = owned or Owned.create(path, "data set")
    owned.write("manifest.json", data)       # notes it, then writes it
    owned.note({name: Made.of_file(local)})  # for a file that the caller moves into place
    storage.take(local, storage.join(path, name))
    changed = owned.remove(["train-00000-of-00001.tfrecord"])
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Annotated

import msgspec

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage import decode

MARK = ".bigbird-ja.json"
FILES = "files"  # the kind of a folder of somebody else's in which some files are ours
_MOST_BYTES = 64 << 20  # of a mark; an entry has about a hundred
_ADVICE = "restore it from a copy, or remove it: then nothing in the folder counts as ours"


@dataclass(frozen=True)
class Made:
    """Identifies a version of a file by size and CRC-32C (base64, as Cloud Storage states it)."""

    size: decode.Count
    crc32c: str

    @classmethod
    def of(cls, data: bytes) -> Made:
        """Returns the version with this content."""
        return cls(len(data), storage.crc32c_text(data))

    @classmethod
    def of_file(cls, path: str) -> Made:
        """Returns the version in a local file, which is read in chunks."""
        crc32c, size = storage.crc32c_of_file(path)
        return cls(size, crc32c)


# The versions of a file that we wrote. None: it changes all the time, as a log does, and is ours
# whatever it holds.
Versions = tuple[Made, ...] | None


@dataclass(frozen=True)
class _Mark:
    """Declares the content of a mark."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
    kind: str
    files: dict[str, Versions]
    format_version: str = ""
    crc32c: str = ""  # of the rest

    def checksum(self) -> str:
        return storage.crc32c_text(msgspec.json.encode(replace(self, crc32c="")))

    def encoded(self) -> bytes:
        return msgspec.json.encode(replace(self, crc32c=self.checksum()))


class Owned:
    """Reads and changes the mark of a folder.

    Threads and processes may share one: each change is a compare-and-swap.

    Attributes:
        path: the folder, on disk or gs://.
    """

    def __init__(self, path: str, mark: _Mark, token: str) -> None:
        self.path, self._mark, self._token = path, mark, token
        self._recorded: dict[str, Versions] = {}  # stated by records
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: str) -> Owned | None:
        """Reads the mark of a folder; None where there is none.

        Raises:
            BadInput: the mark is damaged, was edited, is too large, or of another version.
        """
        where = storage.join(path, MARK)
        try:
            data, token = storage.read_with_token(where, _MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        mark = decode.decode_versioned(data, _Mark, where, _ADVICE)
        if mark.crc32c != mark.checksum():
            raise BadInput(f"{where}: edited or damaged: {_ADVICE}")
        for name in mark.files:
            storage.check_inside(name)
        return cls(path, mark, token)

    @classmethod
    def create(cls, path: str, kind: str, new_id: str = "") -> Owned:
        """Marks a folder, which must exist on disk; one that is marked already keeps its id.

        Call `check_folder` first: what else is in the folder is not looked at.

        Args:
            path: the folder.
            kind: what it is, for messages: "run", "data set", "export", ...; `FILES` where only
                some files in it will be ours.
            new_id: 16 hexadecimal digits; random ones by default.

        Raises:
            BadInput: the folder is ours and of another kind.
        """
        while (owned := cls.load(path)) is None:
            mark = _Mark(new_id or secrets.token_hex(8), kind, {}, decode.FORMAT_VERSION)
            storage.create_exclusive(storage.join(path, MARK), mark.encoded())
        if kind not in (owned.kind, FILES):
            if owned.kind != FILES:
                raise BadInput(f"{path}: {held_by_other(owned)}: choose another folder")
            owned._change(kind=kind)
        return owned

    @property
    def id(self) -> str:
        """Identifies the folder: 16 random hexadecimal digits, stored when it was marked."""
        return self._mark.id

    @property
    def place_id(self) -> str:
        """Identifies the folder in its place: a copy has the same id, and not this."""
        place = self.path if storage.is_remote(self.path) else os.path.realpath(self.path)
        return hashlib.sha256(os.fsencode(f"{self.id} {place}")).hexdigest()[:16]

    @property
    def kind(self) -> str:
        """Names the kind of the folder."""
        return self._mark.kind

    @property
    def files(self) -> Collection[str]:
        """Lists the files that are known as ours, relative to the folder."""
        return [*{**self._recorded, **self._mark.files}]

    def is_unchanged(self, name: str) -> bool:
        """Checks that the file of this name is one that we wrote, by size and checksum."""
        return self._current(name) is not None

    def is_foreign(self, name: str) -> bool:
        """Checks whether something of this name is there that is not what we wrote."""
        return not self.is_unchanged(name) and bool(self._taken([name]))

    def states(self, name: str, made: Made) -> bool:
        """Checks that a version of a file is one that we wrote."""
        return made in (self._versions(name, ()) or ())

    def trust(self, record: str, files: Mapping[str, Made]) -> None:
        """Knows further files as ours, which a record states that is itself unchanged."""
        if self.is_unchanged(record):
            self._recorded.update({name: (made,) for name, made in files.items()})

    def note(
        self,
        files: Mapping[str, Made | None],
        recorded: Iterable[str] = (),
        unrecorded: Iterable[str] = (),
    ) -> None:
        """Notes files that are about to appear, in one write of the mark.

        Args:
            files: name to version; None for one that will change all the time.
            recorded: names that leave the mark, because a record states them by now.
            unrecorded: names that return to the mark, because their record will be removed.

        Raises:
            BadInput: something that is not ours has one of the names.
            StorageError: the mark is gone, or was made anew by another process.
        """
        versions: dict[str, Versions] = {}
        taken = self._taken(files)
        for name, made in files.items():
            if made is None and self._versions(name, ()) is None:
                continue
            current = self._current(name) if name in taken else None
            if current is None and name in taken:
                raise BadInput(
                    f"{storage.join(self.path, name)}: not what this program wrote, or changed"
                    " since: move it away, then run the same command again"
                )
            before = () if current is None or current[0] in (None, made) else (current[0],)
            versions[name] = None if made is None else (*before, made)
        for name in unrecorded:
            if ours := self._versions(name, ()):
                versions.setdefault(name, ours)
        gone = set(recorded) - versions.keys()
        self._recorded.update({n: v for n, v in self._mark.files.items() if n in gone})
        self._change(gone, versions)

    def adopt(self, names: Iterable[str], logs: Iterable[str]) -> None:
        """Takes files as they are for ours, which the caller has proved; logs change all the time.

        Raises:
            StorageError: as of `note`.
        """
        added: dict[str, Versions] = dict.fromkeys(logs)
        for name in names:
            path = storage.join(self.path, name)
            info = storage.stat(path)
            made = Made(info.size, info.crc32c) if info.crc32c else Made.of_file(path)
            added[name] = (made,)
        self._change(added=added)

    def forget(self, names: Iterable[str]) -> None:
        """Takes files off the list: from now on they are the user's.

        Raises:
            StorageError: as of `note`.
        """
        gone = set(names)
        for name in gone & self._recorded.keys():
            del self._recorded[name]
        self._change(gone)

    def write(self, name: str, data: bytes) -> None:
        """Notes and writes a file, whole or not at all.

        Raises:
            BadInput, StorageError: as of `note`.
        """
        self.note({name: Made.of(data)})
        storage.write_bytes(storage.join(self.path, name), data)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a file that becomes NAME when the block ends: `write` for what is large."""
        with storage.writing(storage.join(self.path, name)) as file:
            yield file
            file.flush()
            self.note({name: Made.of_file(file.name)})

    def remove(self, names: Iterable[str]) -> list[str]:
        """Removes files that are what we wrote, several at a time.

        Returns:
            Those that are there and not what we wrote; they are left as they are.
        """
        gone: list[str] = []
        names = list(names)
        storage.run_all([partial(self._remove_one, name, gone) for name in names])
        self.forget(gone)
        return [name for name in names if name not in set(gone)]

    def _remove_one(self, name: str, gone: list[str]) -> None:
        path, current = storage.join(self.path, name), self._current(name)
        if (current and storage.delete_if(path, current[1])) or not self._taken([name]):
            gone.append(name)

    def _versions(self, name: str, unknown: Versions) -> Versions:
        """Returns the versions of a file that are ours."""
        return self._mark.files.get(name, self._recorded.get(name, unknown))

    def _current(self, name: str) -> tuple[Made | None, str] | None:
        """Returns the version of ours that a file is now, and its token, or None."""
        path, versions = storage.join(self.path, name), self._versions(name, ())
        if versions == ():
            return None
        try:
            info = storage.stat(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        if versions is None:
            return None, info.token
        if info.size not in {version.size for version in versions}:
            return None
        made = Made(info.size, info.crc32c) if info.crc32c else Made.of_file(path)
        return (made, info.token) if made in versions else None

    def _taken(self, names: Collection[str]) -> set[str]:
        """Returns those of the names that anything has, a link that leads nowhere included."""
        if not storage.is_remote(self.path):
            return {n for n in names if os.path.lexists(storage.join(self.path, n))}
        if len(names) == 1:
            return {n for n in names if storage.exists(storage.join(self.path, n))}
        return set(names) & set(storage.list_tree(self.path))

    def _change(
        self,
        gone: Collection[str] = (),
        added: Mapping[str, Versions] | None = None,
        kind: str = "",
    ) -> None:
        """Changes the mark's list, or the kind, by compare-and-swap."""
        where = storage.join(self.path, MARK)
        with self._lock:
            while True:
                kept = {name: v for name, v in self._mark.files.items() if name not in gone}
                files = {**kept, **(added or {})}
                new = replace(self._mark, files=files, kind=kind or self.kind)
                if new == self._mark:
                    return
                token = storage.replace_if(where, new.encoded(), self._token)
                if token is not None:
                    self._mark, self._token = new, token
                    return
                fresh = Owned.load(self.path)
                if fresh is None or fresh.id != self.id:
                    raise StorageError(f"{where}: removed or made anew by others: stopped")
                self._mark, self._token = fresh._mark, fresh._token


def held_by_other(owned: Owned) -> str:
    """Words that a folder is another command's, for a refusal."""
    return f"holds what another command of bigbird-ja made ({owned.kind})"
