"""Unfinished work of `make-data`: its folders, their owner, and the places of its shards.

`OUTPUT_DIR/.make-data` contains `settings.json`, by which it is recognized. Packed blocks and the
records of finished shards lie on this machine: in the same folder, or in the user's cache if the
output is on gs://. Shards are written under their final names; an output without a manifest is
unfinished. An old data set moves to OUTPUT_DIR.replaced-N before the first shard is
written, and the file `writing` says so.

Only files of the names below are removed from these folders, and only if `settings.json` shows that
this program made the folder. In OUTPUT_DIR the ownership manifest lists what is ours.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from bigbird_ja import storage
from bigbird_ja.data import check
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.manifest import DataSpec
from bigbird_ja.data.shards import MadeShard
from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import log
from bigbird_ja.storage import decode, outputs
from bigbird_ja.storage.lease import Lease, keep_lease
from bigbird_ja.storage.ownership import Owned

KIND = "data set"
NAME = ".make-data"
LOCK_NAME = ".make-data.lock"
_SETTINGS = "settings.json"
_WRITING = "writing"  # exists once an old data set has moved aside
_WAIT = "wait for it to end, or choose another `output_dir`"
_SHARD_END = ".tfrecord"
_SHARD = r"(train|eval)-\d{5}-of-\d{5}\.tfrecord"
# The names of our files in each part of a work folder.
_OURS = {
    "": f"{_SETTINGS}|{_WRITING}",
    "blocks": r"(train|eval)-\d{6}\.block",
    "shards": rf"{_SHARD}\.json",  # records
}


@dataclass(frozen=True)
class _Settings:
    """Content of `settings.json`."""

    format_version: str
    spec: DataSpec


def lease_folder(directory: str) -> AbstractContextManager[Lease]:
    """Acquire the directory's lease and release it at the end.

    Call `check` before the manifest is written.

    Raises:
        BadInput: Another process holds it.
    """
    busy = f"{directory}: {{owner}} is making data there: {_WAIT}"
    return keep_lease(Lease(storage.join(directory, LOCK_NAME), busy, log))


class Work:
    """Folders of the unfinished work for one output.

    Attributes:
        folder: folder in the output.
        local: folder on this machine; the same as `folder` unless the output is on gs://.
        blocks: folder of packed blocks, in `local`.
    """

    def __init__(self, output_dir: str) -> None:
        """Name the folders without creating them."""
        self.output = output_dir
        self.folder = storage.join(output_dir, NAME)
        self.local = self.folder
        if storage.is_remote(output_dir):
            cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
            digest = hashlib.sha256(output_dir.rstrip("/").encode()).hexdigest()
            self.local = os.path.join(cache, "bigbird-ja", f"make-data-{digest[:16]}")
        self.blocks = os.path.join(self.local, "blocks")
        self._records = os.path.join(self.local, "shards")
        self._writing = storage.join(self.folder, _WRITING)

    def begun(self) -> DataSpec | None:
        """Return the spec of the work that an earlier run left, or None.

        Raises:
            BadInput: Foreign files in one of the folders.
        """
        local = _spec_in(self.local)
        return _spec_in(self.folder) or local  # the one in the output is decisive

    def open(self, spec: DataSpec) -> None:
        """Create the folders, or use existing ones.

        Raises:
            BadInput: Another command has just begun work of other settings there.
        """
        if _spec_in(self.local) not in (None, spec):
            _remove_ours(self.local)  # stale: the output has other settings
        settings = _Settings(decode.FORMAT_VERSION, spec)
        text = json.dumps(dataclasses.asdict(settings), ensure_ascii=False, indent=1)
        for folder in dict.fromkeys((self.folder, self.local)):
            storage.make_directory(folder)
            is_new = storage.create_exclusive(storage.join(folder, _SETTINGS), text.encode())
            if not is_new and _spec_in(folder) != spec:
                raise BadInput(f"another command has just begun in {folder}: {_WAIT}")
        for folder in (self.blocks, self._records):
            storage.make_directory(folder)
            storage.clean_temporary(folder, _OURS[storage.get_base_name(folder)])
        storage.clean_temporary(self.output, _SHARD)

    def remove(self) -> None:
        """Remove this program's files from the folders, and folders left empty.

        No other process writes there, so temporary files are leftovers of killed commands.
        """
        for folder in dict.fromkeys((self.local, self.folder)):
            if _spec_in(folder) is not None:
                _remove_ours(folder)

    def block(self, name: str) -> str:
        """Return the path of a packed block."""
        return os.path.join(self.blocks, name)

    def _note(self, name: str) -> str:
        return os.path.join(self._records, f"{name}.json")

    def note_shard(self, made: MadeShard) -> None:
        """Record that a shard is finished."""
        values = {"shard": vars(made.shard), "predictions": made.predictions}
        storage.write_text(self._note(made.shard.name), json.dumps(values))

    def finished_shards(self, names: Collection[str]) -> dict[str, MadeShard]:
        """Return the shards among `names` that are recorded here and exist in the output."""
        stats = storage.list_stats(self.output)
        finished = {}

        def find(name: str) -> None:
            with contextlib.suppress(FileNotFoundError, BadInput):
                made = decode.read_json(self._note(name), MadeShard)
                if check.is_shard(storage.join(self.output, name), stats[name], made.shard):
                    finished[name] = made

        storage.run_all([partial(find, name) for name in names if name in stats])
        return finished

    def is_writing(self, spec: DataSpec) -> bool:
        """Return whether an earlier run of this spec has begun to write shards."""
        return _spec_in(self.folder) == spec and storage.exists(self._writing)

    def claim_output(self, names: Collection[str], spec: DataSpec) -> Owned:
        """List the shards that will be written, and rename an old data set aside.

        After a kill at any time the same command can continue: until `writing` exists, whatever is
        listed is of an old data set.

        Args:
            names: names of the shards.
            spec: spec of the data set.

        Returns:
            The output's ownership manifest. The id of a new one is a hash of the spec: the same
            data set has the same bytes.

        Raises:
            BadInput: A foreign file has the name of a shard.
        """
        text = json.dumps(dataclasses.asdict(spec), sort_keys=True)
        owned = Owned.create(self.output, KIND, hashlib.sha256(text.encode()).hexdigest()[:16])
        if not storage.exists(self._writing):
            first = manifest_lib.FILE_NAME
            if moved := owned.set_aside([first, *sorted(set(owned.files) - {first})]):
                log(f"{self.output}: the data set that was there is now {moved}")
            storage.create_exclusive(self._writing, b"")
        owned.note(dict.fromkeys(names))
        return owned


def _spec_in(folder: str) -> DataSpec | None:
    """Read the spec in a work folder's settings.json, None if the folder is missing or empty.

    Raises:
        BadInput: A foreign folder, or one of another version.
    """
    path, advice = storage.join(folder, _SETTINGS), "remove the folder"
    try:
        data = storage.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if isinstance(error, NotADirectoryError) or storage.list_tree(folder):
            raise BadInput(
                f"{folder} contains files, and no {_SETTINGS} of make-data: move it away"
            ) from None
        return None
    return decode.decode_versioned(data, _Settings, path, advice).spec


def _remove_ours(folder: str) -> None:
    """Remove the files of `make-data`.

    `settings.json`, which identifies the folder, is removed last, in case of a kill.
    """
    for part, ours in reversed(_OURS.items()):
        directory = storage.join(folder, part) if part else folder
        storage.clean_temporary(directory, ours, seconds=-1)
        names = [name for name in storage.list_files(directory) if re.fullmatch(ours, name)]
        storage.delete_many(storage.join(directory, name) for name in names if name != _SETTINGS)
        if not part:
            storage.delete(storage.join(directory, _SETTINGS))
        if not storage.is_remote(directory):
            with contextlib.suppress(OSError):  # it contains other files
                os.rmdir(directory)


def check_output(output_dir: str) -> None:
    """Check that the output holds no foreign file under a name that a data set needs.

    Other files that a user has put there stay.

    Args:
        output_dir: output of `make-data`; unfinished work in it is ignored.

    Raises:
        BadInput: Naming the file.
    """
    advice, apart = "choose another `output_dir`, or move it away yourself", (NAME, LOCK_NAME)
    owned = outputs.check_folder(output_dir, "`output_dir`", KIND, advice, apart)
    if owned is None:
        return
    needed = (manifest_lib.FILE_NAME, manifest_lib.TOKENIZER_NAME)
    for name in set(storage.list_files(output_dir)) - {*owned.files}:
        if name.endswith(_SHARD_END) or name in needed:
            raise BadInput(
                f"{output_dir} contains {name}, and nothing shows that make-data made it: {advice}"
            )
