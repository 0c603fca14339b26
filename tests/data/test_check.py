"""Checks find shards, records and tokenizers that differ from the manifest of a data set."""

import dataclasses
import hashlib
import re
import shutil

import numpy as np
import pytest

from bigbird_ja import storage
from bigbird_ja.data import check, tfrecords
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from testkit import synthetic


@pytest.fixture(params=["dynamic", "static"])
def data(request, tmp_path):
    return synthetic.write(tmp_path, masking=request.param, nsp=True), tmp_path


def problems_of(directory):
    manifest = manifest_lib.load(str(directory))
    return check.check(manifest, str(directory))


def test_a_whole_data_set_has_no_problems_unless_the_manifest_states_other_totals(data):
    manifest, directory = data[0], str(data[1])
    read = []
    # A synthetic data set with static masks contains fewer predictions than its manifest states.
    has_targets = manifest.masking == "static"
    problems = check.check(manifest, directory, read.append)
    assert [each for each in problems if not (has_targets and "predictions" in each)] == []
    assert sum(read) == sum(s.bytes for s in manifest.train_shards + manifest.eval_shards)
    for count in ("sequences", "used_positions", *["predictions"] * has_targets):
        other = dataclasses.replace(manifest.train, **{count: 7})
        problems = check.check(dataclasses.replace(manifest, train=other), directory)
        assert "instead of 7" in "\n".join(problems)


def test_damaged_missing_extra_and_swapped_shards_are_found(data):
    manifest, directory = data
    rng = np.random.default_rng(0)
    first, second, third, fourth = (directory / s.name for s in manifest.train_shards)
    content = bytearray(fourth.read_bytes())
    third.write_bytes(content)
    content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    fourth.write_bytes(content)
    first.write_bytes(first.read_bytes()[:-7])
    second.unlink()
    (directory / "train-00077-of-00078.tfrecord").write_bytes(b"")
    text = "\n".join(problems_of(directory))
    assert f"{first.name}: truncated" in text
    assert f"{second.name} is missing" in text
    assert f"{third.name}: was changed" in text
    assert f"{fourth.name}: " in text
    assert "train-00077-of-00078.tfrecord is not in the manifest" in text


@pytest.mark.parametrize(
    "spoil,what",
    [
        (lambda t: t.__setitem__((1, 5), 199_000), "cannot be parsed|vocabulary"),
        (lambda t: t.__setitem__((1, 0), 9), r"does not begin with \[CLS\]"),
        (lambda t: t.__setitem__((1, 4), 0), "padding before text"),
        (lambda t: t.__setitem__((1, 5), 6), r"contains \[MASK\]"),
        (lambda t: t.__setitem__((1, slice(1, 64)), 5), "predicts nothing"),
    ],
)
def test_invalid_records_are_found(tmp_path, spoil, what):
    made = synthetic.write(tmp_path, (4, 4), vocab_size=300_000)
    shard = made.train_shards[0]
    tokens, starts = synthetic.random_records(np.random.default_rng(0), 4, 64, 200)
    starts[:] = False
    spoil(tokens)
    if "vocabulary" in what:
        made = dataclasses.replace(made, vocab_size=70_000)
    encoded = tfrecords.encode_dynamic(tokens.astype("<i4"), np.packbits(starts, axis=1))
    content = tfrecords.frame_records(encoded)
    (tmp_path / shard.name).write_bytes(content)
    sha = hashlib.sha256(content).hexdigest()
    shard = dataclasses.replace(shard, sha256=sha, bytes=len(content))
    changed = dataclasses.replace(made, train_shards=(shard, *made.train_shards[1:]))
    synthetic.save(changed, str(tmp_path))
    problems = problems_of(tmp_path)
    assert any(re.search(f"{shard.name}: record.* {what}", p) for p in problems), problems


# --- checks before training starts ---


@pytest.fixture
def made(tmp_path):
    """Write a data set with two training shards to `tmp_path`."""
    return synthetic.write(tmp_path, (4, 4))


def to_bucket(folder, bucket):
    """Copy a data set to a bucket, and return its new path."""
    for path in folder.iterdir():
        storage.upload(str(path), f"{bucket}/data/{path.name}")
    return f"{bucket}/data"


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_replaced_cut_or_removed_shard_is_named(place, tmp_path, bucket, made):
    directory = to_bucket(tmp_path, bucket) if place == "bucket" else str(tmp_path)
    assert check.check_files(directory) == made
    name = made.train_shards[1].name
    path = storage.join(directory, name)
    storage.write_bytes(path, storage.read_bytes(path)[::-1])  # The length stays the same.
    with pytest.raises(BadInput, match=f"{name} was changed"):
        check.check_files(directory)
    assert check.check_files(directory, splits=("eval",)) == made
    storage.write_bytes(path, b"short")
    with pytest.raises(BadInput, match=f"{name} has 5 bytes"):
        check.check_files(directory)
    storage.delete(path)
    with pytest.raises(BadInput, match=name):
        check.check_files(directory)


def test_the_requests_do_not_grow_with_the_shards(tmp_path, bucket, fake_gcs):
    synthetic.write(tmp_path, (3,) * 12, ())
    data_dir = to_bucket(tmp_path, bucket)
    fake_gcs.log(clear=True)
    check.check_files(data_dir)
    assert len(fake_gcs.log()) == 2  # One request reads the manifest, one lists the folder.


def test_another_tokenizer_is_named(tmp_path, tokenizer_path):
    tokenizer, path = read_tokenizer(tokenizer_path), tmp_path / "tokenizer.model"
    shutil.copy(tokenizer_path, path)
    ids = tokenizer.special_ids
    stated = {"tokenizer_sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size}
    made = synthetic.write(tmp_path, special_ids=ids, **stated)
    assert check.check_files(str(tmp_path)) == made
    path.write_bytes(b"another")
    problem = "tokenizer.model is not the tokenizer of this data set"
    assert check.compare_tokenizer(made, str(tmp_path)) == problem
    path.unlink()
    assert "tokenizer.model is missing" in check.check(made, str(tmp_path))
