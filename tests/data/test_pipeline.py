import bisect
import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.data import masking, parsing, pipeline, tfrecords
from bigbird_ja.errors import StorageError
from bigbird_ja.process.classify import classify, convert_refusals
from testkit import synthetic
from testkit.configs import resolve_config
from tests.data.test_order import batches as batches_of

COUNTS = (4, 3, 4, 3, 3, 4, 3, 3)


def config_of(*sets, seed=1, batch_size=4):
    """Return the config of a run with these settings."""
    stated = [f"data.seed={seed}", f"training.global_batch_size={batch_size}", *sets]
    return resolve_config(sets=stated)[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dynamic")
    return synthetic.write(directory, COUNTS), str(directory)


@pytest.mark.parametrize(
    "counts,readers,window,step",
    [
        (COUNTS, 8, 2, 0),
        (COUNTS, 8, 2, 1_000_003),
        (COUNTS, 2, 3, 11),
        ((9, 2, 5), 1, 2, 3),
        ((5,), 1, 8, 0),
    ],
)
def test_reads_the_records_that_order_says(tmp_path, counts, readers, window, step):
    manifest = synthetic.write(tmp_path, counts, num_readers=readers)
    config = config_of(f"data.shuffle_window={window}", seed=3, batch_size=6)
    dataset = pipeline.read_record_batches(config, manifest, str(tmp_path), start_step=step)
    batches = batches_of(pipeline.make_layout(manifest, 3, window), 6, step)
    expected = itertools.islice(batches, 12)
    for (serialized, epoch, record), batch in zip(dataset.take(12), expected, strict=True):
        assert list(zip(epoch.numpy().tolist(), record.numpy().tolist(), strict=True)) == batch
        tokens = parsing.parse_dynamic(manifest, serialized)["tokens"].numpy()
        numbers = [synthetic.record_number(row, manifest.vocab_size) for row in tokens]
        assert numbers == record.numpy().tolist()


def test_only_the_shards_that_the_steps_need_are_read(tmp_path):
    manifest = synthetic.write(tmp_path, (3,) * 16, num_readers=8)
    layout = pipeline.make_layout(manifest, 3, 1)
    batches = itertools.islice(batches_of(layout, 4, 7), 2)
    starts = layout.starts.tolist()
    needed = {bisect.bisect_right(starts, i) - 1 for batch in batches for _, i in batch}
    for number, shard in enumerate(manifest.train_shards):
        if number not in needed:
            (tmp_path / shard.name).unlink()
    config = config_of("data.shuffle_window=1", seed=3)
    read = pipeline.read_record_batches(config, manifest, str(tmp_path), start_step=7, num_steps=2)
    assert len(needed) < 9 and len(list(read)) == 2


def test_autotuning_is_off_so_that_iterators_end_at_once(data):
    """Check an option of tf.data, because an iterator with autotuning may take a minute to end."""
    manifest, directory = data
    train = pipeline.read_batches(config_of(), manifest, directory)
    held_out = pipeline.read_eval_batches(manifest, directory, batch_size=4)
    for dataset in (train, held_out, train.prefetch(2)):
        assert dataset.options().autotune.enabled is False


def unmasked(batch):
    """Return the tokens of a batch before masking."""
    tokens, is_target = batch["input_ids"].copy(), batch["masked_lm_weights"] > 0
    rows = np.nonzero(is_target)[0]
    tokens[rows, batch["masked_lm_positions"][is_target]] = batch["masked_lm_ids"][is_target]
    return tokens


def test_masks_follow_epoch_and_step_over_restarts_and_hosts(data):
    manifest, directory = data
    rates = (0.3, 0.15, 10)
    drawn = [masking.compute_rate(rates, step) for step in (0, 5, 10, 2**40)]
    assert drawn == pytest.approx([0.3, 0.225, 0.15, 0.15])
    sets = ("training.masked_lm_prob=0.3", "training.final_masked_lm_prob=0.15")
    config = config_of("training.num_train_steps=10", "data.mask_unit=subword", *sets, seed=3)

    def made(start, steps, **more):
        batches = pipeline.read_batches(
            config, manifest, directory, start_step=start, num_steps=steps, **more
        )
        return list(batches.as_numpy_iterator())

    whole = made(0, 14)  # 14 batches are two epochs.
    layout = pipeline.make_layout(manifest, 3, config.data.shuffle_window)
    for step, batch, records in zip(itertools.count(), whole, batches_of(layout, 4), strict=False):
        prob = masking.compute_rate(rates, step)
        rule = dataclasses.replace(manifest.make_rule("subword"), max_predictions=20, prob=prob)
        epoch, record = np.array(records).T
        tokens = unmasked(batch)
        expected = masking.mask(tokens, np.zeros(tokens.shape, bool), epoch, record, 3, rule)
        np.testing.assert_array_equal(batch["input_ids"], expected["input_ids"])
    (later,) = made(6, 1, num_hosts=2, host_index=1)
    for name, value in whole[6].items():
        np.testing.assert_array_equal(later[name], value[1::2], err_msg=name)
    # After a change of the batch size, the batch's number differs from the step.
    fewer = made(6, 1, first_step=9)[0]["masked_lm_weights"].sum()
    assert fewer < whole[6]["masked_lm_weights"].sum()


@pytest.mark.parametrize(("masking", "nsp"), [("dynamic", True), ("static", False)])
def test_batches_have_static_shapes_and_consistent_targets(tmp_path, masking, nsp):
    manifest = synthetic.write(tmp_path, masking=masking, nsp=nsp)
    config = config_of("data.shuffle_window=2")
    dataset = pipeline.read_batches(config, manifest, str(tmp_path), num_steps=9)
    tokens = dict.fromkeys(("input_ids", "segment_ids", "document_ids"), (4, 64))
    targets = dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), (4, 12))
    shapes = {name: tuple(spec.shape) for name, spec in dataset.element_spec.items()}
    assert shapes == tokens | targets | {"next_sentence_labels": (4,)}
    batches = list(dataset.as_numpy_iterator())
    assert len(batches) == 9
    for batch in batches:
        np.testing.assert_array_equal(batch["input_ids"] == 0, batch["document_ids"] == 0)
        assert (batch["masked_lm_weights"].sum(1) >= 1).all()
        assert batch["document_ids"].max() == 2 and (batch["segment_ids"] == 1).any() == nsp


@pytest.mark.parametrize("change", ["short", "empty", "long", "corrupt"])
def test_a_shard_that_ends_early_or_late_is_an_error_that_names_it(tmp_path, change):
    manifest = synthetic.write(tmp_path, (4, 4))
    path = tmp_path / manifest.train_shards[1].name
    whole = list(tfrecords.read_frames(path.open("rb")))
    kept = {"short": whole[:-1], "empty": [], "long": [*whole, whole[0]], "corrupt": whole}[change]
    data = bytearray(tfrecords.frame_records(kept))
    if change == "corrupt":
        data[40] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(tf.errors.OpError) as caught:
        pipeline.read_shard(tf.constant(str(path)), tf.constant(4, tf.int64), 4)
    assert change == "corrupt" or path.name in str(caught.value)
    assert classify(caught.value) is not None and classify(caught.value).reason == "io_error"


def test_a_shard_that_vanishes_while_a_run_reads_is_one_line(tmp_path):
    manifest = synthetic.write(tmp_path, (4, 4))
    batches = pipeline.read_batches(config_of(), manifest, str(tmp_path))
    gone = tmp_path / manifest.train_shards[1].name
    gone.unlink()
    words = f"^access failed during the run .{gone}; No such file or dir"
    expected = pytest.raises(StorageError, match=words)
    with expected as caught, convert_refusals():
        list(batches.take(9).as_numpy_iterator())
    assert len(str(caught.value)) < len(str(gone)) + 130
