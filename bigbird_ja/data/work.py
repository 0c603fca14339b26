"""Unfinished work of `make-data`: where it lies, whose it is, how it becomes a data set.

`OUTPUT_DIR/.make-data` holds `settings.json`, by which it is recognised; `owned.json`, which names
the shards in OUTPUT_DIR that are ours; and `ready/`, where shards wait until all are finished. A
folder of this machine holds packed blocks and notes on finished shards: the same one, unless the
output is on gs:// or `--work_dir` is given.

Nothing is removed but what is named here, in folders that say by their `settings.json` that this
program made them. A data set that is replaced stays whole until the new one is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection
from contextlib import AbstractContextManager
from functools import partial

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.shards import MadeShard
from bigbird_ja.data.spec import DataSpec
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode
from bigbird_ja.storage.lease import Lease, held

NAME = ".make-data"
LOCK_NAME = ".make-data.lock"
_SETTINGS, _BLOCKS, _OWNED = "settings.json", "blocks.json", "owned.json"
# What our files in each part of a work folder are called.
_OURS = {
    "": (_SETTINGS, _BLOCKS, _OWNED),
    "blocks": (".block",),
    "shards": (".json", ".tfrecord"),  # notes; shards on their way to a bucket
    "ready": (".tfrecord",),
}


def exclusive(directory: str) -> AbstractContextManager[Lease]:
    """Holds the directory's lease; its `check` is to be asked before the manifest is written.

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

    def __init__(self, output_dir: str, work_dir: str | None) -> None:
        self._output = output_dir
        self._beside = storage.join(output_dir, NAME)
        self.local = _local_folder(output_dir, work_dir)
        self.ready = storage.join(self._beside, "ready")

    def begun(self) -> DataSpec | None:
        """The spec of the work that an earlier run left, or None.

        Raises:
            BadInput: something else stands where work is to lie.
        """
        found = None
        for folder in (self.local, self._beside):  # the one beside the output is decisive
            found = _spec_in(folder) or found
        return found

    def open(self, spec: DataSpec, owned: Collection[str]) -> None:
        """Creates the folders, or takes up those that are there.

        Args:
            spec: what the shards depend on.
            owned: shards in the output that are ours: what stands there until it is replaced.
        """
        if _spec_in(self.local) not in (None, spec):
            _remove_ours(self.local)  # stale: what is beside the output is of other settings
        text = json.dumps(spec.spec_values(), ensure_ascii=False, indent=1)
        for folder in dict.fromkeys((self._beside, self.local)):
            storage.make_directory(folder)
            if folder == self._beside:
                self._note_owned(owned)
            storage.write_text(storage.join(folder, _SETTINGS), text)
        for part in ("blocks", "shards"):
            storage.make_directory(os.path.join(self.local, part))
            storage.clean_temporary(os.path.join(self.local, part))
        storage.make_directory(self.ready)
        storage.clean_temporary(self.ready)

    def remove(self) -> None:
        """Removes what this program put into the folders, and those that are empty then."""
        for folder in dict.fromkeys((self.local, self._beside)):
            if _spec_in(folder) is not None:
                _remove_ours(folder)

    # --- blocks ---

    def block(self, name: str) -> str:
        """Path of a packed block."""
        return os.path.join(self.local, "blocks", name)

    def num_blocks(self) -> dict[str, int] | None:
        """Blocks of each split, once all are packed."""
        with contextlib.suppress(FileNotFoundError, BadInput):
            return decode.read_json(os.path.join(self.local, _BLOCKS), dict[str, decode.Count])
        return None

    def note_blocks(self, numbers: dict[str, int]) -> None:
        """Notes that all blocks are packed."""
        storage.write_text(os.path.join(self.local, _BLOCKS), json.dumps(numbers))

    def forget_blocks(self) -> None:
        """Has the blocks looked through, and packed anew where they are damaged."""
        storage.delete(os.path.join(self.local, _BLOCKS))

    # --- shards ---

    def scratch(self, name: str) -> str:
        """Path of a shard on its way to a bucket."""
        return os.path.join(self.local, "shards", name)

    def note_shard(self, made: MadeShard) -> None:
        """Notes that a shard is finished."""
        values = {"shard": vars(made.shard), "predictions": made.predictions}
        storage.write_text(self.scratch(f"{made.shard.name}.json"), json.dumps(values))

    def finished_shards(self, names: Collection[str]) -> dict[str, MadeShard]:
        """Those of the shards `names` that are noted and there, ready or in their place."""
        there = [storage.list_stats(self._output), storage.list_stats(self.ready)]
        found = {}
        for name in names:
            made = self._noted(name)
            sizes = [stats[name].size for stats in there if name in stats]
            if made is not None and made.shard.name == name and made.shard.bytes in sizes:
                found[name] = made
        return found

    def _noted(self, name: str) -> MadeShard | None:
        with contextlib.suppress(FileNotFoundError, BadInput):
            return decode.read_json(self.scratch(f"{name}.json"), MadeShard)
        return None

    # --- what is ours in the output ---

    def owned(self) -> set[str]:
        """The shards in the output that are ours, as far as this work knows."""
        found: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            path = storage.join(self._beside, _OWNED)
            found.update(decode.read_json(path, list[str], "remove it"))
        # Earlier versions had no list, but a note on each shard that they had put in its place.
        notes = storage.list_files(os.path.join(self.local, "shards"))
        return found.union(n.removesuffix(".json") for n in notes if n.endswith(".tfrecord.json"))

    def _note_owned(self, names: Collection[str]) -> None:
        path = storage.join(self._beside, _OWNED)
        storage.write_text(path, json.dumps(sorted(names)))

    def put_in_place(self, names: Collection[str]) -> None:
        """Moves the shards `names` from `ready` to the output, in place of the ones that are ours.

        From here on the output holds no finished data set, until a manifest is written. A kill at
        any instant leaves what the same command can continue.
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
        there = set(storage.list_files(self._output))
        gone = (owned & there) - set(names)
        storage.delete_many(storage.join(self._output, storage.check_inside(n)) for n in gone)


def _local_folder(output_dir: str, work_dir: str | None) -> str:
    """A folder of this machine that no other output has."""
    if work_dir is None and not storage.is_remote(output_dir):
        return os.path.join(output_dir, NAME)
    place = output_dir.rstrip("/")
    if not storage.is_remote(place):
        place = os.path.realpath(place)
    name = f"make-data-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
    if work_dir is not None:
        return os.path.join(work_dir, name)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "bigbird-ja", name)


def _spec_in(folder: str) -> DataSpec | None:
    """What `settings.json` of a work folder says; None where the folder is missing or empty.

    Raises:
        BadInput: it is not a folder of ours.
    """
    if not storage.is_remote(folder) and (
        os.path.islink(folder) or (os.path.exists(folder) and not os.path.isdir(folder))
    ):
        raise BadInput(f"{folder}: not a folder that make-data made: move it away")
    try:
        return decode.read_json(storage.join(folder, _SETTINGS), DataSpec, "remove the folder")
    except (FileNotFoundError, NotADirectoryError):
        if storage.list_tree(folder):
            raise BadInput(
                f"{folder}: holds files and no {_SETTINGS} of make-data: move it away"
            ) from None
        return None


def _remove_ours(folder: str) -> None:
    """The marker goes last, so that a kill leaves a folder that is still known as ours."""
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
            with contextlib.suppress(OSError):  # something of another make is in it
                os.rmdir(directory)
