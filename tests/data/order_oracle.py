"""The order of records as docs/design/data.md has it, one Python integer at a time.

It takes the numbers of a `Layout` and calls nothing of the package, least of all what it checks.
"""

import itertools

WORD = 0xFFFFFFFF
SHARDS, READERS, RECORDS = 1, 2, 3  # what a hash is for


def mix(x):
    """lowbias32."""
    x = (x ^ x >> 16) * 0x7FEB352D & WORD
    x = (x ^ x >> 15) * 0x846CA68B & WORD
    return x ^ x >> 16


def fold(*coordinates):
    key = 0
    for value in coordinates:
        key = mix(key * 0x9E3779B9 + value + 1 & WORD)
    return key


def shuffled(layout, purpose, epoch, ids):
    """In the order of their hashes."""
    seed = layout.seed & WORD, layout.seed >> 32
    return sorted(ids, key=lambda i: (fold(purpose, *seed, epoch, i), i))


def reader_shards(layout, epoch):
    """Of each reader: its shards in an epoch, in the order of its visits."""
    counts, readers = layout.counts, layout.num_readers
    each, n, shortest = len(counts) // readers, sum(counts), min(counts)
    every = [*range(len(counts))]
    if readers > 1:
        every = shuffled(layout, SHARDS, epoch, every)
    longer = [s for s in every if counts[s] > shortest] if readers > 1 else []
    shorter = [s for s in every if s not in set(longer)]
    dealt = []
    for reader in range(readers):
        positions = sum(m % readers == reader for m in range(epoch * n, (epoch + 1) * n))
        extra = positions - each * shortest if readers > 1 else 0
        mine, longer = longer[:extra], longer[extra:]
        mine += shorter[: each - extra]
        shorter = shorter[each - extra :]
        dealt.append(shuffled(layout, READERS, epoch, mine))
    return dealt


def window_records(layout, epoch, shards):
    """Of each window of a reader in an epoch: its records, mixed."""
    windows = -(-len(shards) // layout.window)
    starts = [0, *itertools.accumulate(layout.counts)]
    for j in range(windows):
        part = shards[len(shards) * j // windows : len(shards) * (j + 1) // windows]
        ids = [i for s in part for i in range(starts[s], starts[s + 1])]
        yield shuffled(layout, RECORDS, epoch, ids)


def batches(layout, global_batch_size, step=0):
    """(epoch, record id) of the global batches `step`, `step + 1`, ..., without end."""
    n, readers = sum(layout.counts), layout.num_readers
    first = step * global_batch_size

    def records():
        for epoch in itertools.count(first // n):
            queues = [
                itertools.chain.from_iterable(window_records(layout, epoch, shards))
                for shards in reader_shards(layout, epoch)
            ]
            for m in range(epoch * n, (epoch + 1) * n):
                record = epoch, next(queues[m % readers])
                if m >= first:
                    yield record

    stream = records()
    while True:
        yield [*itertools.islice(stream, global_batch_size)]
