"""Input pipeline in pure tf.data: global batch n as `order` defines it, checked and masked.

For each virtual reader of this host, one window of shards is in memory, and the next window is
being read. So the pipeline needs 2 * readers * window * (bytes of a shard) of memory, for any
number of shards. The number of records in each shard is compared with the manifest, because after a
truncated reply of a bucket, TensorFlow ends a TFRecord file without an error.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from bigbird_ja import storage
from bigbird_ja.data import check, order, parsing
from bigbird_ja.data.hashing import Purpose
from bigbird_ja.data.manifest import Manifest, Shard
from bigbird_ja.data.masking import MaskingRule, compute_rate, mask_arrays
from bigbird_ja.data.ops import TensorFlowOps
from bigbird_ja.process.classify import SHARD_CHANGED
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import count_train_predictions, get_mask_rates

# Seed of the masks of every evaluation, so that models are comparable.
EVAL_SEED = 0x5EED
_READ_BUFFER_BYTES = 1 << 18
# Number of batches that are prepared in parallel, and number of batches that are kept ready.
_AHEAD = 4
_NO_END = np.iinfo(np.int64).max
TENSORFLOW = TensorFlowOps()


def make_layout(manifest: Manifest, seed: int, shuffle_window: int) -> order.Layout:
    """Return the shards and settings that determine the order of the train records."""
    counts = tuple(shard.records for shard in manifest.train_shards)
    return order.Layout(counts, manifest.num_readers, seed, shuffle_window)


# This function needs no AutoGraph, and tracing is several times faster without AutoGraph.
@tf.autograph.experimental.do_not_convert
def read_batches(
    config: Config,
    manifest: Manifest,
    data_dir: str,
    *,
    start_step: int = 0,
    first_step: int | None = None,
    **which: Any,
) -> tf.data.Dataset:
    """Read this host's part of the global batches for training, parsed and masked.

    Args:
        config: settings, including those that the data set determines.
        manifest: manifest of the data set.
        data_dir: data set, on disk or gs://.
        start_step: number of the first batch in the data's order.
        first_step: global step of the first batch, by default `start_step`. The two differ if
            the batch size was changed during the run.
        **which: other arguments of `read_record_batches`.

    Returns:
        Batches of b = global_batch_size / num_hosts records, with static shapes: `input_ids`,
        `segment_ids`, `document_ids` int32 [b, S]; `masked_lm_positions`, `masked_lm_ids` int32
        [b, P]; `masked_lm_weights` float32 [b, P]; `next_sentence_labels` int32 [b]. S is the
        sequence length, and P is the maximum number of predictions.

    Raises:
        BadInput: The number of hosts does not divide the readers or the batch, or the data is
            static and the settings ask for other masks.
    """
    seed, rates = config.data.seed, get_mask_rates(config)
    rule = manifest.make_rule(config.data.mask_unit, count_train_predictions(config, manifest))
    serialized = read_record_batches(config, manifest, data_dir, start_step=start_step, **which)
    steps = serialized.enumerate(start_step if first_step is None else first_step)

    def features(
        step: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        prob = compute_rate(rates, step, TENSORFLOW) if rates else None
        return to_features(manifest, rule, seed, *batch, prob)

    return _prefetch(steps.map(features, num_parallel_calls=_AHEAD, deterministic=True))


@tf.autograph.experimental.do_not_convert
def read_record_batches(
    config: Config,
    manifest: Manifest,
    data_dir: str,
    *,
    start_step: int = 0,
    num_steps: int | None = None,
    num_hosts: int = 1,
    host_index: int = 0,
) -> tf.data.Dataset:
    """Read this host's part of the global batches from `start_step` on, without parsing it.

    Each reader starts with the window that contains its next record. Earlier windows are not read.

    Args:
        config: settings, for seed, batch size and shuffle window.
        manifest: manifest of the data set.
        data_dir: data set, on disk or gs://.
        start_step: number of the first batch in the data's order.
        num_steps: number of batches, or None for no limit. Only the shards of these batches are
            read.
        num_hosts: number of hosts that share each global batch.
        host_index: index h of this host, which reads the records h, h + num_hosts, ... of a batch.

    Returns:
        (serialized records, epoch int64, record id int64), each [global_batch_size / num_hosts].
    """
    global_batch_size = config.training.global_batch_size
    layout = make_layout(manifest, config.data.seed, config.data.shuffle_window)
    starts = order.find_host_starts(layout, global_batch_size, start_step, num_hosts, host_index)
    paths = [storage.join(data_dir, shard.name) for shard in manifest.train_shards]
    rows = [(s.reader, s.window, s.skip, _NO_END) for s in starts]
    if num_steps is not None:
        last = start_step + num_steps
        ends = order.find_host_starts(layout, global_batch_size, last, num_hosts, host_index)
        end_of = {end.reader: end.window + (end.skip > 0) for end in ends}
        rows = [(*row[:3], end_of[row[0]]) for row in rows]
    columns = tuple(np.asarray(column, np.int64) for column in zip(*rows, strict=True))
    records = tf.data.Dataset.from_tensor_slices(columns).interleave(
        lambda *row: _read_records(layout, paths, *row), cycle_length=len(starts), block_length=1
    )
    result = records.batch(global_batch_size // num_hosts, drop_remainder=True)
    return result if num_steps is None else result.take(num_steps)


def _read_records(
    layout: order.Layout,
    paths: list[str],
    reader: tf.Tensor,
    window: tf.Tensor,
    skip: tf.Tensor,
    end: tf.Tensor,
) -> tf.data.Dataset:
    """Return the records of one reader in the windows [window, end).

    The first `skip` records are left out.
    """
    numbers = tf.data.Dataset.range(window, end)
    windows = numbers.map(lambda w: _read_window(layout, paths, w, reader)).prefetch(1)
    records = windows.flat_map(lambda *window: tf.data.Dataset.from_tensor_slices(window))
    return records.skip(skip)


def _read_window(
    layout: order.Layout, paths: list[str], window: tf.Tensor, reader: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the records of a reader's window in random order, with their epochs and record ids."""
    shards = order.list_window_shards(layout, window, reader, TENSORFLOW)
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
    sequence = order.permute(layout, Purpose.RECORD_ORDER, epoch, ids, TENSORFLOW)
    # Indices are permuted instead of records, so that the records are copied only once.
    chosen = tf.gather(tf.where(is_there)[:, 0], sequence)
    records = tf.gather(tf.reshape(records, [-1]), chosen)
    return records, tf.fill(tf.shape(ids), epoch), tf.gather(ids, sequence)


def read_shard(path: tf.Tensor, count: tf.Tensor, most: int) -> tf.Tensor:
    """Read the records of a TFRecord file, padded with empty strings: string [most + 1].

    `most` is the maximum number of records of a shard. The op fails unless the file contains
    exactly `count` records. Its error names the file.
    """
    file = tf.data.TFRecordDataset(path, buffer_size=_READ_BUFFER_BYTES)
    # `take` accepts one record more than the longest shard has, so a file that is too long is
    # detected. The empty record is appended because an empty file would form no batch.
    ended = file.take(most + 1).concatenate(tf.data.Dataset.from_tensors(b""))
    records = ended.batch(most + 2).get_single_element()
    number = tf.shape(records, tf.int64)[0] - 1
    what = [SHARD_CHANGED, path, number, "of", count, "records"]
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(number, count), what)]):
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
) -> dict[str, tf.Tensor]:
    """Parse a batch of serialized records into model inputs, and mask dynamic records.

    Args:
        manifest: manifest of the data set.
        rule: masking rule, for dynamic records.
        seed: seed of the masks.
        serialized: string [b], records.
        epoch: int64 [b], epoch of each record.
        record: int64 [b], record ids.
        prob: masking rate that replaces the rule's, or None.
    """
    if manifest.masking == "static":
        features = parsing.parse_static(manifest, serialized)
    else:
        parsed = parsing.parse_dynamic(manifest, serialized)
        tokens, starts = parsed["tokens"], parsed["word_starts"]
        features = mask_arrays(TENSORFLOW, tokens, starts, epoch, record, seed, rule, prob)
        for name in ("segment_ids", "next_sentence_labels"):
            features[name] = parsed[name]
    features["document_ids"] = parsing.number_documents(manifest, features["input_ids"])
    return features


@tf.autograph.experimental.do_not_convert
def read_eval_batches(manifest: Manifest, data_dir: str, *, batch_size: int) -> tf.data.Dataset:
    """Read the eval split once, in the manifest's order, with fixed masks.

    The last batch is completed by records that contain only padding. Their weights are 0 and their
    `input_ids[:, 0]` is the padding id.

    Raises:
        BadInput: The data set contains no eval records.
    """
    check.check_held_out(manifest, data_dir)
    rule = manifest.make_rule()
    records = _read_in_order(data_dir, manifest.eval_shards).batch(batch_size)

    def features(index: tf.Tensor, serialized: tf.Tensor) -> dict[str, Any]:
        epoch = tf.zeros_like(index)
        made = to_features(manifest, rule, EVAL_SEED, serialized, epoch, index)
        missing = batch_size - tf.shape(serialized)[0]

        def fill(value: tf.Tensor, fill: int) -> tf.Tensor:
            pads = [[0, missing], *[[0, 0]] * (value.shape.rank - 1)]
            padded = tf.pad(value, pads, constant_values=tf.cast(fill, value.dtype))
            return tf.ensure_shape(padded, [batch_size, *value.shape[1:]])

        return {
            name: fill(value, manifest.pad_id if name == "input_ids" else 0)
            for name, value in made.items()
        }

    return _prefetch(records.map(features, num_parallel_calls=_AHEAD, deterministic=True))


def _prefetch(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Prefetch some batches, without TensorFlow's autotuning.

    Autotuning is off because its thread sleeps for up to a minute, and the end of an iterator may
    wait for it.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.prefetch(_AHEAD).with_options(options)


def _read_in_order(data_dir: str, shards: tuple[Shard, ...]) -> tf.data.Dataset:
    """Return pairs (index of the record: int64, serialized record), shard after shard.

    Reading fails if a shard does not contain the number of records that the manifest states.
    """
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
