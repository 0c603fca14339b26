"""A data set that is not what its manifest says, or is changed while a run reads it."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import pipeline, verify
from bigbird_ja.data.manifest import UNKNOWN, Manifest, Shard, Split
from bigbird_ja.data.verify import DataGuard
from bigbird_ja.process.errors import BadInput, StorageError
from testkit import synthetic
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
        dupe_factor=1,
        input_mask=False,
        tokenizer_sha256="",
        **UNKNOWN,
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


def test_shards_of_another_data_set_with_the_same_sizes_are_named(tmp_path: Path) -> None:
    made = synthetic.write(tmp_path / "a", (4, 4), seed=1)
    synthetic.write(tmp_path / "b", (4, 4), seed=2)
    assert verify.fast_check(str(tmp_path / "a")) == made
    name = made.train_shards[1].name
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    with pytest.raises(BadInput, match=f"{name} is not the file that was made"):
        verify.fast_check(str(tmp_path / "a"))
    assert verify.fast_check(str(tmp_path / "a"), splits=("eval",)) == made


@pytest.mark.parametrize("content", [b"another", None])
def test_another_tokenizer_is_refused(tmp_path: Path, content: bytes | None) -> None:
    made = synthetic.write(tmp_path, (4, 4))
    sha256 = hashlib.sha256(b"the one").hexdigest()
    manifest_lib.save(dataclasses.replace(made, tokenizer_sha256=sha256), str(tmp_path))
    (tmp_path / "tokenizer.model").write_bytes(b"the one")
    verify.fast_check(str(tmp_path))
    if content is None:
        (tmp_path / "tokenizer.model").unlink()
    else:
        (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(BadInput, match=r"tokenizer\.model is (missing|not the one)"):
        verify.fast_check(str(tmp_path))


def test_the_requests_do_not_grow_with_the_shards(
    tmp_path: Path, bucket: str, fake_gcs: FakeGcs
) -> None:
    synthetic.write(tmp_path, (3,) * 12)
    found = []
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
    manifest_lib.save(manifest, f"{bucket}/data")
    fake_gcs.log(clear=True)
    verify.fast_check(f"{bucket}/data")
    found = fake_gcs.log()
    assert len(found) == 2  # the manifest and one listing


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


def test_nothing_to_check_is_said_without_tensorflow(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from bigbird_ja import cli\n"
        f"status = cli.run_command_line(['check-data', '--data_dir={tmp_path}'])\n"
        "assert status == 2 and 'tensorflow' not in sys.modules, status\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
