"""Keep the unfinished work of `make-data`, prove whose it is, and make it a data set.

`OUTPUT_DIR/.make-data` holds `settings.json`, by which it is recognised, `ready/`, where shards
wait until all are finished, and `shards/`, with notes on these. Packed blocks lie in a folder of
this machine: the same one, or one in the user's cache for an output on gs://.

Nothing is removed from these folders but files of the names below, where `settings.json` shows that
this program made the folder. In OUTPUT_DIR the ownership manifest lists what is ours. A data set
that is replaced stays whole until the new one is, and moves to OUTPUT_DIR.replaced-N.
"""

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
from bigbird_ja.data import check
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.manifest import DataSpec, Shard
from bigbird_ja.data.shards import MadeShard
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode, outputs
from bigbird_ja.storage.lease import Lease, held
from bigbird_ja.storage.ownership import Owned

KIND = "data set"
NAME = ".make-data"
LOCK_NAME = ".make-data.lock"
_SETTINGS = "settings.json"
_WAIT = "wait for it to end, or choose another --output_dir"
_SHARD_END = ".tfrecord"
_SHARD = r"(train|eval)-\d{5}-of-\d{5}\.tfrecord"
# The names of our files in each part of a work folder.
_OURS = {
    "": _SETTINGS,
    "blocks": r"(train|eval)-\d{6}\.block",
    "shards": rf"{_SHARD}\.json",  # notes
    "ready": _SHARD,
}


def exclusive(directory: str) -> AbstractContextManager[Lease]:
    """Holds the directory's lease; `check` it before the manifest is written.

    Raises:
        BadInput: another process holds it.
    """
    busy = f"{directory}: {{owner}} is making data there: {_WAIT}"
    return held(Lease(storage.join(directory, LOCK_NAME), busy, log))


class Work:
    """The folders of the unfinished work for one output.

    Attributes:
        beside: folder of all but the blocks, in the output.
        local: folder of all that lies on this machine.
        blocks: folder of packed blocks, in `local`.
        ready: where finished shards wait, beside the output.
    """

    def __init__(self, output_dir: str) -> None:
        """Name the folders; nothing is made."""
        self._output = output_dir
        self.beside = storage.join(output_dir, NAME)
        self.ready = storage.join(self.beside, "ready")
        self.local = self.beside
        if storage.is_remote(output_dir):
            cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
            digest = hashlib.sha256(output_dir.rstrip("/").encode()).hexdigest()
            self.local = os.path.join(cache, "bigbird-ja", f"make-data-{digest[:16]}")
        self.blocks = os.path.join(self.local, "blocks")

    def begun(self) -> DataSpec | None:
        """Return the spec of the work that an earlier run left, or None.

        Raises:
            BadInput: something else stands where work is to lie.
        """
        local = _spec_in(self.local)
        return _spec_in(self.beside) or local  # the one beside the output is decisive

    def open(self, spec: DataSpec) -> None:
        """Creates the folders, or uses those that are there.

        Raises:
            BadInput: work of other settings has begun there this moment.
        """
        if _spec_in(self.local) not in (None, spec):
            _remove_ours(self.local)  # stale: what is beside the output is of other settings
        settings = {"format_version": decode.FORMAT_VERSION, "spec": vars(spec)}
        text = json.dumps(settings, ensure_ascii=False, indent=1)
        for folder in dict.fromkeys((self.beside, self.local)):
            storage.make_directory(folder)
            is_new = storage.create_exclusive(storage.join(folder, _SETTINGS), text.encode())
            if not is_new and _spec_in(folder) != spec:
                raise BadInput(f"{folder}: another command has just begun there: {_WAIT}")
        for folder in (self.blocks, storage.join(self.beside, "shards"), self.ready):
            storage.make_directory(folder)
            storage.clean_temporary(folder, _OURS[storage.base_name(folder)])

    def remove(self) -> None:
        """Removes the files of this program from the folders, and the folders left empty.

        No other process writes there then, so temporary files are leftovers of killed commands.
        """
        for folder in dict.fromkeys((self.local, self.beside)):
            if _spec_in(folder) is not None:
                _remove_ours(folder, seconds=-1)

    def block(self, name: str) -> str:
        """Return the path of a packed block."""
        return os.path.join(self.blocks, name)

    def _note(self, name: str) -> str:
        return storage.join(self.beside, "shards", f"{name}.json")

    def note_shard(self, made: MadeShard) -> None:
        """Notes that a shard is finished."""
        values = {"shard": vars(made.shard), "predictions": made.predictions}
        storage.write_text(self._note(made.shard.name), json.dumps(values))

    def finished_shards(self, names: Collection[str]) -> dict[str, MadeShard]:
        """Return those of the shards `names` that are noted and exist, ready or in place."""
        folders = [(folder, storage.list_stats(folder)) for folder in (self.ready, self._output)]
        finished = {}

        def look(name: str) -> None:
            with contextlib.suppress(FileNotFoundError, BadInput):
                made = decode.read_json(self._note(name), MadeShard)
                for folder, stats in folders:
                    path = storage.join(folder, name)
                    if name in stats and check.is_shard(path, stats[name], made.shard):
                        finished[name] = made

        known = [name for name in names if any(name in stats for _, stats in folders)]
        storage.run_all([partial(look, name) for name in known])
        return finished

    def put_in_place(self, shards: Collection[Shard], spec: DataSpec) -> Owned:
        """Move shards from `ready` to the output; a data set that is there is set aside.

        From here on the output holds no finished data set until a manifest is written. After a
        kill at any instant the same command can continue.

        Returns:
            The output by its mark, which names the data set by its spec: the same data set is the
            same bytes.

        Raises:
            BadInput: a file that isn't ours has the name of a shard.
        """
        digest = hashlib.sha256(json.dumps(spec.stated(), sort_keys=True).encode()).hexdigest()
        owned = Owned.create(self._output, KIND, digest[:16])
        owned.adopt(dict.fromkeys(_shards_of(owned)))
        names = {shard.name for shard in shards}
        ready = names & set(storage.list_files(self.ready))
        first = manifest_lib.FILE_NAME
        others = sorted(set(owned.files) - {first} - (names - ready))  # those are in place already
        if moved := owned.set_aside([first, *others]):
            log(f"{self._output}: the data set that was there is now {moved}")
        owned.note(dict.fromkeys(ready))
        moves = [
            partial(storage.rename, storage.join(self.ready, n), storage.join(self._output, n))
            for n in ready
        ]
        storage.run_all(moves)
        return owned


def _shards_of(owned: Owned) -> list[str]:
    """List the shards of a finished data set: 0.1.0 listed its manifest alone as ours."""
    if manifest_lib.FILE_NAME in owned.files:
        with contextlib.suppress(FileNotFoundError, BadInput):
            return [shard.name for shard in manifest_lib.load(owned.path).every_shard]
    return []


def _spec_in(folder: str) -> DataSpec | None:
    """Read the spec in a work folder's settings.json; None where the folder is missing or empty.

    Raises:
        BadInput: it is not a folder of ours, or of another version.
    """
    path, advice = storage.join(folder, _SETTINGS), "remove the folder"
    try:
        settings = decode.read_json(path, dict[str, Any], advice)
    except (FileNotFoundError, NotADirectoryError) as error:
        if isinstance(error, NotADirectoryError) or storage.list_tree(folder):
            raise BadInput(
                f"{folder}: holds files and no {_SETTINGS} of make-data: move it away"
            ) from None
        return None
    decode.check_format(str(settings.get("format_version", "")), path, advice)
    return decode.convert(settings.get("spec"), DataSpec, path, advice)


def _remove_ours(folder: str, **temporary: float) -> None:
    """Removes our files; `settings.json` last, so that after a kill the folder is still ours."""
    for part, ours in reversed(_OURS.items()):
        directory = storage.join(folder, part) if part else folder
        storage.clean_temporary(directory, ours, **temporary)
        names = [name for name in storage.list_files(directory) if re.fullmatch(ours, name)]
        storage.delete_many(storage.join(directory, name) for name in names if name != _SETTINGS)
        if not part:
            storage.delete(storage.join(directory, _SETTINGS))
        if not storage.is_remote(directory):
            with contextlib.suppress(OSError):  # it holds other files
                os.rmdir(directory)


def check_output(output_dir: str) -> None:
    """Refuse an output that holds files that `make-data` did not make.

    Files that a user has put beside a data set of ours, under names that it does not need, stay.

    Args:
        output_dir: of `make-data`; unfinished work in it is left aside.

    Raises:
        BadInput: naming the file.
    """
    advice, apart = "choose another --output_dir, or move it away yourself", (NAME, LOCK_NAME)
    owned = outputs.check_folder(output_dir, "--output_dir", KIND, advice, apart)
    if owned is None:
        return
    needed = (manifest_lib.FILE_NAME, manifest_lib.TOKENIZER_NAME)
    for name in set(storage.list_files(output_dir)) - {*owned.files, *_shards_of(owned)}:
        if name.endswith(_SHARD_END) or name in needed:
            raise BadInput(
                f"{output_dir} holds {name}, and nothing shows that make-data made it: {advice}"
            )
