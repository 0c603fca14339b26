"""Folders of the unfinished work of `make-data`.

`OUTPUT_DIR/.make-data` contains `settings.json` with the spec. The packed blocks, and a JSON file
for each finished shard, are in the same folder, or in the user's cache if the output is on gs://.
Shards are written under their final names, so an output without a manifest is unfinished. Before
the first shard is written, an old data set is moved to OUTPUT_DIR.replaced-N, and the file
`writing` is created.

Only files whose names match `_OURS` are removed from these folders, and only if `settings.json`
shows that this program made the folder. In OUTPUT_DIR, the ownership manifest lists this program's
files.
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
# Name of an empty file. If the file exists, an old data set has been moved away, and shards of the
# new one may exist.
_WRITING = "writing"
_WAIT = "wait for it to end, or choose another `output_dir`"
_SHARD_END = ".tfrecord"
_SHARD = r"(train|eval)-\d{5}-of-\d{5}\.tfrecord"
# Names of this program's files in a work folder and in its subfolders, as regular expressions.
_OURS = {
    "": f"{_SETTINGS}|{_WRITING}",
    "blocks": r"(train|eval)-\d{6}\.block",
    "shards": rf"{_SHARD}\.json",
}


@dataclass(frozen=True)
class _Settings:
    """Content of `settings.json`."""

    format_version: str
    spec: DataSpec


def lease_folder(directory: str) -> AbstractContextManager[Lease]:
    """Context manager: acquire the lease of a directory, and release it on exit.

    The caller must call `check` of the lease before it writes the manifest.

    Raises:
        BadInput: Another process owns the lease.
    """
    busy = f"{{owner}} is making data in {directory}: {_WAIT}"
    return keep_lease(Lease(storage.join(directory, LOCK_NAME), busy, log))


class Work:
    """Folders of the unfinished work for one output.

    Attributes:
        folder: work folder inside the output folder.
        local: work folder on this machine, equal to `folder` unless the output is on gs://.
        blocks: folder of packed blocks, in `local`.
    """

    def __init__(self, output_dir: str) -> None:
        """Set the paths of the work folders, without creating them."""
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

    def read_spec(self) -> DataSpec | None:
        """Return the spec of an earlier run's unfinished work, or None if there is none.

        Raises:
            BadInput: A work folder contains foreign files.
        """
        local = _read_spec(self.local)
        return _read_spec(self.folder) or local  # The spec in the output has priority.

    def open(self, spec: DataSpec) -> None:
        """Create the work folders for a spec, unless they exist.

        Raises:
            BadInput: Another command has just begun work with other settings in a work folder.
        """
        if _read_spec(self.local) not in (None, spec):
            _remove_ours(self.local)  # The local folder contains work of another spec.
        settings = _Settings(decode.FORMAT_VERSION, spec)
        text = json.dumps(dataclasses.asdict(settings), ensure_ascii=False, indent=1)
        for folder in dict.fromkeys((self.folder, self.local)):
            storage.make_directory(folder)
            is_new = storage.create_exclusive(storage.join(folder, _SETTINGS), text.encode())
            if not is_new and _read_spec(folder) != spec:
                raise BadInput(
                    f"another command has just begun to make data of other settings in {folder}:"
                    f" {_WAIT}"
                )
        for folder in (self.blocks, self._records):
            storage.make_directory(folder)
            storage.clean_temporary(folder, _OURS[storage.get_base_name(folder)])
        storage.clean_temporary(self.output, _SHARD)

    def remove(self) -> None:
        """Remove this program's files from the work folders, and then the empty folders.

        No other process writes to these folders. So temporary files are leftovers of killed
        commands, and are removed, too.
        """
        for folder in dict.fromkeys((self.local, self.folder)):
            if _read_spec(folder) is not None:
                _remove_ours(folder)

    def locate_block(self, name: str) -> str:
        """Return the path of the block file with this name."""
        return os.path.join(self.blocks, name)

    def _locate_note(self, name: str) -> str:
        return os.path.join(self._records, f"{name}.json")

    def note_shard(self, made: MadeShard) -> None:
        """Record that a shard is finished."""
        values = {"shard": vars(made.shard), "predictions": made.predictions}
        storage.write_text(self._locate_note(made.shard.name), json.dumps(values))

    def find_finished_shards(self, names: Collection[str]) -> dict[str, MadeShard]:
        """Return, by name, the descriptions of shards in `names` that an earlier run finished.

        The content of the shard files is verified.
        """
        stats = storage.list_stats(self.output)
        finished = {}

        def find(name: str) -> None:
            with contextlib.suppress(FileNotFoundError, BadInput):
                made = decode.read_json(self._locate_note(name), MadeShard)
                if check.is_shard(storage.join(self.output, name), stats[name], made.shard):
                    finished[name] = made

        storage.run_all([partial(find, name) for name in names if name in stats])
        return finished

    def is_writing(self, spec: DataSpec) -> bool:
        """Return whether an earlier run of this spec has begun to write shards."""
        return _read_spec(self.folder) == spec and storage.exists(self._writing)

    def claim_output(self, names: Collection[str], spec: DataSpec) -> Owned:
        """Move an old data set away, and add the new shards to the ownership manifest.

        A rerun can continue after a kill at any time. As long as the file `writing` does not exist,
        every file in the ownership manifest belongs to an old data set.

        Args:
            names: names of the shards.
            spec: spec of the data set.

        Returns:
            The output's ownership manifest. The id of a new manifest is a hash of the spec, so that
            equal data sets contain equal bytes.

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


def _read_spec(folder: str) -> DataSpec | None:
    """Read the spec in a work folder, or return None if the folder is missing or empty.

    Raises:
        BadInput: The folder contains foreign files, or another version of this program made it.
    """
    path, advice = storage.join(folder, _SETTINGS), "remove the folder"
    try:
        data = storage.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if isinstance(error, NotADirectoryError) or storage.list_tree(folder):
            raise BadInput(
                f"{folder} was not created by make-data (it contains no {_SETTINGS}): move it away"
            ) from None
        return None
    return decode.decode_versioned(data, _Settings, path, advice).spec


def _remove_ours(folder: str) -> None:
    """Remove the files of `make-data` from a work folder, and the folder if it is then empty.

    `settings.json` is removed last, so that it still identifies the folder after a kill.
    """
    for part, ours in reversed(_OURS.items()):
        directory = storage.join(folder, part) if part else folder
        storage.clean_temporary(directory, ours, seconds=-1)
        names = [name for name in storage.list_files(directory) if re.fullmatch(ours, name)]
        storage.delete_many(storage.join(directory, name) for name in names if name != _SETTINGS)
        if not part:
            storage.delete(storage.join(directory, _SETTINGS))
        if not storage.is_remote(directory):
            with contextlib.suppress(OSError):  # This fails if the folder contains other files.
                os.rmdir(directory)


def check_output(output_dir: str) -> None:
    """Check that no foreign file prevents `make-data` from writing to a folder.

    If the folder belongs to a data set, a foreign file must not have a name that a data set needs.
    Any other folder must contain no foreign file.

    Args:
        output_dir: output of `make-data`. Unfinished work in it is ignored.

    Raises:
        BadInput: A foreign file prevents it, or the folder belongs to another command.
    """
    advice, apart = "choose another `output_dir`, or move it away yourself", (NAME, LOCK_NAME)
    owned = outputs.check_folder(output_dir, "`output_dir`", KIND, advice, apart)
    if owned is None:
        return
    needed = (manifest_lib.FILE_NAME, manifest_lib.TOKENIZER_NAME)
    for name in set(storage.list_files(output_dir)) - {*owned.files}:
        if name.endswith(_SHARD_END) or name in needed:
            raise BadInput(f"{output_dir} contains {name}, which make-data did not write: {advice}")
