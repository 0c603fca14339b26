"""`make-data` packs every token once into equal shards, for any number of workers."""

import os
import random
import zipfile
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja import storage
from bigbird_ja.data import build, check, parsing
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.storage.ownership import MANIFEST_NAME
from bigbird_ja.text import corpus as corpus_lib
from tests.data import making


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
    assert check.check_files(output) == manifest
    names = {s.name for s in manifest.train_shards + manifest.eval_shards}
    assert set(os.listdir(output)) == names | {"manifest.json", "tokenizer.model", MANIFEST_NAME}


def test_the_bytes_do_not_depend_on_the_number_of_workers(
    made, tmp_path, sample_corpus, tokenizer_path
):
    with making.small_blocks():
        build.make_data(making.request(sample_corpus, tokenizer_path, str(tmp_path / "data"), 2))
    assert making.tree(tmp_path / "data") == making.tree(made[1])


def test_a_corpus_that_changes_while_it_is_read_is_refused(base, tmp_path, tokenizer_path):
    lines = making.write_corpus(tmp_path / "c.jsonl", ["吾輩は猫である。"] * 9)
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.write(lines, "c.jsonl")
    for name in ("c.jsonl", "c.zip"):
        storage.upload(str(tmp_path / name), f"{base}/{name}")
        request = making.request(f"{base}/{name}", tokenizer_path, str(tmp_path / name[2:]))
        storage.upload(str(tmp_path / name), f"{base}/{name}")
        with pytest.raises(BadInput, match=rf"{name}.* changed while this command read it"):
            build.make_data(request)
        assert not (tmp_path / name[2:]).exists()
        again = making.request(f"{base}/{name}", tokenizer_path, request.output_dir)
        assert build.make_data(again)[0].documents == 9


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
    assert len(different) > 0.99 * manifest.train.sequences  # Each copy has different masks.


@pytest.mark.parametrize("number", [1, 2])
def test_corpora_of_one_and_two_documents_make_a_data_set(tmp_path, tokenizer_path, number):
    texts = ["吾輩は猫である。名前は無い。"] * number
    # `make_data` skips the blank texts at the beginning and the end.
    corpus = making.write_corpus(tmp_path / "c.jsonl", ["", *texts, " \n"])
    output = str(tmp_path / "data")
    manifest, _ = build.make_data(making.request(corpus, tokenizer_path, output, num_shards=8))
    assert manifest.train.sequences == 1 and len(manifest.train_shards) == 1
    assert manifest.statistics.skipped == 2
    assert manifest.eval.documents == (1 if number > 1 else 0)
    assert manifest.train.documents == number - manifest.eval.documents


def test_text_that_cannot_be_predicted_leaves_nothing(tmp_path, tokenizer_path, monkeypatch):
    corpus = making.write_corpus(tmp_path / "c.jsonl", ["あ", "い"])
    monkeypatch.setattr("bigbird_ja.data.masking.is_ordinary", lambda tokens, rule: tokens < 0)
    with pytest.raises(BadInput, match="contains no token to predict"):
        build.make_data(making.request(corpus, tokenizer_path, str(tmp_path / "data")))
    assert not (tmp_path / "data").exists()


# --- several corpora with weights ---

HIRAGANA, KATAKANA = "あいうえおかきくけこさしすせそ", "アイウエオカキクケコサシスセソ"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Write 80 documents of hiragana and 60 of katakana, so that a token identifies its corpus."""
    folder, draw = tmp_path_factory.mktemp("corpora"), random.Random(3)
    paths = []
    for name, letters, number in (("a", HIRAGANA, 80), ("b", KATAKANA, 60)):
        texts = [
            "。".join("".join(draw.choices(letters, k=9)) for _ in range(draw.randrange(1, 60)))
            for _ in range(number)
        ]
        paths.append(making.write_corpus(folder / f"{name}.jsonl", texts))
    return paths[0], paths[1]


def make(corpora, tokenizer_path, output, weights=("=2.5", "=0.25"), **changes):
    inputs = [path + weight for path, weight in zip(corpora, weights, strict=True)]
    request = making.request(inputs, tokenizer_path, str(output), **changes)
    return build.make_data(request)[0]


@pytest.fixture(scope="module")
def mixed(corpora, tokenizer_path, tmp_path_factory):
    output = tmp_path_factory.mktemp("made") / "data"
    with making.small_blocks():
        return make(corpora, tokenizer_path, output), str(output)


def records_of(manifest, output, split, names):
    """Count how often each record occurs, for each of the two corpora."""
    is_dynamic = manifest.masking == "dynamic"
    parse = parsing.parse_dynamic if is_dynamic else parsing.parse_static
    times = {0: Counter(), 1: Counter()}
    for shard in manifest.select_shards(split):
        for batch in tf.data.TFRecordDataset(f"{output}/{shard.name}").batch(64):
            parsed = parse(manifest, batch)
            for row in parsed["tokens" if is_dynamic else "input_ids"].numpy():
                text = "".join(names[token] for token in row)
                counts = [sum(map(text.count, each)) for each in (HIRAGANA, KATAKANA)]
                # Static masking may replace a token by a random token of the other corpus.
                assert not is_dynamic or min(counts) == 0
                times[int(counts[1] > counts[0])][tuple(row)] += 1
    return times


def test_each_record_has_one_corpus_and_repeats_by_its_weight(mixed, tokenizer_path):
    manifest, output = mixed
    tokens = read_tokenizer(tokenizer_path).tokens
    for split, expected in (("train", {2, 3}), ("eval", {1})):
        times = records_of(manifest, output, split, tokens)
        assert times[0].total() + times[1].total() == getattr(manifest, split).sequences
        assert set(times[0].values()) == expected and set(times[1].values()) == {1}
    assert check.check(manifest, output) == [] and manifest_lib.load(output) == manifest


def test_static_copies_of_repeated_documents_have_different_masks(
    tmp_path, corpora, tokenizer_path
):
    changes = {"masking": "static", "dupe_factor": 3}
    manifest = make(corpora, tokenizer_path, tmp_path / "data", ("=2", "=1"), **changes)
    tokens = read_tokenizer(tokenizer_path).tokens
    masked = records_of(manifest, str(tmp_path / "data"), "train", tokens)
    for number, times in ((0, 6), (1, 3)):
        number_of_copies = masked[number].total()
        assert number_of_copies % times == 0 and len(masked[number]) > 0.99 * number_of_copies
    assert check.check(manifest, str(tmp_path / "data")) == []


def test_text_that_one_may_want_to_clean_is_counted(tmp_path, tokenizer_path):
    texts = ["吾輩は猫である。", "名前は無い。", "吾輩は猫である。"]
    texts += ["<!DOCTYPE html>\n<html>吾輩</html>", "猫。　　名前", ""]
    corpus = making.write_corpus(tmp_path / "c.jsonl", texts)
    made, _ = build.make_data(making.request(corpus, tokenizer_path, str(tmp_path / "data")))
    found = made.statistics
    assert (found.skipped, found.duplicates, found.html_documents) == (1, 1, 1)
    assert found.fullwidth_space_documents == 1
    assert {"<", "!"} & {*found.unknown_characters} or not found.unknown
