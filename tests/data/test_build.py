"""`make-data` packs every token once, in equal shards, with the same bytes for any worker count."""

import dataclasses
import functools
import multiprocessing.pool
import os
import sys
import types
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja import storage
from bigbird_ja.data import blocks, build, check, parsing, ray_runner, shards
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage.ownership import MARK
from bigbird_ja.text import corpus as corpus_lib
from bigbird_ja.text.load import read_tokenizer
from tests.data import making


@pytest.fixture(scope="module")
def made(sample_corpus, tokenizer_path, tmp_path_factory):
    """A dynamic data set of the sample corpus, from several blocks."""
    output = str(tmp_path_factory.mktemp("made") / "data")
    with making.small_blocks():
        manifest, was_there = build.make_data(making.request(sample_corpus, tokenizer_path, output))
    assert not was_there
    return manifest, output


def test_every_token_of_the_corpus_is_there_once_in_equal_shards(
    made, sample_corpus, tokenizer_path
):
    manifest, output = made
    tokenizer = read_tokenizer(tokenizer_path)
    texts = list(corpus_lib.open_corpus([sample_corpus]).texts())
    special = tokenizer.special
    files = [f"{output}/{s.name}" for s in manifest.train_shards + manifest.eval_shards]
    (batch,) = tf.data.TFRecordDataset(files).batch(10**6)
    tokens = parsing.parse_dynamic(manifest, batch)["tokens"].numpy().ravel()
    counted = np.bincount(tokens, minlength=1200)
    used = len(tokens) - counted[special.pad]
    counted[[special.pad, special.cls, special.sep]] = 0
    expected = np.bincount(np.concatenate(tokenizer.encode_arrays(texts)), minlength=1200)
    np.testing.assert_array_equal(counted, expected)
    assert manifest.tokens == expected.sum() and manifest.documents == len(texts)
    assert used == manifest.train.used_positions + manifest.eval.used_positions
    assert manifest.density > 0.97
    counts = [shard.records for shard in manifest.train_shards]
    assert len(counts) == 4 and max(counts) - min(counts) <= 1
    assert sum(counts) == manifest.train.sequences
    assert check.fast_check(output)[0] == manifest
    names = {s.name for s in manifest.train_shards + manifest.eval_shards}
    assert set(os.listdir(output)) == names | {"manifest.json", "tokenizer.model", MARK}


def test_the_bytes_do_not_depend_on_the_number_of_workers(
    made, tmp_path, sample_corpus, tokenizer_path
):
    with making.small_blocks():
        build.make_data(making.request(sample_corpus, tokenizer_path, str(tmp_path / "data"), 2))
    assert making.tree(tmp_path / "data") == making.tree(made[1])


def test_a_corpus_that_changes_while_it_is_read_is_refused(base, tmp_path, tokenizer_path):
    """The data set stated the checksum of a text that it was not made of."""
    lines = making.write_corpus(tmp_path / "c.jsonl", ["吾輩は猫である。"] * 9)
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.write(lines, "c.jsonl")
    for name in ("c.jsonl", "c.zip"):
        storage.upload(str(tmp_path / name), f"{base}/{name}")
        request = making.request(f"{base}/{name}", tokenizer_path, str(tmp_path / name[2:]))
        storage.upload(str(tmp_path / name), f"{base}/{name}")
        with pytest.raises(BadInput, match=rf"{name}.*: changed while this command read it"):
            build.make_data(request)
        assert not (tmp_path / name[2:]).exists()
        again = making.request(f"{base}/{name}", tokenizer_path, request.output_dir)
        assert build.make_data(again)[0].documents == 9


@pytest.fixture
def ray_stand_in(monkeypatch):
    """Threads in place of Ray's pool, which has the interface of the standard library's; Ray itself
    takes a minute to start: tests/data/test_runners.py."""
    ray, pools = types.ModuleType("ray"), types.ModuleType("ray.util.multiprocessing")
    ray.init = ray.shutdown = lambda **_: None
    ray.cluster_resources, ray.nodes = lambda: {"CPU": 2.0}, lambda: [{}]
    ray.exceptions = types.SimpleNamespace(RayError=type("RayError", (Exception,), {}))
    pools.Pool = lambda *given, ray_remote_args: multiprocessing.pool.ThreadPool(*given)
    modules = {"ray": ray, "ray.util": types.ModuleType("ray.util"), pools.__name__: pools}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return ray


def test_blocks_that_are_packed_elsewhere_make_the_same_bytes(
    made, tmp_path, sample_corpus, tokenizer_path, ray_stand_in, monkeypatch
):
    with making.small_blocks():
        there = making.request(sample_corpus, tokenizer_path, str(tmp_path / "there"))
        pack = functools.partial(ray_runner.pack_blocks, num_workers=None)
        build.make_data(dataclasses.replace(there, pack=pack))
    assert making.tree(made[1]) == making.tree(tmp_path / "there")

    def lost(block):
        raise ray_stand_in.exceptions.RayError("an actor died")

    monkeypatch.setattr(blocks, "packed", lost)
    lost = making.request(sample_corpus, tokenizer_path, str(tmp_path / "lost"))
    with pytest.raises(StorageError, match="an actor died: run the same command again"):
        build.make_data(dataclasses.replace(lost, pack=pack))


def test_static_records_are_the_classic_features(tmp_path, sample_corpus, tokenizer_path):
    output = str(tmp_path / "data")
    changes = {"masking": "static", "dupe_factor": 3, "input_mask": True, "nsp": True}
    made = making.request(sample_corpus, tokenizer_path, output, **changes)
    manifest, _ = build.make_data(made)
    assert manifest.train.sequences % 3 == 0 and manifest.dupe_factor == 3
    lengths = dict.fromkeys(("input_ids", "input_mask", "segment_ids", "document_ids"), 128)
    lengths |= {"masked_lm_positions": 20, "masked_lm_ids": 20, "next_sentence_labels": 1}
    features = {name: tf.io.FixedLenFeature([n], tf.int64) for name, n in lengths.items()}
    features["masked_lm_weights"] = tf.io.FixedLenFeature([20], tf.float32)
    files = [f"{output}/{shard.name}" for shard in manifest.train_shards]
    (batch,) = tf.data.TFRecordDataset(files).batch(10**6)
    parsed = {k: v.numpy() for k, v in tf.io.parse_example(batch, features).items()}
    padding = parsed["input_ids"] == 0
    np.testing.assert_array_equal(parsed["input_mask"], ~padding)
    np.testing.assert_array_equal(parsed["document_ids"] == 0, padding)
    assert (parsed["masked_lm_weights"].sum(1) >= 1).all()
    assert parsed["masked_lm_weights"].sum() == manifest.train.predictions
    assert set(parsed["next_sentence_labels"].ravel()) == {0, 1}
    different = {row.tobytes() for row in parsed["input_ids"]}
    assert len(different) > 0.99 * manifest.train.sequences  # copies are masked anew


@pytest.mark.parametrize("number", [1, 2])
def test_tiny_corpora(tmp_path, tokenizer_path, number):
    texts = ["吾輩は猫である。名前は無い。"] * number
    corpus = making.write_corpus(tmp_path / "c.jsonl", ["", *texts, " \n"])
    output = str(tmp_path / "data")
    manifest, _ = build.make_data(making.request(corpus, tokenizer_path, output, num_shards=8))
    assert manifest.train.sequences == 1 and len(manifest.train_shards) == 1
    assert manifest.eval.documents == (1 if number > 1 else 0)
    assert manifest.train.documents == number - manifest.eval.documents


def test_text_that_cannot_be_predicted_leaves_nothing(tmp_path, tokenizer_path, monkeypatch):
    corpus = making.write_corpus(tmp_path / "c.jsonl", ["あ", "い"])
    monkeypatch.setattr("bigbird_ja.data.masking.is_ordinary", lambda tokens, rule: tokens < 0)
    with pytest.raises(BadInput, match="no text that could be predicted"):
        build.make_data(making.request(corpus, tokenizer_path, str(tmp_path / "data")))
    assert not (tmp_path / "data").exists()


def test_more_shards_than_records_are_fewer():
    expected = {1: 1, 30: 2, 1600: 32, 80_000: 384, 10**9: 8192}
    assert {n: shards.choose_num_shards(n, 9000) for n in expected} == expected
