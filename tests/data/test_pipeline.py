from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.data import (
    hashing,
    masking,
    order,
    pipeline,
    tfrecords,
)
from bigbird_ja.data.masking import MaskRate
from bigbird_ja.data.pipeline import TENSORFLOW
from bigbird_ja.process.errors import classify
from testkit import synthetic
from tests.data import order_oracle

COUNTS = (4, 3, 4, 3, 3, 4, 3, 3)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dynamic")
    return synthetic.write(directory, COUNTS), str(directory)


def test_hashes_are_the_same_in_numpy_and_tensorflow():
    values = np.random.default_rng(0).integers(0, 2**32, 500, dtype=np.uint64).astype(np.uint32)
    ours = hashing.fold(values, values[::-1])
    theirs = TENSORFLOW.fold(tf.constant(values), tf.constant(values[::-1].copy()))
    np.testing.assert_array_equal(ours, theirs.numpy())
    ids = np.arange(500)
    np.testing.assert_array_equal(
        hashing.permutation(7, ids), TENSORFLOW.permutation(7, tf.constant(ids)).numpy()
    )


@pytest.mark.parametrize(
    "counts,readers,window",
    [
        (COUNTS, 4, 1),
        (COUNTS, 2, 3),
        ((9, 2, 5), 1, 2),
        ((5,), 1, 8),
    ],
)
def test_order_ops_equal_order(counts, readers, window):
    layout = order.Layout(counts, readers, seed=5, window=window)
    for w, reader in itertools.product(range(3 * layout.windows_per_epoch), range(readers)):
        expected = order_oracle.window_shards(layout, w, reader)
        numbers = tf.constant(w, tf.int64), tf.constant(reader, tf.int64)
        result = order.window_shards(layout, *numbers, TENSORFLOW)
        np.testing.assert_array_equal(expected, result.numpy())


@pytest.mark.parametrize("step", [0, 7, 1_000_003])
def test_reads_the_records_that_order_says(data, step):
    manifest, directory = data
    dataset = pipeline.record_batches(
        manifest, directory, seed=3, global_batch_size=6, start_step=step, shuffle_window=2
    )
    layout = pipeline.layout_of(manifest, 3, 2)
    expected = itertools.islice(order_oracle.batches(layout, 6, step), 12)
    result = [
        list(zip(epoch.numpy().tolist(), record.numpy().tolist(), strict=True))
        for _, epoch, record in dataset.take(12)
    ]
    assert result == list(expected)


def test_the_record_read_is_the_record_named(data):
    manifest, directory = data
    dataset = pipeline.record_batches(manifest, directory, seed=3, global_batch_size=4)
    for serialized, _, record in dataset.take(8):
        tokens = tfrecords.parse_dynamic(manifest, serialized)["tokens"].numpy()
        numbers = [synthetic.record_number(row, manifest.vocab_size) for row in tokens]
        assert numbers == record.numpy().tolist()


def test_batches_have_static_shapes_and_consistent_targets(data):
    manifest, directory = data
    dataset = pipeline.batches(
        manifest, directory, seed=3, global_batch_size=4, shuffle_window=2, num_steps=9
    )
    shapes = {name: tuple(spec.shape) for name, spec in dataset.element_spec.items()}
    assert shapes == {
        "input_ids": (4, 64), "segment_ids": (4, 64), "document_ids": (4, 64),
        "masked_lm_positions": (4, 12), "masked_lm_ids": (4, 12), "masked_lm_weights": (4, 12),
        "next_sentence_labels": (4,),
    }  # fmt: skip
    batches = list(dataset.as_numpy_iterator())
    assert len(batches) == 9
    for batch in batches:
        padding = batch["input_ids"] == 0
        np.testing.assert_array_equal(padding, batch["document_ids"] == 0)


def test_masks_differ_between_epochs_and_repeat_after_a_restart(data):
    manifest, directory = data

    def by_record(start, steps):
        settings = {"seed": 3, "global_batch_size": 3, "shuffle_window": 2}
        raw = pipeline.record_batches(manifest, directory, start_step=start, **settings)
        made = pipeline.batches(manifest, directory, start_step=start, **settings)
        rows = {}
        for (_, epoch, record), batch in tf.data.Dataset.zip((raw, made)).take(steps):
            for i in range(3):
                rows[int(epoch[i]), int(record[i])] = batch["input_ids"][i].numpy()
        return rows

    whole, tail = by_record(0, 20), by_record(11, 9)
    assert len(whole) == 60 and len(tail) == 27
    for key, row in tail.items():
        np.testing.assert_array_equal(row, whole[key])
    again = [r for (e, r) in whole if e == 1 and (0, r) in whole]
    assert again and sum((whole[0, r] != whole[1, r]).any() for r in again) > len(again) * 0.9


def test_a_mask_rate_follows_the_step_over_restarts_and_hosts(data):
    manifest, directory = data
    rate = MaskRate(0.3, 0.15, 10)
    settings = {
        "seed": 3,
        "global_batch_size": 4,
        "shuffle_window": 2,
        "mask_rate": rate,
        "mask_unit": "subword",
    }

    def made(start, steps, **more):
        batches = pipeline.batches(
            manifest, directory, start_step=start, max_predictions=20, **settings, **more
        )
        return list(batches.take(steps).as_numpy_iterator())

    whole = made(0, 14)
    for step, batch in enumerate(whole):
        tokens, there = batch["input_ids"].copy(), batch["masked_lm_weights"] > 0
        rows = np.nonzero(there)[0]
        tokens[rows, batch["masked_lm_positions"][there]] = batch["masked_lm_ids"][there]
        rule = dataclasses.replace(manifest.rule("subword"), max_predictions=20, prob=rate.at(step))
        expected = masking.num_predictions(masking.is_ordinary(tokens, rule).sum(1), rule)
        np.testing.assert_array_equal(there.sum(1), expected)
    (later,) = made(6, 1, num_hosts=2, host_index=1)
    for name, value in whole[6].items():
        np.testing.assert_array_equal(later[name], value[1::2], err_msg=name)
    # Another batch size in mid run: the batch's number is no longer the step's.
    fewer = made(6, 1, first_step=9)[0]["masked_lm_weights"].sum()
    assert fewer < made(6, 1, first_step=0)[0]["masked_lm_weights"].sum()


def test_works_inside_a_tf1_graph(data):
    manifest, directory = data
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = pipeline.batches(manifest, directory, seed=3, global_batch_size=4)
        features = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        in_graph = session.run(features)
    eager = next(iter(pipeline.batches(manifest, directory, seed=3, global_batch_size=4)))
    for name, value in eager.items():
        np.testing.assert_array_equal(value.numpy(), in_graph[name])


@pytest.mark.parametrize("masking", ["dynamic", "static"])
@pytest.mark.parametrize("nsp", [False, True])
def test_both_modes_and_nsp(tmp_path, masking, nsp):
    manifest = synthetic.write(tmp_path, masking=masking, nsp=nsp)
    batch = next(iter(pipeline.batches(manifest, str(tmp_path), seed=1, global_batch_size=4)))
    assert bool(tf.reduce_any(batch["segment_ids"] == 1)) == nsp
    assert set(batch) == {
        "input_ids", "segment_ids", "document_ids", "masked_lm_positions", "masked_lm_ids",
        "masked_lm_weights", "next_sentence_labels",
    }  # fmt: skip
    weights = batch["masked_lm_weights"].numpy()
    assert (weights.sum(1) >= 1).all() and batch["document_ids"].numpy().max() == 2


@pytest.mark.parametrize("change", ["short", "empty", "long", "corrupt"])
def test_a_shard_that_ends_early_or_late_is_an_error_that_names_it(tmp_path, change):
    manifest = synthetic.write(tmp_path, (4, 4))
    path = tmp_path / manifest.train_shards[1].name
    whole = list(tfrecords.frames(path.open("rb")))
    kept = {"short": whole[:-1], "empty": [], "long": [*whole, whole[0]], "corrupt": whole}[change]
    data = bytearray(tfrecords.frame(kept))
    if change == "corrupt":
        data[40] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(tf.errors.OpError) as caught:
        list(pipeline.batches(manifest, str(tmp_path), seed=1, global_batch_size=4, num_steps=4))
    assert change == "corrupt" or path.name in str(caught.value)
    assert classify(caught.value) is not None and classify(caught.value).reason == "io_error"


def test_eval_is_one_pass_with_fixed_masks_and_a_filled_last_batch(data):
    manifest, directory = data
    first, again = (
        list(pipeline.eval_batches(manifest, directory, batch_size=2).as_numpy_iterator())
        for _ in range(2)
    )
    assert len(first) == 2
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a["input_ids"], b["input_ids"])
    assert first[1]["input_ids"].shape == (2, 64) and not first[1]["input_ids"][1].any()
    assert first[1]["masked_lm_weights"][0].any() and not first[1]["masked_lm_weights"][1].any()


def test_cut_records_are_all_of_the_text_as_sequences_of_their_own(data):
    manifest, directory = data
    how = {"seed": 5, "global_batch_size": 4, "seq_length": 16, "max_predictions": 3}
    whole = next(iter(pipeline.batches(manifest, directory, seed=5, global_batch_size=4)))
    pieces = next(iter(pipeline.batches(manifest, directory, **how)))

    def text(batch):
        ids = batch["input_ids"].numpy()
        rows, columns = np.nonzero(batch["masked_lm_weights"].numpy() > 0)
        places = batch["masked_lm_positions"].numpy()[rows, columns]
        ids[rows, places] = batch["masked_lm_ids"].numpy()[rows, columns]
        return ids

    wanted, result = text(whole).reshape(16, 16), text(pieces)
    pad, cls, sep = (synthetic.SPECIAL_IDS[name] for name in ("pad", "cls", "sep"))
    is_text = wanted != pad
    np.testing.assert_array_equal(result[:, 1:-1], wanted[:, 1:-1])
    np.testing.assert_array_equal(result[:, 0], np.where(is_text[:, 0], cls, pad))
    np.testing.assert_array_equal(result[:, -1], np.where(is_text[:, -1], sep, pad))
    predicted = pieces["masked_lm_weights"].numpy().sum(1)
    has_text = (result >= len(synthetic.NAMES)).any(1)
    assert has_text.any() and not has_text.all(), "both kinds of pieces"
    np.testing.assert_array_equal(predicted > 0, has_text)
    np.testing.assert_array_equal(pieces["document_ids"].numpy() > 0, result != pad)
    hosts = [
        next(iter(pipeline.batches(manifest, directory, **how, num_hosts=2, host_index=host)))
        for host in (0, 1)
    ]
    every = {row.tobytes() for batch in hosts for row in batch["input_ids"].numpy()}
    assert every == {row.tobytes() for row in pieces["input_ids"].numpy()}
