"""Writes documents as a TFDS-prepared `wiki40b/ja`, which the real TFDS builder then reads.

Layout and metadata follow TFDS's "external format" (`tfds.folder_dataset.write_metadata`); names,
features and version are those of TFDS's own `wiki40b/ja` 1.3.0.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator

from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode

NAME, CONFIG, VERSION = "wiki40b", "ja", "1.3.0"
# Shares of Wiki40b's own splits, about.
_SPLITS = (("train", 0.9), ("validation", 0.05), ("test", 0.05))
_DOCUMENTS_PER_SHARD = 2000
MIN_DOCUMENTS = 3  # one per split


def prepared_directory(data_dir: str) -> str:
    """Where the prepared files of `data_dir` lie."""
    return os.path.join(data_dir, NAME, CONFIG, VERSION)


@dataclasses.dataclass(frozen=True)
class _Described:
    """What of `dataset_info.json` is read."""

    description: str = ""


def description_of(data_dir: str) -> str | None:
    """What `write_tfds` was told to note, or None where nothing is prepared."""
    path = os.path.join(prepared_directory(data_dir), "dataset_info.json")
    try:
        return decode.read_json(path, _Described).description
    except FileNotFoundError:
        return None
    except BadInput:
        return ""  # prepared by somebody else


def check_count(count: int) -> None:
    """Refuses fewer documents than splits.

    Raises:
        BadInput: there are.
    """
    if count < MIN_DOCUMENTS:
        raise BadInput(f"--documents={count}: a TFDS directory needs at least {MIN_DOCUMENTS}")


def write_tfds(
    data_dir: str, documents: Iterator[str], count: int, description: str, overwrite: bool = False
) -> None:
    """Writes `count` documents as train, validation and test splits under `data_dir`.

    The finished directory appears at once, by rename. What `overwrite` replaces goes when the new
    is whole.

    Args:
        count: at least MIN_DOCUMENTS.
    """
    final = prepared_directory(data_dir)
    partial = os.path.join(os.path.dirname(final), f".partial-{VERSION}-{os.getpid()}")
    os.makedirs(partial)
    try:
        _write_splits(partial, documents, count, description)
        if overwrite and os.path.isdir(final):
            os.rename(final, f"{partial}-old")
        os.rename(partial, final)
        shutil.rmtree(f"{partial}-old", ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_splits(directory: str, documents: Iterator[str], count: int, description: str) -> None:
    import tensorflow_datasets as tfds

    text = tfds.features.Text
    features = tfds.features.FeaturesDict(
        {"wikidata_id": text(), "text": text(), "version_id": text()}
    )
    template = tfds.core.ShardedFileTemplate(
        template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        dataset_name=NAME,
        data_dir=directory,
        filetype_suffix="tfrecord",
    )

    def serialize(document: str, index: int) -> bytes:
        example = {"wikidata_id": f"Q{index}", "text": document, "version_id": "0"}
        return features.serialize_example(example)

    infos = []
    first = 0
    for split, size in _split_sizes(count).items():
        lengths = _shard_lengths(size)
        num_bytes = 0
        for shard, length in enumerate(lengths):
            name = f"{NAME}-{split}.tfrecord-{shard:05d}-of-{len(lengths):05d}"
            num_bytes += _write_shard(
                os.path.join(directory, name), documents, range(first, first + length), serialize
            )
            first += length
        infos.append(tfds.core.SplitInfo(split, lengths, num_bytes, template))
    tfds.folder_dataset.write_metadata(
        data_dir=directory,
        features=features,
        split_infos=infos,
        version=VERSION,
        check_data=False,
        description=description,
    )
    _name_config(os.path.join(directory, "dataset_info.json"))


def _name_config(path: str) -> None:
    """`write_metadata` knows no configurations; a builder asked for a version looks for one."""
    with open(path, encoding="utf-8") as file:
        info = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**info, "configName": CONFIG}, file, indent=2)


def _write_shard(
    path: str, documents: Iterator[str], indices: range, serialize: Callable[[str, int], bytes]
) -> int:
    import tensorflow as tf

    num_bytes = 0
    with tf.io.TFRecordWriter(path) as writer:
        for index in indices:
            record = serialize(next(documents), index)
            writer.write(record)
            num_bytes += len(record)
    return num_bytes


def _split_sizes(count: int) -> dict[str, int]:
    sizes = {name: max(1, int(count * share)) for name, share in _SPLITS[1:]}
    return {"train": count - sum(sizes.values()), **sizes}


def _shard_lengths(size: int) -> list[int]:
    shards = -(-size // _DOCUMENTS_PER_SHARD)
    return [size // shards + (i < size % shards) for i in range(shards)]
