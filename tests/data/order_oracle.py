"""The order of `bigbird_ja.data.order`, spelled out record by record, for comparison."""

import itertools

import numpy as np

from bigbird_ja.data import hashing
from bigbird_ja.data.order import reader_shards, starts_of_host


def window_records(layout, window, reader):
    """int64: the record ids of a reader's window, counted since epoch 0, as they are delivered."""
    epoch, j = divmod(window, layout.windows_per_epoch)
    each, windows = layout.shards_per_reader, layout.windows_per_epoch
    shards = reader_shards(layout, epoch, reader)[each * j // windows : each * (j + 1) // windows]
    ids = np.concatenate([layout.starts[s] + np.arange(layout.counts[s]) for s in shards])
    key = hashing.fold(hashing.seed_key(layout.seed, hashing.RECORD_ORDER), epoch)
    return ids[hashing.permutation(key, ids)]


def reader_records(layout, start):
    """(epoch, record id) of a reader from `start` on, without end."""
    skip = start.skip
    for window in itertools.count(start.window):
        for record in window_records(layout, window, start.reader)[skip:]:
            yield window // layout.windows_per_epoch, int(record)
        skip = 0


def batches(layout, global_batch_size, step=0, num_hosts=1, host=0):
    """(epoch, record id) of a host's part of the global batches `step`, `step + 1`, ..."""
    starts = starts_of_host(layout, global_batch_size, step, num_hosts, host)
    turns = itertools.cycle([reader_records(layout, start) for start in starts])
    while True:
        yield [next(next(turns)) for _ in range(global_batch_size // num_hosts)]
