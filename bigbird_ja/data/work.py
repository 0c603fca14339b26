"""Unfinished work of `make-data`: where it lies, whose it is, how it becomes a data set.

`OUTPUT_DIR/.make-data` holds `settings.json`, by which it is recognised, and `ready/`, where shards
wait until all are finished. Packed blocks and notes on finished shards lie in a folder of this
machine: the same one, or one in the user's cache for an output on gs://.

Nothing is removed from these folders but files of the names below, where `settings.json` shows that
this program made the folder. In OUTPUT_DIR the folder's mark (`storage.ownership`) proves what is
ours. A data set that is replaced stays whole until the new one is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import verify
from bigbird_ja.data.manifest import DataSpec, Shard
from bigbird_ja.data.shards import MadeShard
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode, ownership
from bigbird_ja.storage.lease import Lease, held
from bigbird_ja.storage.ownership import Made, Owned

KIND = "data set"
NAME = ".make-data"
LOCK_NAME = ".make-data.lock"
_SETTINGS = "settings.json"
_SHARD_END = ".tfrecord"
_SHARD = r"(train|eval)-\d{5}-of-\d{5}\.tfrecord"
# The names of our files in each part of a work folder.
_OURS = {
    "": _SETTINGS,
    "blocks": r"(train|eval)-\d{6}\.block",
    "shards": rf"{_SHARD}(\.json)?",  # shards on their way to a bucket; notes
    "ready": _SHARD,
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

    def open(self, spec: DataSpec) -> None:
        """Creates the folders, or uses those that are there."""
        if _spec_in(self.local) not in (None, spec):
            _remove_ours(self.local)  # stale: what is beside the output is of other settings
        settings = {"format_version": decode.FORMAT_VERSION, "spec": vars(spec)}
        text = json.dumps(settings, ensure_ascii=False, indent=1)
        for folder in dict.fromkeys((self._beside, self.local)):
            storage.make_directory(folder)
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
        in_place, ready = storage.list_stats(self._output), storage.list_stats(self.ready)
        finished = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError, BadInput):
                made = decode.read_json(self.scratch(f"{name}.json"), MadeShard)
                path = storage.join(self._output, name)
                is_ready = name in ready and ready[name].size == made.shard.bytes
                if is_ready or (
                    name in in_place and verify.is_shard(path, in_place[name], made.shard)
                ):
                    finished[name] = made
        return finished

    # --- the output ---

    def put_in_place(self, shards: Collection[Shard], spec: DataSpec) -> Owned:
        """Moves shards from `ready` to the output, replacing what is ours there.

        From here on the output holds no finished data set until a manifest is written. After a
        kill at any instant the same command can continue. What is not ours, or was changed, is
        kept under another name.

        Returns:
            The output by its mark, which names the data set by its spec: the same data set is the
            same bytes.
        """
        digest = hashlib.sha256(json.dumps(vars(spec), sort_keys=True).encode()).hexdigest()
        owned = Owned.create(self._output, KIND, lambda: digest[:16])
        names = {shard.name for shard in shards}
        ready, there = set(storage.list_files(self.ready)), set(storage.list_files(self._output))
        stale = [n for n in owned.files if n.endswith(_SHARD_END) and n not in names]
        _remove_or_keep(owned, [manifest_lib.FILE_NAME])
        for name in sorted(names & ready & there):
            owned.make_room(name)
        owned.note({s.name: Made(s.bytes, s.crc32c) for s in shards if s.name in ready})
        moves = [
            partial(storage.rename, storage.join(self.ready, n), storage.join(self._output, n))
            for n in names & ready
        ]
        storage.run_all(moves)
        _remove_or_keep(owned, stale)
        return owned


def _remove_or_keep(owned: Owned, names: Collection[str]) -> None:
    """Removes files of ours from the output; those that were changed are kept beside."""
    changed = owned.remove(names)
    for name in changed:
        owned.make_room(name)
    owned.forget(changed)


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
    for part, ours in reversed(_OURS.items()):
        directory = storage.join(folder, part) if part else folder
        if not storage.is_remote(directory) and os.path.islink(directory):
            continue
        storage.clean_temporary(directory)
        names = [name for name in storage.list_files(directory) if re.fullmatch(ours, name)]
        storage.delete_many(storage.join(directory, name) for name in names if name != _SETTINGS)
        if not part:
            storage.delete(storage.join(directory, _SETTINGS))
        if not storage.is_remote(directory):
            with contextlib.suppress(OSError):  # it holds other files
                os.rmdir(directory)


def check_output(output_dir: str) -> None:
    """Refuses an output that holds what `make-data` did not make, but for files that a user has
    put beside a data set of ours under names that it does not need; changes nothing.

    Args:
        output_dir: of `make-data`; unfinished work in it is left aside.

    Raises:
        BadInput: naming what is there.
    """
    advice, apart = "choose another --output_dir, or move it away yourself", (NAME, LOCK_NAME)
    owned = ownership.check_folder(output_dir, "--output_dir", KIND, advice, apart)
    names = storage.list_files(output_dir) if owned else ()
    needed = (manifest_lib.FILE_NAME, manifest_lib.TOKENIZER_NAME)
    for name in set(names) - set(owned.files if owned else ()):
        if name.endswith(_SHARD_END) or name in needed:
            raise BadInput(
                f"{output_dir} holds {name}, and nothing shows that make-data made it: {advice}"
            )
