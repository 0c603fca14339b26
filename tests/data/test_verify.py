"""A data set that is not what its manifest says, or is changed while a run reads it."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import pipeline, verify
from bigbird_ja.data.manifest import Manifest, Shard
from bigbird_ja.data.verify import DataGuard
from bigbird_ja.process.errors import BadInput, StorageError
from testkit import synthetic
from testkit.fakes.gcs_process import FakeGcs

NAMES = ("train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord")
DATA = b"records"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Two shards of `DATA`."""
    shards = tuple(
        Shard(name, 1, len(DATA), "", crc32c=storage.crc32c_text(DATA)) for name in NAMES
    )
    made = synthetic.write(tmp_path / "any", (4, 4))
    return dataclasses.replace(made, train_shards=shards, eval_shards=())


def _make(directory: str) -> None:
    storage.make_directory(directory)
    for name in NAMES:
        storage.write_bytes(storage.join(directory, name), DATA)


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_replaced_or_removed_shard_is_named(
    place: str, tmp_path: Path, bucket: str, manifest: Manifest
) -> None:
    directory = str(tmp_path / "data") if place == "disk" else f"{bucket}/data"
    _make(directory)
    guard = DataGuard(manifest, directory)
    guard.check()
    path = storage.join(directory, NAMES[1])
    storage.write_bytes(path, DATA[::-1])  # as long as before: nothing else would notice
    with pytest.raises(StorageError, match=NAMES[1]):
        guard.check()
    storage.delete(path)
    with pytest.raises(StorageError, match=NAMES[1]):
        guard.check()
    with pytest.raises(BadInput, match=NAMES[1]):
        DataGuard(manifest, directory)


def test_missing_extra_truncated_and_other_shards_are_named(tmp_path: Path) -> None:
    made = synthetic.write(tmp_path / "a", (4, 4), seed=1)
    synthetic.write(tmp_path / "b", (4, 4), seed=2)
    directory = tmp_path / "a"
    assert verify.fast_check(str(directory)) == made
    name = made.train_shards[1].name
    whole = (directory / name).read_bytes()
    shutil.copy(tmp_path / "b" / name, directory / name)  # of the same size
    with pytest.raises(BadInput, match=f"{name} is not the file that was made"):
        verify.fast_check(str(directory))
    assert verify.fast_check(str(directory), splits=("eval",)) == made
    (directory / name).write_bytes(whole[:-1])
    with pytest.raises(BadInput, match=f"{name} has"):
        verify.fast_check(str(directory))
    (directory / name).unlink()
    with pytest.raises(BadInput, match=f"{name} is missing"):
        verify.fast_check(str(directory))
    (directory / name).write_bytes(whole)
    (directory / "train-00009-of-00010.tfrecord").write_bytes(b"")
    with pytest.raises(BadInput, match=r"train-00009-of-00010.* is not in the manifest"):
        verify.fast_check(str(directory))


def test_the_requests_do_not_grow_with_the_shards(
    tmp_path: Path, bucket: str, fake_gcs: FakeGcs
) -> None:
    synthetic.write(tmp_path, (3,) * 12)
    for path in tmp_path.iterdir():
        storage.upload(str(path), f"{bucket}/data/{path.name}")
    manifest = manifest_lib.load(f"{bucket}/data")
    shards = [
        dataclasses.replace(s, crc32c=storage.crc32c_of_file(str(tmp_path / s.name))[0])
        for s in manifest.train_shards + manifest.eval_shards
    ]
    manifest = dataclasses.replace(
        manifest, train_shards=tuple(shards[:12]), eval_shards=tuple(shards[12:])
    )
    synthetic.save(manifest, f"{bucket}/data")
    fake_gcs.log(clear=True)
    verify.fast_check(f"{bucket}/data")
    assert len(fake_gcs.log()) == 2  # the manifest and one listing


def test_a_damaged_shard_is_named_when_reading_fails(tmp_path: Path) -> None:
    made = synthetic.write(tmp_path, (4, 4))
    path = tmp_path / made.train_shards[1].name
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    batches = pipeline.batches(made, str(tmp_path), seed=1, global_batch_size=4, num_steps=4)
    with (
        pytest.raises(BadInput, match=f"{path.name} is not the file that was made"),
        verify.named_damage(made, str(tmp_path)),
    ):
        list(batches)


def test_a_passing_fault_of_reading_stays_one(tmp_path: Path) -> None:
    made = synthetic.write(tmp_path, (4, 4))
    with (
        pytest.raises(tf.errors.DataLossError),
        verify.named_damage(made, str(tmp_path)),
    ):
        raise tf.errors.DataLossError(None, None, "corrupted record at 12")


def test_no_data_is_refused_without_importing_tensorflow(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from bigbird_ja.cli import main\n"
        f"status = main.run_command_line(['check-data', '--data_dir={tmp_path}'])\n"
        "assert status == 2 and 'tensorflow' not in sys.modules, status\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
