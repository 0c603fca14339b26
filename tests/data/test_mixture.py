"""Several corpora with weights: what an epoch takes of each, and which records are whose."""

import dataclasses
import random
from collections import Counter

import pytest
import tensorflow as tf

from bigbird_ja.data import blocks, build, check, parsing
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text.load import read_tokenizer
from tests.data import making

HIRAGANA, KATAKANA = "あいうえおかきくけこさしすせそ", "アイウエオカキクケコサシスセソ"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """80 documents of hiragana, 60 of katakana, so that a token tells whose it is."""
    folder, draw = tmp_path_factory.mktemp("corpora"), random.Random(3)
    paths = []
    for name, letters, number in (("a", HIRAGANA, 80), ("b", KATAKANA, 60)):
        texts = [
            "。".join("".join(draw.choices(letters, k=9)) for _ in range(draw.randrange(1, 60)))
            for _ in range(number)
        ]
        paths.append(making.write_corpus(folder / f"{name}.jsonl", texts))
    return paths[0], paths[1]


def make(corpora, tokenizer_path, output, weights=("=2.5", "=0.25"), workers=1, **changes):
    inputs = [path + weight for path, weight in zip(corpora, weights, strict=True)]
    request = making.request(inputs, tokenizer_path, str(output), workers, **changes)
    return build.make_data(request)[0]


@pytest.fixture(scope="module")
def made(corpora, tokenizer_path, tmp_path_factory):
    output = tmp_path_factory.mktemp("made") / "data"
    with making.small_blocks():
        return make(corpora, tokenizer_path, output), str(output)


@pytest.mark.parametrize(
    ("weight", "eval_fraction"), [(0.0001, 0.001), (0.25, 1 / 3), (1.001, 0.0), (12.75, 0.001)]
)
def test_an_epoch_takes_each_document_as_often_as_the_weight_says(weight, eval_fraction):
    number = 20_000
    a = [f"a{i}" for i in range(number)]
    b = [f"b{i}" for i in range(100)]
    cut = blocks.cut_into_blocks([(a, weight), (b, 1.0)], 128, eval_fraction, 5, Counter())
    times = {"train": Counter(), "eval": Counter()}
    numbers = {"train": [], "eval": []}
    for block in cut:
        numbers[block.split].append(block.number)
        assert {text[0] for text in block.texts} == {"ab"[block.corpus]}
        assert not times[block.split].keys() & set(block.texts)
        times[block.split].update(dict.fromkeys(block.texts, block.times))
    assert all(each == list(range(len(each))) for each in numbers.values())
    assert set(times["eval"].values()) <= {1} and not times["train"].keys() & times["eval"].keys()
    held_out = sum(text[0] == "a" for text in times["eval"])
    assert abs(held_out - number * eval_fraction) <= 1
    trained = [count for text, count in times["train"].items() if text[0] == "a"]
    assert abs(sum(trained) - weight * (number - held_out)) <= 1
    assert set(trained) <= {int(weight), int(weight) + 1}


def records_of(manifest, output, split, pieces):
    """How often each record's tokens come, by the number of its corpus."""
    is_dynamic = manifest.masking == "dynamic"
    parse = parsing.parse_dynamic if is_dynamic else parsing.parse_static
    times = {0: Counter(), 1: Counter()}
    for shard in manifest.shards(split):
        for batch in tf.data.TFRecordDataset(f"{output}/{shard.name}").batch(64):
            parsed = parse(manifest, batch)
            for row in parsed["tokens" if is_dynamic else "input_ids"].numpy():
                text = "".join(pieces[token] for token in row)
                counts = [sum(map(text.count, each)) for each in (HIRAGANA, KATAKANA)]
                assert not is_dynamic or min(counts) == 0  # a mask may draw of either
                times[int(counts[1] > counts[0])][tuple(row)] += 1
    return times


def test_each_record_is_of_one_corpus_and_comes_as_often_as_its_weight(made, tokenizer_path):
    manifest, output = made
    pieces = read_tokenizer(tokenizer_path).pieces
    for split, expected in (("train", {2, 3}), ("eval", {1})):
        times = records_of(manifest, output, split, pieces)
        assert times[0].total() + times[1].total() == getattr(manifest, split).sequences
        assert set(times[0].values()) == expected and set(times[1].values()) == {1}
    assert check.check(manifest, output) == [] and manifest_lib.load(output) == manifest


def test_a_manifest_of_before_that_counts_by_corpus_is_read(made):
    manifest, _ = made
    before = dataclasses.replace(manifest, corpora=({"name": "/p/x.jsonl", "weight": 2.0},))
    assert manifest_lib.from_json(manifest_lib.to_json(before).encode(), "m") == before
    moved = dataclasses.replace(manifest, corpora=({"name": "/q/x.jsonl", "weight": 2.0},))
    assert before.fingerprint == moved.fingerprint != manifest.fingerprint


def test_static_copies_of_what_is_taken_oftener_have_masks_of_their_own(
    tmp_path, corpora, tokenizer_path
):
    manifest = make(
        corpora, tokenizer_path, tmp_path / "data", ("=2", "=1"), masking="static", dupe_factor=3
    )
    pieces = read_tokenizer(tokenizer_path).pieces
    masked = records_of(manifest, str(tmp_path / "data"), "train", pieces)
    for number, times in ((0, 6), (1, 3)):
        number_of_copies = masked[number].total()
        assert number_of_copies % times == 0 and len(masked[number]) > 0.99 * number_of_copies
    assert check.check(manifest, str(tmp_path / "data")) == []


def test_other_weights_are_other_settings(made, corpora, tokenizer_path):
    _, output = made
    before = making.tree(output)
    for weights in (("=2.5", "=1"), ("", "")):
        with pytest.raises(BadInput, match=r"--input \(other weights\)"):
            make(corpora, tokenizer_path, output, weights)
    assert making.tree(output) == before


def test_a_corpus_of_which_nothing_would_be_trained_on_is_refused(
    tmp_path, corpora, tokenizer_path
):
    with pytest.raises(BadInput, match=r"b\.jsonl=0\.0001: none of its documents"):
        make(corpora, tokenizer_path, tmp_path / "data", ("=1", "=0.0001"))
    assert not (tmp_path / "data").exists()
