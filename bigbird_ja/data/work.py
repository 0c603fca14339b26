"""Unfinished work of `make-data`: where it lies, whose it is, how it becomes a data set.

`OUTPUT_DIR/.make-data` holds `settings.json`, by which it is recognised; `owned.json`, which names
the shards in OUTPUT_DIR that are ours; and `ready/`, where shards wait until all are finished.
Packed blocks and notes on finished shards lie in a folder of this machine: the same one, or one in
the user's cache for an output on gs://.

Nothing is removed but what is named here, in folders whose `settings.json` shows that this program
made them. A data set that is replaced stays whole until the new one is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.manifest import DataSpec
from bigbird_ja.data.shards import MadeShard
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode
from bigbird_ja.storage.lease import Lease, held
from bigbird_ja.text.tokenizer import Tokenizer

NAME = ".make-data"
LOCK_NAME = ".make-data.lock"
_SETTINGS, _OWNED = "settings.json", "owned.json"
# The files of ours in each part of a work folder.
_OURS = {
    "": (_SETTINGS, _OWNED),
    "blocks": (".block",),
    "shards": (".json", ".tfrecord"),  # notes; shards on their way to a bucket
    "ready": (".tfrecord",),
}


def exclusive(directory: str) -> AbstractContextManager[Lease]:
    """Holds the directory's lease; `check` it before the manifest is written.

    Raises:
        BadInput: another process holds it.
    """
    busy = (
        f"{directory}: {{owner}} is making data there: wait for it to end, or choose another"
        " --output_dir"
    )
    return held(Lease(storage.join(directory, LOCK_NAME), busy, log))


class Work:
    """The folders of the unfinished work for one output.

    Attributes:
        local: folder of blocks and notes, on this machine.
        ready: where finished shards wait, beside the output.
    """

    def __init__(self, output_dir: str) -> None:
        self._output = output_dir
        self._beside = storage.join(output_dir, NAME)
        self.ready = storage.join(self._beside, "ready")
        self.local = self._beside
        if storage.is_remote(output_dir):
            cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
            digest = hashlib.sha256(output_dir.rstrip("/").encode()).hexdigest()
            self.local = os.path.join(cache, "bigbird-ja", f"make-data-{digest[:16]}")

    def begun(self) -> DataSpec | None:
        """The spec of the work that an earlier run left, or None.

        Raises:
            BadInput: something else stands where work is to lie.
        """
        local = _spec_in(self.local)
        return _spec_in(self._beside) or local  # the one beside the output is decisive

    def open(self, spec: DataSpec, owned: Collection[str]) -> None:
        """Creates the folders, or uses those that are there.

        Args:
            spec: what the shards depend on.
            owned: shards of ours in the output, which stay until they are replaced.
        """
        if _spec_in(self.local) not in (None, spec):
            _remove_ours(self.local)  # stale: what is beside the output is of other settings
        settings = {"format_version": decode.FORMAT_VERSION, "spec": vars(spec)}
        text = json.dumps(settings, ensure_ascii=False, indent=1)
        for folder in dict.fromkeys((self._beside, self.local)):
            storage.make_directory(folder)
            if folder == self._beside:
                self._note_owned(owned)
            storage.write_text(storage.join(folder, _SETTINGS), text)
        for folder in (
            *(os.path.join(self.local, part) for part in ("blocks", "shards")),
            self.ready,
        ):
            storage.make_directory(folder)
            storage.clean_temporary(folder)

    def remove(self) -> None:
        """Removes the files of this program from the folders, and the folders left empty."""
        for folder in dict.fromkeys((self.local, self._beside)):
            if _spec_in(folder) is not None:
                _remove_ours(folder)

    # --- blocks ---

    def block(self, name: str) -> str:
        """Path of a packed block."""
        return os.path.join(self.local, "blocks", name)

    # --- shards ---

    def scratch(self, name: str) -> str:
        """Path of a shard on its way to a bucket."""
        return os.path.join(self.local, "shards", name)

    def note_shard(self, made: MadeShard) -> None:
        """Notes that a shard is finished."""
        values = {"shard": vars(made.shard), "predictions": made.predictions}
        storage.write_text(self.scratch(f"{made.shard.name}.json"), json.dumps(values))

    def finished_shards(self, names: Collection[str]) -> dict[str, MadeShard]:
        """Those of the shards `names` that are noted and exist, ready or in place."""
        listings = [storage.list_stats(self._output), storage.list_stats(self.ready)]
        finished = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError, BadInput):
                made = decode.read_json(self.scratch(f"{name}.json"), MadeShard)
                sizes = [listing[name].size for listing in listings if name in listing]
                if made.shard.name == name and made.shard.bytes in sizes:
                    finished[name] = made
        return finished

    # --- what is ours in the output ---

    def owned(self) -> set[str]:
        """The shards of ours in the output, as far as this work knows."""
        try:
            path = storage.join(self._beside, _OWNED)
            return set(decode.read_json(path, list[str], "remove it"))
        except FileNotFoundError:
            return set()

    def _note_owned(self, names: Collection[str]) -> None:
        path = storage.join(self._beside, _OWNED)
        storage.write_text(path, json.dumps(sorted(names)))

    def put_in_place(self, names: Collection[str]) -> None:
        """Moves the shards `names` from `ready` to the output, replacing shards of ours.

        From here on the output holds no finished data set until a manifest is written. After a
        kill at any instant the same command can continue.
        """
        owned = self.owned() | set(names)
        self._note_owned(owned)
        storage.delete(storage.join(self._output, manifest_lib.FILE_NAME))
        ready = set(storage.list_files(self.ready))
        moves = [
            partial(storage.rename, storage.join(self.ready, n), storage.join(self._output, n))
            for n in names
            if n in ready
        ]
        storage.run_all(moves)
        stale = (owned & set(storage.list_files(self._output))) - set(names)
        storage.delete_many(storage.join(self._output, storage.check_inside(n)) for n in stale)


def _spec_in(folder: str) -> DataSpec | None:
    """The spec in `settings.json` of a work folder; None where the folder is missing or empty.

    Raises:
        BadInput: it is not a folder of ours, or of another version.
    """
    if not storage.is_remote(folder) and (
        os.path.islink(folder) or (os.path.exists(folder) and not os.path.isdir(folder))
    ):
        raise BadInput(f"{folder}: not a folder that make-data made: move it away")
    path, advice = storage.join(folder, _SETTINGS), "remove the folder"
    try:
        settings = decode.read_json(path, dict[str, Any], advice)
    except (FileNotFoundError, NotADirectoryError):
        if storage.list_tree(folder):
            raise BadInput(
                f"{folder}: holds files and no {_SETTINGS} of make-data: move it away"
            ) from None
        return None
    decode.check_format(str(settings.get("format_version", "")), path, advice)
    return decode.convert(settings.get("spec"), DataSpec, path, advice)


def _remove_ours(folder: str) -> None:
    """Removes our files; `settings.json` last, so that after a kill the folder is still ours."""
    for part, endings in reversed(_OURS.items()):
        directory = storage.join(folder, part) if part else folder
        if not storage.is_remote(directory) and os.path.islink(directory):
            continue
        storage.clean_temporary(directory)
        names = [name for name in storage.list_files(directory) if name.endswith(endings)]
        storage.delete_many(storage.join(directory, name) for name in names if name != _SETTINGS)
        if not part:
            storage.delete(storage.join(directory, _SETTINGS))
        if not storage.is_remote(directory):
            with contextlib.suppress(OSError):  # it holds other files
                os.rmdir(directory)


@dataclass(frozen=True)
class _ShardName:
    name: str


@dataclass(frozen=True)
class _Claims:
    """The part of a manifest, of this format or another, that says who made which shards."""

    created_by: str
    train_shards: list[_ShardName]
    eval_shards: list[_ShardName]


def shards_to_replace(data_dir: str) -> set[str]:
    """The names of the shards that `make-data` wrote to a directory with a manifest.

    Raises:
        BadInput: the data set there is not one that `make-data` made.
    """
    path = storage.join(data_dir, manifest_lib.FILE_NAME)
    advice = "nothing is replaced that make-data did not make: choose another --output_dir"
    claims = decode.read_json(path, _Claims, advice)
    if not claims.created_by.startswith("bigbird-ja"):
        raise BadInput(f"{path}: the records were made elsewhere: {advice}")
    return {storage.check_inside(s.name) for s in claims.train_shards + claims.eval_shards}


def refuse_foreign(
    output_dir: str, listing: Collection[str], owned: Collection[str], tokenizer: Tokenizer
) -> None:
    """Refuses an output that holds a file of another make where ours would be.

    Args:
        output_dir: of `make-data`.
        listing: the names in it.
        owned: shards of ours in it.
        tokenizer: whose model will be written there.

    Raises:
        BadInput: naming the file.
    """
    foreign = [n for n in listing if n.endswith(".tfrecord") and n not in owned]
    name = manifest_lib.TOKENIZER_NAME
    if not owned and name in listing:
        data = storage.read_bytes(storage.join(output_dir, name))
        foreign += [name] if data != tokenizer.model_bytes else []
    if foreign:
        raise BadInput(
            f"{output_dir} holds {foreign[0]}, and nothing shows that make-data made it:"
            " choose another --output_dir, or move it away yourself"
        )
