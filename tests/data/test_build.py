from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja import storage
from bigbird_ja.data import build, records, shards, verify, work
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage import lease
from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.text import corpus as corpus_lib
from bigbird_ja.text import tokenizer as tokenizer_lib
from tests.data import making

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def small_blocks():
    """Blocks of a few documents, so that a small corpus has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bigbird_ja.data.blocks._BLOCK_CHARACTERS", 20_000)
        patch.setattr("bigbird_ja.data.blocks._CHARACTERS_PER_POSITION", 1)
        yield


@pytest.fixture(scope="module")
def made(sample_corpus, tokenizer_path, tmp_path_factory, small_blocks):
    """A dynamic data set of the sample corpus."""
    output = str(tmp_path_factory.mktemp("made") / "data")
    result, was_there = build.make_data(making.request(sample_corpus, tokenizer_path, output))
    assert not was_there
    return result, output


def test_every_token_of_the_corpus_is_there_once(made, sample_corpus, tokenizer_path):
    manifest, output = made
    tokenizer = tokenizer_lib.load(tokenizer_path)
    texts = [d.text for d in corpus_lib.open_corpus([sample_corpus]).documents()]
    special = tokenizer.special
    found = {
        split: np.concatenate([*making.unmasked(manifest, output, split)]) for split in build.SPLITS
    }
    outside = [special.pad, special.cls, special.sep]
    counted = sum(np.bincount(f[~np.isin(f, outside)], minlength=1200) for f in found.values())
    expected = np.bincount(np.concatenate(tokenizer.encode_arrays(texts)), minlength=1200)
    np.testing.assert_array_equal(counted, expected)
    assert manifest.tokens == expected.sum() and manifest.documents == len(texts)
    assert manifest.density > 0.97
    used = sum(int((f != special.pad).sum()) for f in found.values())
    assert used == manifest.train.used_positions + manifest.eval.used_positions


def test_documents_held_out_are_never_trained_on(made, sample_corpus, tokenizer_path):
    manifest, output = made
    tokenizer = tokenizer_lib.load(tokenizer_path)
    titles = {}
    for document in corpus_lib.open_corpus([sample_corpus]).documents():
        titles[tuple(tokenizer.encode(document.text)[:12])] = document.index
    found = {
        split: {
            titles[tuple(piece[:12])]
            for tokens in making.unmasked(manifest, output, split)
            for piece in making.fragments_of(tokens, tokenizer.special)
            if tuple(piece[:12]) in titles
        }
        for split in build.SPLITS
    }
    assert len(found["eval"]) == manifest.eval.documents == 6
    assert not found["eval"] & found["train"]


def test_shards_are_equal_and_mixed(made):
    manifest, output = made
    counts = [shard.records for shard in manifest.train_shards]
    assert len(counts) == 4 and max(counts) - min(counts) <= 1
    assert sum(counts) == manifest.train.sequences
    assert verify.fast_check(output) == manifest
    assert sorted(p.name for p in Path(output).iterdir()) == sorted(
        [
            "manifest.json",
            "tokenizer.model",
            *(s.name for s in manifest.train_shards + manifest.eval_shards),
        ]
    )


@pytest.mark.parametrize("changes", [{}, {"masking": "static", "dupe_factor": 2}, {"nsp": True}])
def test_the_bytes_do_not_depend_on_the_number_of_workers(
    tmp_path, sample_corpus, tokenizer_path, changes
):
    outputs = [str(tmp_path / str(n)) for n in (1, 2)]
    for n, output in zip((1, 2), outputs, strict=True):
        build.make_data(making.request(sample_corpus, tokenizer_path, output, n, **changes))
    assert making.digests(outputs[0]) == making.digests(outputs[1])


def test_static_records_are_the_six_features(tmp_path, sample_corpus, tokenizer_path):
    output = str(tmp_path / "data")
    request = making.request(
        sample_corpus, tokenizer_path, output, masking="static", dupe_factor=3, input_mask=True,
        nsp=True,
    )  # fmt: skip
    manifest, _ = build.make_data(request)
    assert manifest.train.sequences % 3 == 0 and manifest.dupe_factor == 3
    lengths = {
        "input_ids": 128, "input_mask": 128, "segment_ids": 128, "masked_lm_positions": 20,
        "masked_lm_ids": 20, "next_sentence_labels": 1, "document_ids": 128,
    }  # fmt: skip
    spec = {name: tf.io.FixedLenFeature([n], tf.int64) for name, n in lengths.items()}
    spec["masked_lm_weights"] = tf.io.FixedLenFeature([20], tf.float32)
    predictions, labels, seen = 0, set(), set()
    for shard in manifest.train_shards:
        for record in tf.data.TFRecordDataset(f"{output}/{shard.name}"):
            parsed = {k: v.numpy() for k, v in tf.io.parse_single_example(record, spec).items()}
            padding = parsed["input_ids"] == 0
            np.testing.assert_array_equal(parsed["input_mask"], ~padding)
            np.testing.assert_array_equal(parsed["document_ids"] == 0, padding)
            predictions += int(parsed["masked_lm_weights"].sum())
            labels.add(int(parsed["next_sentence_labels"][0]))
            seen.add(parsed["input_ids"].tobytes())
            assert parsed["masked_lm_weights"].sum() >= 1
    assert labels == {0, 1} and predictions == manifest.train.predictions
    assert len(seen) > 0.99 * manifest.train.sequences  # copies are masked anew


def test_the_same_again_is_finished_and_other_settings_are_refused(
    made, sample_corpus, tokenizer_path
):
    manifest, output = made
    before = making.digests(output)
    again, was_there = build.make_data(making.request(sample_corpus, tokenizer_path, output))
    assert was_there and again == manifest
    with pytest.raises(BadInput, match="seed"):
        build.make_data(making.request(sample_corpus, tokenizer_path, output, seed=2))
    assert making.digests(output) == before


def test_overwrite_replaces(tmp_path, sample_corpus, tokenizer_path):
    output = str(tmp_path / "data")
    build.make_data(making.request(sample_corpus, tokenizer_path, output, num_shards=8))
    made, _ = build.make_data(
        making.request(sample_corpus, tokenizer_path, output, num_shards=2, overwrite=True)
    )
    assert len(made.train_shards) == 2 and verify.fast_check(output) == made


def test_foreign_shards_and_damaged_data_are_refused(tmp_path, sample_corpus, tokenizer_path):
    output = tmp_path / "data"
    output.mkdir()
    (output / "train-00000-of-00001.tfrecord").write_bytes(b"not ours")
    for overwrite in (False, True):
        request = making.request(sample_corpus, tokenizer_path, str(output), overwrite=overwrite)
        with pytest.raises(BadInput, match="which no make-data made"):
            build.make_data(request)
    assert [path.name for path in output.iterdir()] == ["train-00000-of-00001.tfrecord"]
    assert (output / "train-00000-of-00001.tfrecord").read_bytes() == b"not ours"
    (output / "train-00000-of-00001.tfrecord").unlink()
    made, _ = build.make_data(making.request(sample_corpus, tokenizer_path, str(output)))
    (output / made.train_shards[0].name).unlink()
    with pytest.raises(BadInput, match="is missing"):
        build.make_data(making.request(sample_corpus, tokenizer_path, str(output)))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_tiny_corpora(tmp_path, tokenizer_path, number):
    corpus = making.write_corpus(tmp_path / "c.jsonl", ["吾輩は猫である。名前は無い。"] * number)
    output = str(tmp_path / "data")
    manifest, _ = build.make_data(making.request(corpus, tokenizer_path, output, num_shards=8))
    assert manifest.train.sequences == 1 and len(manifest.train_shards) == 1
    assert manifest.eval.documents == (1 if number > 1 else 0)
    assert manifest.train.documents == number - manifest.eval.documents


def test_text_that_cannot_be_predicted_leaves_nothing(tmp_path, tokenizer_path, monkeypatch):
    corpus = making.write_corpus(tmp_path / "c.jsonl", ["あ", "い"])
    monkeypatch.setattr("bigbird_ja.data.masking.is_ordinary", lambda tokens, rule: tokens < 0)
    output = tmp_path / "data"
    with pytest.raises(BadInput, match="no text that could be predicted"):
        build.make_data(making.request(corpus, tokenizer_path, str(output)))
    assert not output.exists()


def test_bad_text_in_the_middle_leaves_nothing(tmp_path, tokenizer_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "吾輩は猫である。"}\n' * 50 + '{"body": "x"}\n')
    output = tmp_path / "data"
    with pytest.raises(BadInput, match="51"):
        build.make_data(making.request(str(corpus), tokenizer_path, str(output)))
    assert not output.exists()


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.mark.parametrize("survives", range(0, 12, 2))
def test_stopped_after_any_file_it_goes_on_with_the_same_bytes(
    tmp_path, made, sample_corpus, tokenizer_path, small_blocks, monkeypatch, survives
):
    output = str(tmp_path / "data")
    request = making.request(sample_corpus, tokenizer_path, output)
    written: list[str] = []
    whole_block, whole_shard = build.blocks_lib.write_block, shards.write_shard

    def noted(function, place):
        def write(*arguments):
            if len(written) == survives:
                raise Killed
            written.append(str(arguments[place]))
            return function(*arguments)

        return write

    monkeypatch.setattr(build.blocks_lib, "write_block", noted(whole_block, 0))
    monkeypatch.setattr(shards, "write_shard", noted(whole_shard, 3))
    with pytest.raises(Killed):
        build.make_data(request)
    with pytest.raises(BadInput, match="no finished data set"):
        manifest_lib.load(output)
    before, survives = list(written), 1_000
    build.make_data(request)
    redone = [path for path in written[len(before) :] if path in before]
    assert len(redone) <= 1  # its note was not written
    assert making.digests(output) == making.digests(made[1])


def test_unfinished_work_of_other_settings_is_refused(
    tmp_path, sample_corpus, tokenizer_path, monkeypatch
):
    output = str(tmp_path / "data")

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_shard", killed)
        with pytest.raises(Killed):
            build.make_data(making.request(sample_corpus, tokenizer_path, output))
    with pytest.raises(BadInput, match="unfinished work of other settings: --seed"):
        build.make_data(making.request(sample_corpus, tokenizer_path, output, seed=2))
    build.make_data(making.request(sample_corpus, tokenizer_path, output, seed=2, overwrite=True))


def without_versions(settings):
    return {k: v for k, v in settings.items() if not k.endswith("_version")}


@pytest.mark.parametrize("changes", [{}, {"nsp": True}])
def test_a_data_set_of_an_earlier_version_is_finished_and_keeps_its_masks(
    tmp_path, sample_corpus, tokenizer_path, changes
):
    output = str(tmp_path / "data")
    request = making.request(sample_corpus, tokenizer_path, output, **changes)
    new, _ = build.make_data(request)
    assert new.rule().version == new.masking_version == 2
    old = dataclasses.replace(new, masking_version=1, pairs_version=1)
    manifest_lib.save(old, output)
    found, was_there = build.make_data(request)
    assert was_there and found == old
    assert found.rule().version == 1


def test_work_that_an_earlier_version_began_goes_on_with_its_masks(
    tmp_path, sample_corpus, tokenizer_path, monkeypatch
):
    changes = {"masking": "static", "dupe_factor": 2}

    def killed(*_):
        raise Killed

    def begin(output, **changes):
        request = making.request(sample_corpus, tokenizer_path, output, **changes)
        with monkeypatch.context() as patch:
            patch.setattr(shards, "write_shard", killed)
            with pytest.raises(Killed):
                build.make_data(request)
        path = Path(output) / work.NAME / "settings.json"
        path.write_text(json.dumps(without_versions(json.loads(path.read_text()))))
        return request

    outputs = [str(tmp_path / name) for name in ("begun", "all", "nsp")]
    manifest, _ = build.make_data(begin(outputs[0], **changes))
    whole = making.request(sample_corpus, tokenizer_path, outputs[1], **changes)
    old_rule = dataclasses.replace(whole.spec, masking_version=1)
    assert manifest.masking_version == 1
    assert manifest == build.make_data(dataclasses.replace(whole, spec=old_rule))[0]
    with pytest.raises(BadInput, match="pairs for next-sentence prediction"):
        build.make_data(begin(outputs[2], nsp=True))


@pytest.mark.parametrize("masking,unit,version", [
    ("static", "subword", 1), ("static", "whole_word", 2), ("dynamic", "subword", 2),
])  # fmt: skip
def test_data_in_which_no_word_can_be_cut_is_that_of_earlier_versions(
    sample_corpus, tokenizer_path, masking, unit, version
):
    """A run on dynamic data may choose another unit, so there the version matters."""
    request = making.request(
        sample_corpus, tokenizer_path, "unused", masking=masking, mask_unit=unit
    )  # fmt: skip
    assert request.spec.masking_version == version


def test_masks_of_a_later_version_are_refused(made):
    later = dataclasses.replace(made[0], masking_version=3)
    with pytest.raises(BadInput, match="use a newer bigbird-ja"):
        manifest_lib.from_json(manifest_lib.to_json(later).encode(), "manifest.json")


def test_sigkill_at_random_instants_then_the_same_bytes(
    tmp_path, sample_corpus, tokenizer_path, run_cli
):
    flags = [
        f"--input={sample_corpus}=1.5", f"--tokenizer={tokenizer_path}", "--seq_length=128",
        "--max_predictions_per_seq=20", "--num_shards=16", "--num_workers=2",
        "--masking=static", "--dupe_factor=10",
    ]  # fmt: skip
    whole, output = str(tmp_path / "whole"), str(tmp_path / "killed")
    assert run_cli("make-data", *flags, f"--output_dir={whole}").status == 0
    command = [sys.executable, "-m", "bigbird_ja", "make-data", *flags, f"--output_dir={output}"]
    rng = np.random.default_rng(0)
    for _ in range(4):
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        wait_for_work(output, process)
        time.sleep(float(rng.uniform(0, 1.0)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if os.path.exists(os.path.join(output, "manifest.json")):
            break
    assert run_cli("make-data", *flags, f"--output_dir={output}").status == 0
    assert making.digests(output) == making.digests(whole)
    assert not os.path.exists(os.path.join(output, work.NAME))


def wait_for_work(output: str, process: subprocess.Popen[bytes]) -> None:
    """Until the command has begun to work, or has ended."""
    while process.poll() is None:
        if os.path.exists(os.path.join(output, work.NAME)):
            return
        time.sleep(0.05)


def hold(directory: str, ready, release) -> None:
    with work.exclusive(directory):
        ready.set()
        release.wait(60)


def test_two_at_once_and_the_second_is_refused_until_the_first_dies(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    first = context.Process(target=hold, args=(str(tmp_path), ready, release), daemon=True)
    first.start()
    assert ready.wait(60)
    with (
        pytest.raises(BadInput, match=f"process {first.pid}.* is making data"),
        work.exclusive(str(tmp_path)),
    ):
        pass
    first.kill()
    first.join()
    with work.exclusive(str(tmp_path)):
        pass
    assert os.listdir(tmp_path) == []


def test_a_lock_on_a_bucket_is_refused_and_removed(bucket, monkeypatch):
    path = storage.join(bucket, "data")
    with work.exclusive(path):
        # The age that a lock file states says nothing: clocks differ.
        monkeypatch.setattr(time, "time", lambda: 4e9)
        with pytest.raises(BadInput, match="is making data"), work.exclusive(path):
            pass
        assert storage.list_files(path) == [work.LOCK_NAME]
    assert storage.list_files(path) == []


def test_who_lost_the_lock_writes_no_manifest(tmp_path, sample_corpus, tokenizer_path, monkeypatch):
    output = tmp_path / "data"
    whole = build._write_shards

    def robbed(*arguments):
        made = whole(*arguments)
        thief = dataclasses.replace(lease.this_owner(), host="elsewhere", pid=1, id="x")
        (output / work.LOCK_NAME).write_text(json.dumps(dataclasses.asdict(thief)))
        return made

    monkeypatch.setattr(build, "_write_shards", robbed)
    with pytest.raises(LeaseLost, match="process 1 on host elsewhere has taken over"):
        build.make_data(making.request(sample_corpus, tokenizer_path, str(output)))
    assert not (output / "manifest.json").exists() and (output / work.LOCK_NAME).exists()


def test_to_a_bucket_with_faults_the_same_bytes_or_nothing_that_looks_whole(
    bucket, fake_gcs, tmp_path, sample_corpus, tokenizer_path, made, small_blocks, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    output = storage.join(bucket, "data")
    request = making.request(sample_corpus, tokenizer_path, output)
    whole = shards.write_shard

    def failing(plan, shard, *rest):
        if shard == 2:
            raise StorageError("the bucket refuses")
        return whole(plan, shard, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_shard", failing)
        with pytest.raises(StorageError):
            build.make_data(request)
    with pytest.raises(BadInput, match="no finished data set"):
        verify.fast_check(output)
    manifest, _ = build.make_data(request)
    assert manifest.fingerprint == made[0].fingerprint
    assert verify.fast_check(output) == manifest
    for shard in manifest.train_shards:
        data = storage.read_bytes(storage.join(output, shard.name))
        assert data == (Path(made[1]) / shard.name).read_bytes()
    assert build.make_data(request)[1]


def test_more_shards_than_records_are_fewer():
    assert shards.choose_num_shards(1, 9000) == 1
    assert shards.choose_num_shards(20, 9000) == 2
    assert shards.choose_num_shards(1600, 9000) == 32
    assert shards.choose_num_shards(80_000, 9000) == 384
    assert shards.choose_num_shards(10**9, 25_000) == 8192


def test_records_can_be_read_without_this_program(made):
    manifest, output = made
    name = manifest.train_shards[0].name
    with open(f"{output}/{name}", "rb") as file:
        ours = list(records.frames(file))
    theirs = [r.numpy() for r in tf.data.TFRecordDataset(f"{output}/{name}")]
    assert ours == theirs
