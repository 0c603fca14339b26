"""The order of `bigbird_ja.data.order`, spelled out record by record, for comparison."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bigbird_ja.data import hashing
from bigbird_ja.data.order import Int64, Layout, ReaderStart, reader_shards, starts_of_host


def window_shards(layout: Layout, window: int, reader: int) -> Int64:
    """The shards of a reader's window, counted since epoch 0."""
    epoch, j = divmod(window, layout.windows_per_epoch)
    shards = reader_shards(layout, epoch, reader)
    each, windows = layout.shards_per_reader, layout.windows_per_epoch
    return shards[each * j // windows : each * (j + 1) // windows]


def window_records(layout: Layout, window: int, reader: int) -> Int64:
    """int64: the record ids of a reader's window in the order of delivery."""
    epoch = window // layout.windows_per_epoch
    shards = window_shards(layout, window, reader)
    starts = layout.starts
    ids = np.concatenate([starts[s] + np.arange(layout.counts[s]) for s in shards])
    key = hashing.fold(hashing.seed_key(layout.seed, hashing.RECORD_ORDER), epoch)
    return ids[hashing.permutation(key, ids)]


def reader_records(layout: Layout, start: ReaderStart) -> Iterator[tuple[int, int]]:
    """(epoch, record id) of a reader from `start` on, without end."""
    window, skip = start.window, start.skip
    while True:
        epoch = window // layout.windows_per_epoch
        for record in window_records(layout, window, start.reader)[skip:]:
            yield epoch, int(record)
        window, skip = window + 1, 0


def batches(
    layout: Layout, global_batch_size: int, step: int = 0, num_hosts: int = 1, host: int = 0
) -> Iterator[list[tuple[int, int]]]:
    """(epoch, record id) of a host's part of the global batches `step`, `step + 1`, ..."""
    starts = starts_of_host(layout, global_batch_size, step, num_hosts, host)
    readers = [reader_records(layout, start) for start in starts]
    turn = 0
    while True:
        batch = []
        for _ in range(global_batch_size // num_hosts):
            batch.append(next(readers[turn % len(readers)]))
            turn += 1
        yield batch
