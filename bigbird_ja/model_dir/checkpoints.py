"""Checkpoints in MODEL_DIR, on disk or a bucket, each verified by its metadata.

A checkpoint at step N consists of `model.ckpt-N.data-00000-of-00001` and `model.ckpt-N.index`
(TensorFlow's own format), and of its metadata, `model.ckpt-N.json`, with sizes and checksums.
TensorFlow's file `checkpoint` lists the complete checkpoints, for this module and for TensorFlow's
tools. Checkpoints are found by their metadata. `tf.train.latest_checkpoint` is not used. If a
bucket cannot be read, this function returns None, and the run would start over.

A kill can come between any two files, so their order matters:

- A save writes data, index, metadata, then `checkpoint`. A checkpoint without metadata counts as
  incomplete.
- A removal updates `checkpoint`, then removes metadata, index, data.

After a kill, the next start removes the files of each checkpoint that has no metadata and is not
listed in `checkpoint`. Only files in MODEL_DIR's ownership manifest (`storage.ownership`) are
removed. The three files of a checkpoint are added to the manifest before they are written.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Annotated, TypeVar

import msgspec

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.model_dir.log_schema import Time
from bigbird_ja.storage import decode
from bigbird_ja.storage.decode import Amount, Count
from bigbird_ja.storage.ownership import MANIFEST_NAME, FileVersion, Owned

T = TypeVar("T")
Positive = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]

# TensorFlow's name for the file that lists checkpoints.
STATE = "checkpoint"
# Suffixes of TensorFlow's files, in the order of writing.
SUFFIXES = (".data-00000-of-00001", ".index")
_ASIDE = re.compile(r"damaged-(\d+-)?model\.ckpt-")
_NAME = re.compile(r"model\.ckpt-(\d+)(\.data-00000-of-00001|\.index|\.json)")


@dataclass(frozen=True)
class StoredFile:
    """Size and checksum of a checkpoint's file."""

    bytes: Count
    crc32c: str  # Base64 of the big-endian CRC32C, as Cloud Storage states it.


@dataclass(frozen=True)
class Meta:
    """Metadata of a checkpoint, with the run's totals up to the checkpoint."""

    step: Count
    config_fingerprint: str
    data_fingerprint: str
    train_seconds: Amount  # Seconds of training, over all restarts.
    tokens_seen: Count
    interruptions: Count  # Number of earlier starts that did not finish the run.
    time: Time  # UNIX seconds.
    next_batch: Count  # Position in the data's order, in batches of `global_batch_size`.
    global_batch_size: Positive
    tokenizer_sha256: str = ""  # SHA-256 (hex) of the data set's tokenizer, or "".
    files: dict[str, StoredFile] = field(default_factory=dict)
    format_version: str = decode.FORMAT_VERSION


class _Versioned(msgspec.Struct):
    step: Count
    format_version: str = ""


class Damaged(BadInput):
    """Checkpoint that is missing or incomplete, or that differs from its metadata."""


@dataclass(frozen=True)
class Checkpoint:
    """Verified checkpoint in local files."""

    prefix: str  # Argument of `tf.train.load_checkpoint`.
    meta: Meta


@dataclass
class CheckpointStore:
    """Checkpoints of one MODEL_DIR.

    Args:
        model_dir: path on disk or gs://.
        scratch: local directory for downloads, only needed on a bucket.
        report: callback that gets (event, step, text) when files are renamed aside or removed.
        owned: ownership manifest of MODEL_DIR, only needed to write.
    """

    model_dir: str
    scratch: str | None = None
    report: Callable[[str, int, str], None] = lambda event, step, text: None
    owned: Owned | None = None
    # Changes that `find_latest_good` plans and `repair` makes.
    _repairs: list[Callable[[], None]] = field(default_factory=list, init=False)

    def list_steps(self) -> list[int]:
        """Return the ascending steps of checkpoints with metadata."""
        parts = _group_parts(storage.list_files(self.model_dir))
        return sorted(step for step, endings in parts.items() if ".json" in endings)

    def publish(self, prefix: str, meta: Meta, keep_last: int, keep_every: int) -> Meta:
        """Move a checkpoint from local scratch files to MODEL_DIR, as its latest checkpoint.

        On a bucket, the scratch files are uploaded and then removed. A failure does not affect the
        previous checkpoint. Finally, the checkpoints of `select_removed` are removed.

        Returns:
            The metadata, with sizes and checksums of the files.
        """
        scratch_files = {
            name: prefix + end for name, end in zip(_list_names(meta.step), SUFFIXES, strict=True)
        }
        files = {}
        for name, path in scratch_files.items():
            crc, size = storage.compute_file_crc32c(path)
            files[name] = StoredFile(size, crc)
        meta = replace(meta, files=files)
        sidecar = (json.dumps(asdict(meta), indent=1) + "\n").encode()
        steps = sorted({*self.list_steps(), meta.step})
        removable = select_removed(steps, keep_last, keep_every)
        listed = [step for step in removable if _name_metadata(step) in self._ours.files]
        self._ours.note(
            {**dict.fromkeys(files), _name_metadata(meta.step): FileVersion.from_bytes(sidecar)}
        )
        try:
            for name, path in scratch_files.items():
                storage.take(path, self._join(name))
            storage.write_bytes(self._join(_name_metadata(meta.step)), sidecar)
        except BaseException:
            with contextlib.suppress(Exception):
                self._ours.remove(scratch_files)
            raise
        self._write_state([step for step in steps if step not in removable])
        for step in listed:
            self._ours.remove([_name_metadata(step)])
            self._ours.remove(_list_names(step))
        return meta

    def read_meta(self, step: int) -> Meta:
        """Read the metadata of the checkpoint at a step.

        Raises:
            Damaged: The file is missing or damaged.
            BadInput: Another version of this program wrote the checkpoint.
        """
        path = self._join(_name_metadata(step))
        try:
            data = storage.read_bytes(path)
        except FileNotFoundError as error:
            raise Damaged(f"{path}: no such checkpoint") from error
        if self.owned is not None and not self.owned.has_version(
            _name_metadata(step), FileVersion.from_bytes(data)
        ):
            raise Damaged(f"{path} is not the file that this run's {MANIFEST_NAME} states")
        version = _decode(data, _Versioned, path).format_version
        decode.check_format(version, path, "train again, or use the version that wrote it")
        meta = _decode(data, Meta, path)
        if meta.step != step:
            raise Damaged(f"{path} is damaged: it states step {meta.step}, not {step}")
        return meta

    def fetch(self, step: int) -> Checkpoint:
        """Verify all files of a checkpoint. Files on a bucket are downloaded first.

        Raises:
            Damaged: The checkpoint is missing, incomplete or damaged.
            BadInput: Another version of this program wrote the checkpoint.
        """
        meta = self.read_meta(step)
        if meta.files.keys() != set(_list_names(step)):
            listed = ", ".join(sorted(meta.files))
            raise Damaged(
                f"{self._join(_name_metadata(step))} is damaged: it lists {listed or 'no files'},"
                f" instead of {', '.join(_list_names(step))}"
            )
        for name, expected in meta.files.items():
            local = self._fetch(name, expected)
        return Checkpoint(os.path.join(os.path.dirname(local), f"model.ckpt-{step}"), meta)

    def find_latest_good(self, names: Collection[str]) -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None if no checkpoint was ever saved.

        Nothing is changed in MODEL_DIR. `repair` makes the changes that this method plans.

        Args:
            names: names of the files in MODEL_DIR.

        Raises:
            StorageError: All checkpoints are damaged, or MODEL_DIR cannot be read.
        """
        parts = _group_parts(names)
        listed = self._read_listed()
        self._find_leftovers(parts, listed)
        complaint = ""
        for step in sorted(parts, reverse=True):
            try:
                checkpoint = self.fetch(step)
            except Damaged as error:
                complaint = str(error)
                self._repairs.append(partial(self._set_aside, step, parts.pop(step), complaint))
                continue
            if listed != sorted(parts):
                self._repairs.append(partial(self._write_state, sorted(parts)))
            return checkpoint
        if complaint or listed or any(map(_ASIDE.match, names)):
            raise StorageError(
                f"{self.model_dir} contains no undamaged checkpoint"
                f" ({complaint or 'see damaged-*'}): restore one from a copy, or start over in"
                " another `model_dir`"
            )
        return None

    def repair(self) -> None:
        """Rename damaged checkpoints aside, and remove files that a kill has left.

        The caller must own MODEL_DIR's lock.
        """
        while self._repairs:
            self._repairs.pop(0)()

    def _read_listed(self) -> list[int]:
        """Read the steps that the `checkpoint` file lists, or return [] if it does not exist."""
        try:
            text = storage.read_bytes(self._join(STATE)).decode("utf-8", "replace")
        except FileNotFoundError:
            return []
        steps = re.findall(r'^all_model_checkpoint_paths: "model\.ckpt-(\d+)"', text, re.MULTILINE)
        return sorted({int(step) for step in steps})

    @property
    def _ours(self) -> Owned:
        if self.owned is None:
            raise ValueError("a CheckpointStore needs MODEL_DIR's ownership manifest to write")
        return self.owned

    def _find_leftovers(self, parts: dict[int, set[str]], listed: Sequence[int]) -> None:
        """Plan the repair of checkpoints without metadata, and drop their steps from `parts`."""
        for step in sorted(step for step, endings in parts.items() if ".json" not in endings):
            endings = parts.pop(step)
            if step in listed:
                why = "its metadata (.json) is missing"
                self._repairs.append(partial(self._set_aside, step, endings, why))
            else:
                self._repairs.append(partial(self._clean_up, step, endings))

    def _clean_up(self, step: int, endings: Collection[str]) -> None:
        """Remove those files of a checkpoint that the ownership manifest lists."""
        if self._ours.remove([f"model.ckpt-{step}{part}" for part in endings]):
            self.report("cleaned", step, f"removed what was left of checkpoint {step}")

    def _set_aside(self, step: int, parts: Collection[str], why: str) -> None:
        # The .json file is moved first, as a checkpoint without it is not used.
        names = [f"model.ckpt-{step}{part}" for part in sorted(parts, reverse=True)]
        for name in names:
            aside = self._join(f"damaged-{name}")
            aside = storage.find_free_name(aside) if storage.exists(aside) else aside
            storage.rename(self._join(name), aside)
        self._ours.forget(names)
        self.report(
            "set_aside",
            step,
            f"checkpoint {step} is damaged and was set aside as damaged-model.ckpt-{step}.*: {why}",
        )

    def _fetch(self, name: str, expected: StoredFile) -> str:
        """Verify a file, and return its local path. A file on a bucket is downloaded first."""
        path = self._join(name)
        try:
            local = storage.fetch(path, self.scratch or "")
            crc, size = storage.compute_file_crc32c(local)
        except FileNotFoundError as error:
            raise Damaged(f"{path} is missing") from error
        if size != expected.bytes:
            raise Damaged(f"{path} has {size} bytes instead of {expected.bytes}")
        if crc != expected.crc32c:
            raise Damaged(f"the checksum of {path} differs from its metadata (.json)")
        return local

    def _write_state(self, steps: Sequence[int]) -> None:
        lines = [f'model_checkpoint_path: "model.ckpt-{steps[-1]}"']
        lines += [f'all_model_checkpoint_paths: "model.ckpt-{step}"' for step in steps]
        storage.write_bytes(self._join(STATE), ("\n".join(lines) + "\n").encode())

    def _join(self, name: str) -> str:
        return storage.join(self.model_dir, name)


def select_removed(steps: Sequence[int], keep_last: int, keep_every: int) -> list[int]:
    """Return the checkpoints to remove among the ascending `steps`.

    The last `keep_last` checkpoints are kept. If `keep_every` is not 0, the first checkpoint at or
    after each multiple of `keep_every` is kept, too. Checkpoints are saved between device loops of
    several steps, so the step of a checkpoint is rarely an exact multiple.
    """
    kept = set(steps[-keep_last:])
    if keep_every:
        first: dict[int, int] = {}
        for step in steps:
            first.setdefault(step // keep_every, step)
        kept |= {step for window, step in first.items() if window}
    return [step for step in steps if step not in kept]


def _group_parts(names: Iterable[str]) -> dict[int, set[str]]:
    """Return the suffixes of the existing checkpoint files, by step."""
    parts: dict[int, set[str]] = {}
    for name in names:
        if match := _NAME.fullmatch(name):
            parts.setdefault(int(match[1]), set()).add(match[2])
    return parts


def _list_names(*steps: int) -> list[str]:
    """List the files of checkpoints, without their metadata, in the order of writing."""
    return [f"model.ckpt-{step}{suffix}" for step in steps for suffix in SUFFIXES]


def _decode(data: bytes, kind: type[T], path: str) -> T:
    """Decode the JSON of a checkpoint, or raise Damaged."""
    try:
        return decode.decode_json(data, kind, f"{path}: damaged")
    except BadInput as error:
        raise Damaged(str(error)) from error


def _name_metadata(step: int) -> str:
    return f"model.ckpt-{step}.json"
