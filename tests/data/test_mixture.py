"""Several corpora with weights: what an epoch takes of each, and which records are whose."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
import tensorflow as tf

from bigbird_ja.data import blocks, build, check, tfrecords
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import tokenizer as tokenizer_lib
from bigbird_ja.text.corpus import Document
from tests.data import making

HIRAGANA, KATAKANA = "あいうえおかきくけこさしすせそ", "アイウエオカキクケコサシスセソ"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> tuple[str, str]:
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


def documents(name: str, number: int) -> list[Document]:
    return [Document(f"{name}{i}", name, i) for i in range(number)]


@pytest.mark.parametrize("weight", [0.0001, 0.25, 1.001, 12.75])
@pytest.mark.parametrize("eval_fraction", [0.0, 0.1])
def test_an_epoch_takes_each_document_as_often_as_the_weight_says(weight, eval_fraction):
    number = 20_000
    cut = blocks.cut_into_blocks(
        [(documents("a", number), weight), (documents("b", 100), 1.0)], 128, eval_fraction, seed=5
    )
    times: dict[str, Counter[int]] = {}
    numbers: dict[str, list[int]] = {"train": [], "eval": []}
    for block in cut:
        numbers[block.split].append(block.number)
        assert {text[0] for text in block.texts} == {"ab"[block.corpus]}
        for text in block.texts:
            assert text not in times.setdefault(block.split, Counter())
            times[block.split][text] = block.times
    for result in numbers.values():
        assert result == list(range(len(result)))
    assert set(times.get("eval", Counter()).values()) <= {1}
    held_out = sum(text[0] == "a" for text in times.get("eval", ()))
    assert held_out == number * eval_fraction
    trained = {text: count for text, count in times["train"].items() if text[0] == "a"}
    assert abs(sum(trained.values()) - weight * (number - held_out)) <= 1
    assert set(trained.values()) <= {int(weight), int(weight) + 1}
    assert not trained.keys() & times.get("eval", Counter()).keys()


def parsed_records(manifest, output, split):
    for shard in manifest.shards(split):
        data = tf.data.TFRecordDataset(f"{output}/{shard.name}").batch(64)
        for batch in data:
            parsed = tfrecords.parse_dynamic(manifest, batch)
            yield from zip(parsed["tokens"].numpy(), parsed["corpus_ids"].numpy(), strict=True)


def script_of(tokens, tokenizer) -> set[int]:
    """The corpora of which there are letters in a record."""
    text = "".join(tokenizer.pieces[token] for token in tokens)
    return {i for i, letters in enumerate((HIRAGANA, KATAKANA)) if set(text) & set(letters)}


def test_each_record_is_of_one_corpus_and_names_it(made, tokenizer_path):
    manifest, output = made
    tokenizer = tokenizer_lib.load(tokenizer_path)
    for split in manifest_lib.SPLITS:
        counts: Counter[int] = Counter()
        seen: dict[int, Counter[bytes]] = {0: Counter(), 1: Counter()}
        for tokens, corpus in parsed_records(manifest, output, split):
            assert script_of(tokens, tokenizer) == {corpus}
            counts[int(corpus)] += 1
            seen[int(corpus)][tokens.tobytes()] += 1
        stated = [getattr(corpus, split).sequences for corpus in manifest.corpora]
        assert [counts[0], counts[1]] == stated and all(stated)
        expected = {2, 3} if split == "train" else {1}
        assert set(seen[0].values()) == expected and set(seen[1].values()) == {1}
    assert check.check(manifest, output) == []
    a, b = manifest.corpora
    wrong = dataclasses.replace(b.eval, sequences=b.eval.sequences + 1)
    stated = dataclasses.replace(manifest, corpora=(a, dataclasses.replace(b, eval=wrong)))
    (problem,) = check.check(stated, output)
    assert "sequences of" in problem and "b.jsonl" in problem
    one = dataclasses.replace(manifest, corpora=(a,))
    assert any("is of no corpus" in problem for problem in check.check(one, output))


def test_the_manifest_names_them_with_what_an_epoch_takes(made, corpora):
    manifest, output = made
    a, b = manifest.corpora
    assert (a.name, a.weight, b.name, b.weight) == (corpora[0], 2.5, corpora[1], 0.25)
    assert a.train.documents == 180 and a.eval.documents == 8  # 72 of 80 are trained on
    assert b.train.documents == 14 and b.eval.documents == 6  # 54 of 60: 13.5
    for split in manifest_lib.SPLITS:
        for name in ("documents", "tokens", "sequences"):
            whole = getattr(getattr(manifest, split), name)
            assert whole == sum(getattr(getattr(c, split), name) for c in (a, b))
    rows = manifest.portions()
    assert [row["name"] for row in rows] == ["a.jsonl", "b.jsonl"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert rows[0]["share"] == a.train.tokens / manifest.train.tokens
    assert manifest_lib.load(output) == manifest


def test_names_are_not_content_and_tell_folders_only_where_they_must(made):
    manifest, _ = made
    moved = dataclasses.replace(
        manifest,
        corpora=tuple(
            dataclasses.replace(corpus, name=f"/{folder}/x.jsonl")
            for corpus, folder in zip(manifest.corpora, "pq", strict=True)
        ),
    )
    assert moved.fingerprint == manifest.fingerprint
    assert moved.corpus_names == ("/p/x.jsonl", "/q/x.jsonl")
    fewer = dataclasses.replace(manifest.corpora[0], weight=2.0)
    changed = dataclasses.replace(manifest, corpora=(fewer, manifest.corpora[1]))
    assert changed.fingerprint != manifest.fingerprint


def test_static_copies_of_what_is_taken_oftener_have_masks_of_their_own(
    tmp_path, corpora, tokenizer_path
):
    manifest = make(
        corpora, tokenizer_path, tmp_path / "data", ("=2", "=1"), masking="static", dupe_factor=3
    )
    masked: dict[int, Counter[bytes]] = {0: Counter(), 1: Counter()}
    for shard in manifest.train_shards:
        for batch in tf.data.TFRecordDataset(f"{tmp_path}/data/{shard.name}").batch(64):
            parsed = tfrecords.parse_static(manifest, batch)
            for ids, corpus in zip(
                parsed["input_ids"].numpy(), parsed["corpus_ids"].numpy(), strict=True
            ):
                masked[int(corpus)][ids.tobytes()] += 1
    for number, times in ((0, 6), (1, 3)):
        stated = manifest.corpora[number].train.sequences
        assert sum(masked[number].values()) == stated and stated % times == 0
        assert len(masked[number]) > 0.99 * stated
    assert check.check(manifest, str(tmp_path / "data")) == []


def test_other_weights_are_other_settings(made, corpora, tokenizer_path):
    _, output = made
    before = making.digests(output)
    for weights, printed in ((("=2.5", "=1"), "2.5, 1"), (("", ""), "none")):
        with pytest.raises(BadInput, match=rf"weights 2.5, 0.25 there, {printed} requested"):
            make(corpora, tokenizer_path, output, weights)
    assert making.digests(output) == before


def test_a_corpus_of_which_nothing_would_be_trained_on_is_refused(
    tmp_path, corpora, tokenizer_path
):
    with pytest.raises(BadInput, match=r"b\.jsonl=0\.0001: none of its documents"):
        make(corpora, tokenizer_path, tmp_path / "data", ("=1", "=0.0001"))
    assert not (tmp_path / "data").exists()
