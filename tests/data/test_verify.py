"""A data set that is not what its manifest says, or is changed while a run reads it."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from bigbird_ja import storage
from bigbird_ja.data import check
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.text import read_tokenizer
from testkit import synthetic


@pytest.fixture
def made(tmp_path):
    """A data set of two train shards in `tmp_path`."""
    return synthetic.write(tmp_path, (4, 4))


def to_bucket(folder, bucket):
    """Copies a data set; its new place."""
    for path in folder.iterdir():
        storage.upload(str(path), f"{bucket}/data/{path.name}")
    return f"{bucket}/data"


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_replaced_or_removed_shard_is_named(place, tmp_path, bucket, made):
    directory = to_bucket(tmp_path, bucket) if place == "bucket" else str(tmp_path)
    _, guard = check.fast_check(directory)
    guard.check()
    name = made.train_shards[1].name
    path = storage.join(directory, name)
    storage.write_bytes(path, storage.read_bytes(path)[::-1])  # of the same length
    with pytest.raises(StorageError, match=name):
        guard.check()
    storage.delete(path)
    with pytest.raises(StorageError, match=name):
        guard.check()
    with pytest.raises(BadInput, match=name):
        check.fast_check(directory)


def test_another_shard_of_the_same_size_is_named_and_so_is_one_cut_short(tmp_path, made):
    name = made.train_shards[1].name
    synthetic.write(tmp_path / "other", (4, 4), seed=2)
    assert check.fast_check(str(tmp_path))[0] == made
    shutil.copy(tmp_path / "other" / name, tmp_path / name)
    with pytest.raises(BadInput, match=f"{name} is not the file that was made"):
        check.fast_check(str(tmp_path))
    assert check.fast_check(str(tmp_path), splits=("eval",))[0] == made
    (tmp_path / name).write_bytes(b"short")
    with pytest.raises(BadInput, match=f"{name} has 5 bytes"):
        check.fast_check(str(tmp_path))


def test_the_requests_do_not_grow_with_the_shards(tmp_path, bucket, fake_gcs):
    synthetic.write(tmp_path, (3,) * 12, ())
    data_dir = to_bucket(tmp_path, bucket)
    fake_gcs.log(clear=True)
    check.fast_check(data_dir)
    assert len(fake_gcs.log()) == 2  # the manifest and one listing


def test_a_passing_fault_of_reading_stays_one(tmp_path, made):
    with pytest.raises(StorageError, match="tfrecord"), check.named_damage(made, str(tmp_path)):
        raise tf.errors.DataLossError(None, None, "corrupted record at 12")


def test_ends_that_an_earlier_version_read_otherwise_are_no_damage(tmp_path, tokenizer_path):
    data = Path(tokenizer_path).read_bytes()
    tokenizer = read_tokenizer(tokenizer_path)
    (tmp_path / "tokenizer.model").write_bytes(data)
    ids = tokenizer.special_ids
    made = dataclasses.replace(
        synthetic.write(tmp_path, (4, 4)),
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        special_ids=ids | {"cls": ids["bos"], "bos": ids["cls"]},
    )
    assert check.tokenizer_problem(made, str(tmp_path)) is None
    changed = dataclasses.replace(made, special_ids=ids | {"sep": 100})
    assert "other ids" in (check.tokenizer_problem(changed, str(tmp_path)) or "")
