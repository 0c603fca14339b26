"""`make-data` packs every token once, in equal shards, with the same bytes for any worker count."""

import dataclasses
import functools
import gzip
import io
import itertools
import json
import multiprocessing.pool
import os
import sys
import tracemalloc
import types
import zipfile
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja import storage
from bigbird_ja.data import blocks, build, check, ray_runner, shards, tfrecords
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage.ownership import MARK
from bigbird_ja.text import corpus as corpus_lib
from bigbird_ja.text import file_source, read_tokenizer
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
    tokens = tfrecords.parse_dynamic(manifest, batch)["tokens"].numpy().ravel()
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


@pytest.mark.parametrize("changes", [{}, {"masking": "static", "dupe_factor": 2, "nsp": True}])
def test_the_bytes_do_not_depend_on_the_number_of_workers(
    tmp_path, sample_corpus, tokenizer_path, changes
):
    with making.small_blocks():
        for workers in (1, 2):
            output = str(tmp_path / str(workers))
            build.make_data(
                making.request(sample_corpus, tokenizer_path, output, workers, **changes)
            )
    assert making.tree(str(tmp_path / "1")) == making.tree(str(tmp_path / "2"))


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
    tmp_path, sample_corpus, tokenizer_path, ray_stand_in, monkeypatch
):
    with making.small_blocks():
        here = making.request(sample_corpus, tokenizer_path, str(tmp_path / "here"))
        there = making.request(sample_corpus, tokenizer_path, str(tmp_path / "there"))
        pack = functools.partial(ray_runner.pack_blocks, num_workers=None)
        build.make_data(here)
        build.make_data(dataclasses.replace(there, pack=pack))
    assert making.tree(tmp_path / "here") == making.tree(tmp_path / "there")

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


TEXTS = [f"吾輩は猫である。名前はまだ無い、{i}匹目。" for i in range(12)]


def written(kind):
    """The bytes of a file of this kind, which holds `TEXTS`."""
    stem, _, packed = kind.partition(".")
    if packed == "gz":
        return gzip.compress(written(stem))
    if packed == "zst":
        pyarrow = pytest.importorskip("pyarrow", reason="needs the arrow extra")
        return pyarrow.compress(written(stem), codec="zstd", asbytes=True)
    if stem == "jsonl":
        return "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    if stem == "txt":
        return "\n\n".join(TEXTS).encode()
    if stem in ("csv", "tsv"):
        comma = {"csv": ",", "tsv": "\t"}[stem]
        return "".join(f"{i}{comma}{text}\n" for i, text in enumerate(["text", *TEXTS])).encode()
    pyarrow = pytest.importorskip("pyarrow", reason="needs the arrow extra")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the arrow extra")
    table, sink = pyarrow.table({"text": TEXTS}), io.BytesIO()
    if stem == "parquet":
        parquet.write_table(table, sink)
    else:
        with pyarrow.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
    return sink.getvalue()


KINDS = ("jsonl", "txt", "csv", "tsv", "jsonl.gz", "txt.zst", "csv.gz", "parquet", "arrow")


def test_every_kind_of_input_becomes_data(base, tmp_path, tokenizer_path):
    """A member of an archive was looked for in the storage: status 74 at every run."""
    files = {f"a{i}.{kind}": written(kind) for i, kind in enumerate(KINDS)}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        for name, content in files.items():
            opened.writestr(f"in/{name}", content)
    storage.make_directory(f"{base}/all")
    for name, content in {**files, "b.zip": archive.getvalue()}.items():
        storage.write_bytes(f"{base}/all/{name}", content)
    for number, name in enumerate([*files, "b.zip", "", "a*"]):
        output = str(tmp_path / f"data{number}")
        request = making.request(f"{base}/all/{name}", tokenizer_path, output, num_shards=1)
        manifest, _ = build.make_data(request)
        assert manifest.documents == len([*request.corpus.texts()]) >= len(TEXTS), name


def test_more_shards_than_records_are_fewer():
    expected = {1: 1, 30: 2, 1600: 32, 80_000: 384, 10**9: 8192}
    assert {n: shards.choose_num_shards(n, 9000) for n in expected} == expected


def test_empty_documents_are_read_twice_held_never_and_handed_on_to_nobody(tmp_path, monkeypatch):
    path, skipped, reads = tmp_path / "a.jsonl", Counter[int](), itertools.count()
    path.write_text('{"text": ""}\n' * 20_000 + '{"text": "一つ。"}\n', encoding="utf-8")
    read = file_source._text_of_json
    monkeypatch.setattr(file_source, "_text_of_json", lambda *a: (next(reads), read(*a))[1])
    tracemalloc.start()
    corpus = corpus_lib.open_corpus([str(path)])  # looks for the first text
    (block,) = blocks.cut_into_blocks([(corpus.texts(), 1.0)], 256, 0.0, 0, skipped)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (block.texts, skipped[0], next(reads)) == (("一つ。",), 20_000, 2 * 20_001)
    assert peak < 1 << 19, "26 bytes for each document would be more"
