"""The order of `order`, computed inside a `tf.data` graph, so that it needs no list of the future.

Bit for bit the same as `order` (a test compares them). Integers are int64; nothing is read here.
"""

from __future__ import annotations

import tensorflow as tf

from bigbird_ja.data import hashing, hashing_tf
from bigbird_ja.data.order import Layout


def window_shards(layout: Layout, window: tf.Tensor, reader: tf.Tensor) -> tf.Tensor:
    """`order.window_shards`: int64 [shards of the window]."""
    epoch = window // layout.windows_per_epoch
    shards = reader_shards(layout, epoch, reader)
    each, windows = layout.shards_per_reader, layout.windows_per_epoch
    j = window % layout.windows_per_epoch
    return shards[each * j // windows : each * (j + 1) // windows]


def reader_shards(layout: Layout, epoch: tf.Tensor, reader: tf.Tensor) -> tf.Tensor:
    """`order.reader_shards`: int64 [shards_per_reader]."""
    mine = _dealt(layout, epoch, reader)
    key = hashing_tf.fold(hashing.seed_key(layout.seed, hashing.READER_ORDER), epoch)
    return tf.gather(mine, tf.argsort(hashing_tf.sort_keys(key, mine)))


def record_order(layout: Layout, epoch: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """The order in which the records of a window are delivered, as indices into `ids` (int64)."""
    key = hashing_tf.fold(hashing.seed_key(layout.seed, hashing.RECORD_ORDER), epoch)
    return tf.argsort(hashing_tf.sort_keys(key, ids))


def _dealt(layout: Layout, epoch: tf.Tensor, reader: tf.Tensor) -> tf.Tensor:
    num_shards, each = len(layout.counts), layout.shards_per_reader
    every = tf.range(num_shards, dtype=tf.int64)
    if layout.num_readers == 1:
        return every
    key = hashing_tf.fold(hashing.seed_key(layout.seed, hashing.SHARD_ORDER), epoch)
    order = tf.argsort(hashing_tf.sort_keys(key, every))
    shortest = min(layout.counts)
    is_longer = tf.gather(tf.constant(layout.counts, tf.int64), order) > shortest
    longer = tf.cast(tf.boolean_mask(order, is_longer), tf.int64)
    shorter = tf.cast(tf.boolean_mask(order, ~is_longer), tf.int64)
    readers = tf.range(layout.num_readers, dtype=tf.int64)
    extra = _quota(layout, epoch, readers) - each * shortest
    before = tf.gather(tf.cumsum(extra, exclusive=True), reader)
    extra = tf.gather(extra, reader)
    first = reader * each - before
    mine = [longer[before : before + extra], shorter[first : first + each - extra]]
    return tf.ensure_shape(tf.concat(mine, 0), [each])


def _quota(layout: Layout, epoch: tf.Tensor, readers: tf.Tensor) -> tf.Tensor:
    n, r = layout.num_records, layout.num_readers
    return ((epoch + 1) * n + r - 1 - readers) // r - (epoch * n + r - 1 - readers) // r
