"""A data set that is changed while a run reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.data.guard import DataGuard
from bigbird_ja.data.manifest import Manifest, Shard, Split
from bigbird_ja.errors import BadInput, StorageError
from testkit.fakes.gcs_process import FakeGcs

NAMES = ("train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord")
DATA = b"records"


def _manifest() -> Manifest:
    shards = tuple(
        Shard(name, 1, len(DATA), "", crc32c=storage.crc32c_text(DATA)) for name in NAMES
    )
    return Manifest(
        seq_length=8,
        max_predictions_per_seq=2,
        masked_lm_prob=0.15,
        masking="dynamic",
        mask_unit="subword",
        word_boundaries="script",
        nsp=False,
        vocab_size=100,
        special_ids={"pad": 0, "cls": 4, "sep": 5, "mask": 6},
        num_readers=1,
        train=Split(),
        eval=Split(),
        train_shards=shards,
        eval_shards=(),
    )


def _make(directory: str) -> None:
    storage.make_directory(directory)
    for name in NAMES:
        storage.write_bytes(storage.join(directory, name), DATA)


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_replaced_or_removed_shard_is_named(place: str, tmp_path: Path, bucket: str) -> None:
    directory = str(tmp_path) if place == "disk" else f"{bucket}/data"
    _make(directory)
    guard = DataGuard(_manifest(), directory)
    guard.check()
    path = storage.join(directory, NAMES[1])
    storage.write_bytes(path, DATA[::-1])  # as long as before: nothing else would notice
    with pytest.raises(StorageError, match=NAMES[1]):
        guard.check()
    storage.delete(path)
    with pytest.raises(StorageError, match=NAMES[1]):
        guard.check()
    with pytest.raises(BadInput, match=NAMES[1]):
        DataGuard(_manifest(), directory)


def test_on_a_bucket_checksums_are_compared_without_reading(bucket: str, fake_gcs: FakeGcs) -> None:
    _make(f"{bucket}/data")
    fake_gcs.log(clear=True)
    DataGuard(_manifest(), f"{bucket}/data")
    assert len(fake_gcs.log()) == 1
    storage.write_bytes(f"{bucket}/data/{NAMES[0]}", DATA[::-1])
    with pytest.raises(BadInput, match=NAMES[0]):
        DataGuard(_manifest(), f"{bucket}/data")
