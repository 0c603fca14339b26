"""The input pipeline: global batch n as `order` defines it, read, checked, masked, in pure tf.data.

For each virtual reader of this host, one window of shards is in memory and the next is being read:
2 * readers * window * shard bytes, however many shards there are. Records are counted against the
manifest while they are read, because a complete but short reply of a bucket ends a TFRecord file
early without an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from bigbird_ja import storage
from bigbird_ja.data import hashing, masking_tf, order, parsing
from bigbird_ja.data.manifest import Manifest, Shard
from bigbird_ja.data.masking import MaskingRule, MaskRate
from bigbird_ja.process.errors import SHARD_CHANGED, BadInput

EVAL_SEED = 0x5EED  # evaluation draws the same masks always, so that models compare
_READ_BUFFER_BYTES = 1 << 18


def layout_of(manifest: Manifest, seed: int, shuffle_window: int) -> order.Layout:
    """What the order of the train records depends on."""
    counts = tuple(shard.records for shard in manifest.train_shards)
    return order.Layout(counts, manifest.num_readers, seed, shuffle_window)


# Tracing is several times faster without AutoGraph, which nothing here needs.
@tf.autograph.experimental.do_not_convert
def batches(
    manifest: Manifest,
    data_dir: str,
    *,
    seed: int,
    mask_unit: str | None = None,
    mask_rate: MaskRate | None = None,
    max_predictions: int | None = None,
    seq_length: int | None = None,
    first_step: int | None = None,
    **which: Any,
) -> tf.data.Dataset:
    """This host's part of the global batches, for training: `record_batches`, parsed and masked.

    Args:
        manifest, data_dir, seed, which: as of `record_batches`.
        mask_unit, max_predictions: override the manifest's (dynamic data only).
        mask_rate: the share of predicted tokens by step, in place of the manifest's.
        seq_length: cuts dynamic records into sequences of that length, which divides theirs, and
            masks each by itself; `max_predictions` is then of each.
        first_step: of the run, that the first batch is for; by default its number, `start_step`.

    Returns:
        Batches of b = global_batch_size / num_hosts records, static shapes: `input_ids`,
        `segment_ids`, `document_ids` int32 [b, S]; `masked_lm_positions`, `masked_lm_ids` int32
        [b, P]; `masked_lm_weights` float32 [b, P]; `next_sentence_labels` int32 [b]. Of cut records
        there are as many more rows, all of a record side by side.

    Raises:
        BadInput: hosts that divide neither readers nor batch, or another masking of static data.
    """
    rule = manifest.rule(mask_unit, max_predictions)
    serialized = record_batches(manifest, data_dir, seed=seed, **which)
    steps = serialized.enumerate(which.get("start_step", 0) if first_step is None else first_step)

    def features(
        step: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        prob = None if mask_rate is None else masking_tf.rate_at(mask_rate, step)
        features = to_features(manifest, rule, seed, *batch, prob, seq_length)
        features.pop("corpus_ids", None)  # nothing is learned from it
        return features

    made = steps.map(features, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return made.prefetch(tf.data.AUTOTUNE)


@tf.autograph.experimental.do_not_convert
def record_batches(
    manifest: Manifest,
    data_dir: str,
    *,
    seed: int,
    global_batch_size: int,
    start_step: int = 0,
    shuffle_window: int = 8,
    num_hosts: int = 1,
    host_index: int = 0,
    num_steps: int | None = None,
) -> tf.data.Dataset:
    """This host's part of the global batches `start_step`, `start_step + 1`, ..., not yet parsed.

    Args:
        manifest: of the data in `data_dir`.
        data_dir: on disk or gs://.
        seed: of the order and of dynamic masks.
        global_batch_size: records per step over all hosts.
        start_step: the global step to begin at; reading starts in its window, nothing is replayed.
        shuffle_window: shards that each reader mixes.
        num_hosts, host_index: which places of the batch are this host's: h, h + hosts, ...
        num_steps: how many batches; without end by default.

    Returns:
        (serialised records, epoch int64, record id int64), each [global_batch_size / num_hosts].
    """
    layout = layout_of(manifest, seed, shuffle_window)
    starts = order.starts_of_host(layout, global_batch_size, start_step, num_hosts, host_index)
    paths = [storage.join(data_dir, shard.name) for shard in manifest.train_shards]
    columns = [[getattr(s, name) for s in starts] for name in ("reader", "window", "skip")]
    readers = tf.data.Dataset.from_tensor_slices(tuple(np.asarray(c, np.int64) for c in columns))
    records = readers.interleave(
        lambda reader, window, skip: _reader(layout, paths, reader, window, skip),
        cycle_length=len(starts),
        block_length=1,
    )
    result = records.batch(global_batch_size // num_hosts, drop_remainder=True)
    return result if num_steps is None else result.take(num_steps)


def _reader(
    layout: order.Layout, paths: list[str], reader: tf.Tensor, window: tf.Tensor, skip: tf.Tensor
) -> tf.data.Dataset:
    """The records of one reader from its window `window` on, without end."""
    forever = tf.data.Dataset.range(window, tf.int64.max)
    windows = forever.map(lambda w: _window(layout, paths, w, reader)).prefetch(1)
    records = windows.flat_map(lambda *window: tf.data.Dataset.from_tensor_slices(window))
    return records.skip(skip)


def _window(
    layout: order.Layout, paths: list[str], window: tf.Tensor, reader: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(records, epoch, record id), each [records of the window], in the order of delivery."""
    shards = window_shards(layout, window, reader)
    counts = tf.gather(tf.constant(layout.counts, tf.int64), shards)
    starts = tf.gather(tf.constant(layout.starts), shards)
    files = tf.data.Dataset.from_tensor_slices((tf.gather(tf.constant(paths), shards), counts))
    most = max(layout.counts)
    read = files.map(lambda path, count: read_shard(path, count, most))
    records = read.batch(min(layout.window, layout.shards_per_reader)).get_single_element()
    places = tf.range(most + 1, dtype=tf.int64)[None, :]
    is_there = tf.reshape(places < counts[:, None], [-1])
    ids = tf.boolean_mask(tf.reshape(starts[:, None] + places, [-1]), is_there)
    epoch = window // layout.windows_per_epoch
    sequence = record_order(layout, epoch, ids)
    # Strings are copied once more, not twice: first the order, then the records.
    chosen = tf.gather(tf.where(is_there)[:, 0], sequence)
    records = tf.gather(tf.reshape(records, [-1]), chosen)
    return records, tf.fill(tf.shape(ids), epoch), tf.gather(ids, sequence)


# --- the order of `order` inside the graph, so that no list of the future is needed ---


def window_shards(layout: order.Layout, window: tf.Tensor, reader: tf.Tensor) -> tf.Tensor:
    """`order.window_shards`: int64 [shards of the window]."""
    epoch = window // layout.windows_per_epoch
    shards = reader_shards(layout, epoch, reader)
    each, windows = layout.shards_per_reader, layout.windows_per_epoch
    j = window % layout.windows_per_epoch
    return shards[each * j // windows : each * (j + 1) // windows]


def reader_shards(layout: order.Layout, epoch: tf.Tensor, reader: tf.Tensor) -> tf.Tensor:
    """`order.reader_shards`: int64 [shards_per_reader]."""
    dealt = _dealt(layout, epoch, reader)
    return tf.gather(dealt, _permutation(layout, hashing.READER_ORDER, epoch, dealt))


def record_order(layout: order.Layout, epoch: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """The order in which the records of a window are delivered, as indices into `ids` (int64)."""
    return _permutation(layout, hashing.RECORD_ORDER, epoch, ids)


def _permutation(layout: order.Layout, purpose: int, epoch: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    key = hashing.fold_tensors(hashing.seed_key(layout.seed, purpose), epoch)
    return hashing.tensor_permutation(key, ids)


def _dealt(layout: order.Layout, epoch: tf.Tensor, reader: tf.Tensor) -> tf.Tensor:
    num_shards, each = len(layout.counts), layout.shards_per_reader
    every = tf.range(num_shards, dtype=tf.int64)
    if layout.num_readers == 1:
        return every
    shuffled = _permutation(layout, hashing.SHARD_ORDER, epoch, every)
    shortest = min(layout.counts)
    is_longer = tf.gather(tf.constant(layout.counts, tf.int64), shuffled) > shortest
    longer = tf.cast(tf.boolean_mask(shuffled, is_longer), tf.int64)
    shorter = tf.cast(tf.boolean_mask(shuffled, ~is_longer), tf.int64)
    readers = tf.range(layout.num_readers, dtype=tf.int64)
    extra = order.quota(layout, epoch, readers) - each * shortest
    before = tf.gather(tf.cumsum(extra, exclusive=True), reader)
    extra = tf.gather(extra, reader)
    first = reader * each - before
    dealt = [longer[before : before + extra], shorter[first : first + each - extra]]
    return tf.ensure_shape(tf.concat(dealt, 0), [each])


# --- reading, parsing, masking ---


def read_shard(path: tf.Tensor, count: tf.Tensor, most: int) -> tf.Tensor:
    """string [most + 1]: the records of one TFRecord file, then empty strings.

    Fails, naming the file, where it does not hold exactly `count` records.
    """
    file = tf.data.TFRecordDataset(path, buffer_size=_READ_BUFFER_BYTES)
    # One more than can be, to see a file that is too long; an empty one still makes a batch.
    ended = file.take(most + 1).concatenate(tf.data.Dataset.from_tensors(b""))
    records = ended.batch(most + 2).get_single_element()
    number = tf.shape(records, tf.int64)[0] - 1
    check = tf.debugging.Assert(
        tf.equal(number, count),
        [SHARD_CHANGED, path, number, "of", count, "records"],
    )
    with tf.control_dependencies([check] if check is not None else []):
        padded = tf.pad(records, [[0, most - count]], constant_values=b"")
    return tf.ensure_shape(padded, [most + 1])


def to_features(
    manifest: Manifest,
    rule: MaskingRule,
    seed: int,
    serialized: tf.Tensor,
    epoch: tf.Tensor,
    record: tf.Tensor,
    prob: tf.Tensor | None = None,
    seq_length: int | None = None,
) -> dict[str, tf.Tensor]:
    """What a model reads, from a batch of serialised records, and of mixed corpora `corpus_ids`;
    `prob` as of `masking_tf.mask`, `seq_length` as of `batches`."""
    if manifest.masking == "static":
        features = parsing.parse_static(manifest, serialized)
    else:
        parsed = parsing.parse_dynamic(manifest, serialized)
        if seq_length is not None:
            parsed = parsing.cut(manifest, parsed, seq_length)
            epoch, record = _of_pieces(epoch, record, manifest.seq_length // seq_length)
        features = masking_tf.mask(
            parsed["tokens"], parsed["word_starts"], epoch, record, seed, rule, prob
        )
        features["segment_ids"] = parsed["segment_ids"]
        for name in ("next_sentence_labels", "corpus_ids"):
            if name in parsed:
                features[name] = parsed[name]
    features["document_ids"] = parsing.document_ids(manifest, features["input_ids"])
    return features


def _of_pieces(epoch: tf.Tensor, record: tf.Tensor, pieces: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The keys of masks of records that are cut into pieces: each piece has a number of its own."""
    numbers = record[:, None] * pieces + tf.range(pieces, dtype=tf.int64)
    return tf.repeat(epoch, pieces), tf.reshape(numbers, [-1])


@tf.autograph.experimental.do_not_convert
def eval_batches(
    manifest: Manifest,
    data_dir: str,
    *,
    batch_size: int,
    seed: int = EVAL_SEED,
    mask_unit: str | None = None,
) -> tf.data.Dataset:
    """One pass over the eval split, in the manifest's order, with fixed masks.

    The last batch is filled with records of padding only: their weights are 0 and their
    `input_ids[:, 0]` is the padding id. Of mixed corpora they hold `corpus_ids`, too: int32
    [batch_size], the place of each record's corpus in the manifest's list.

    Raises:
        BadInput: the data set has no eval split.
    """
    shards = manifest.eval_shards
    if not shards:
        raise BadInput(f"{data_dir}: no eval split: make the data with --eval_fraction above 0")
    rule = manifest.rule(mask_unit)
    records = _in_order(data_dir, shards).batch(batch_size)

    def features(index: tf.Tensor, serialized: tf.Tensor) -> dict[str, Any]:
        made = to_features(manifest, rule, seed, serialized, tf.zeros_like(index), index)
        missing = batch_size - tf.shape(serialized)[0]

        def filled(value: tf.Tensor, fill: int) -> tf.Tensor:
            pads = [[0, missing], *[[0, 0]] * (value.shape.rank - 1)]
            padded = tf.pad(value, pads, constant_values=tf.cast(fill, value.dtype))
            return tf.ensure_shape(padded, [batch_size, *value.shape[1:]])

        return {
            name: filled(value, manifest.pad_id if name == "input_ids" else 0)
            for name, value in made.items()
        }

    return records.map(features, num_parallel_calls=2, deterministic=True).prefetch(2)


def _in_order(data_dir: str, shards: tuple[Shard, ...]) -> tf.data.Dataset:
    """(record number int64, serialised record), counted while read."""
    paths = [storage.join(data_dir, shard.name) for shard in shards]
    counts = np.asarray([shard.records for shard in shards], np.int64)
    most = int(counts.max())
    files = tf.data.Dataset.from_tensor_slices((paths, counts))
    records = files.flat_map(
        lambda path, count: tf.data.Dataset.from_tensor_slices(
            read_shard(path, count, most)[:count]
        )
    )
    return records.enumerate()
