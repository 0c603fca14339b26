"""Order of the records in training: global batch n depends only on manifest, settings and n.

Global positions 0, 1, 2, ... run through the data set once per epoch. With N records and a batch
size of B, epoch e consists of the positions [e*N, (e+1)*N), and batch n of the positions
[n*B, (n+1)*B).

The records are divided among R virtual readers, a number in the manifest. Position m is read by
reader m mod R. With H hosts, host h runs the readers r with r mod H = h. Their records take the
places b of each batch with b mod H = h. So the global batches are the same for every H that divides
R and B.

In each epoch, the shards are assigned to the readers at random. A reader loads `window` shards at a
time, and permutes the records of a window. The lengths of two shards may differ by one record. The
longer shards are assigned so that each reader gets exactly as many records as it has positions.

This module reads no files. `pipeline` calls its functions with `ops.TensorFlowOps`, so that the
order is computed in TensorFlow's graph while records are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bigbird_ja.data.hashing import Purpose, seed_key
from bigbird_ja.data.ops import NUMPY, ArrayOps
from bigbird_ja.errors import BadInput

_MAX_READERS = 32


@dataclass(frozen=True)
class Layout:
    """Shards and settings that determine the order of the records.

    Attributes:
        counts: number of records of each shard, in the manifest's order. With more than one reader
            the numbers differ by one at most.
        num_readers: number of virtual readers, which divides the number of shards.
        seed: seed of the order (`data.seed`).
        window: number of shards that one reader mixes (`data.shuffle_window`).
    """

    counts: tuple[int, ...]
    num_readers: int
    seed: int
    window: int

    @property
    def num_records(self) -> int:
        """Number of records of an epoch (N)."""
        return sum(self.counts)

    @property
    def shards_per_reader(self) -> int:
        """Number of shards of one reader in one epoch."""
        return len(self.counts) // self.num_readers

    @property
    def windows_per_epoch(self) -> int:
        """Number of windows of one reader in one epoch."""
        return -(-self.shards_per_reader // self.window)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Record id of each shard's first record: int64 [shards]."""
        return np.concatenate([[0], np.cumsum(self.counts)[:-1]]).astype(np.int64)


@dataclass(frozen=True)
class ReaderStart:
    """Start of a reader: its first window, and the number of records to skip in that window.

    Windows are numbered from the reader's first window of epoch 0.
    """

    reader: int
    window: int
    skip: int


def choose_num_readers(counts: Sequence[int]) -> int:
    """Return the number of virtual readers for some shards.

    It is the largest power of two up to 32 that divides the number of shards. But if the shards'
    numbers of records differ by more than one, it is 1.

    Args:
        counts: number of records of each shard.
    """
    return 1 if max(counts) - min(counts) > 1 else int(np.gcd(len(counts), _MAX_READERS))


def check_hosts(num_readers: int, global_batch_size: int, num_hosts: int) -> None:
    """Check that readers and batches can be divided equally over the hosts.

    Raises:
        BadInput: `num_hosts` does not divide the readers or the batch.
    """
    if num_readers % num_hosts:
        raise BadInput(
            f"{num_hosts} hosts cannot share the data set's {num_readers} readers evenly: use a"
            f" number of hosts that divides {num_readers}, or make the data with a `num_shards`"
            " that is a multiple of 32"
        )
    if global_batch_size % num_hosts:
        raise BadInput(
            f"training.global_batch_size={global_batch_size} is not divisible by {num_hosts} hosts:"
            " use a multiple of the number of hosts"
        )


def count_positions_before(layout: Layout, position: Any, reader: Any) -> Any:
    """Count the global positions below `position` that `reader` reads."""
    return (position + layout.num_readers - 1 - reader) // layout.num_readers


def count_records(layout: Layout, epoch: Any, reader: Any) -> Any:
    """Count the records of `reader` in an epoch.

    `epoch` and `reader` may be numbers, or arrays of NumPy or TensorFlow.
    """
    n = layout.num_records
    return count_positions_before(layout, (epoch + 1) * n, reader) - count_positions_before(
        layout, epoch * n, reader
    )


def list_window_shards(layout: Layout, window: Any, reader: Any, arrays: ArrayOps = NUMPY) -> Any:
    """Return the shards that a reader loads for a window: int64 [shards].

    Windows are numbered from the reader's first window of epoch 0.
    """
    epoch, j = window // layout.windows_per_epoch, window % layout.windows_per_epoch
    return list_reader_shards(layout, epoch, reader, arrays)[_slice_window(layout, j)]


def list_reader_shards(layout: Layout, epoch: Any, reader: Any, arrays: ArrayOps = NUMPY) -> Any:
    """Return a reader's shards in an epoch, in the order of reading: int64 [shards_per_reader]."""
    dealt = _deal(layout, epoch, reader, arrays)
    visits = permute(layout, Purpose.READER_ORDER, epoch, dealt, arrays)
    return arrays.gather(dealt, visits)


def permute(layout: Layout, purpose: int, epoch: Any, ids: Any, arrays: ArrayOps = NUMPY) -> Any:
    """Return the indices that put `ids` (int64, unique) in a random order.

    The order depends on the seed, the purpose and the epoch.
    """
    key = arrays.fold(seed_key(layout.seed, purpose), epoch)
    return arrays.permutation(key, ids)


def _deal(layout: Layout, epoch: Any, reader: Any, arrays: ArrayOps) -> Any:
    """Return a reader's shards in an epoch, in no particular order: int64 [shards_per_reader].

    Each shard belongs to one reader.
    """
    every, counts = np.arange(len(layout.counts)), np.asarray(layout.counts)
    if layout.num_readers == 1:
        return every
    shuffled = permute(layout, Purpose.SHARD_ORDER, epoch, every, arrays)
    is_longer = arrays.gather(counts, shuffled) > counts.min()
    longer, shorter = arrays.select(shuffled, is_longer), arrays.select(shuffled, ~is_longer)
    each = layout.shards_per_reader
    # Count the longer shards of each reader, and of all readers before it.
    extras = count_records(layout, epoch, np.arange(layout.num_readers)) - each * counts.min()
    before = arrays.gather(arrays.xp.cumsum(extras) - extras, reader)
    extra, first = arrays.gather(extras, reader), reader * each - before
    return arrays.concat([longer[before : before + extra], shorter[first : first + each - extra]])


def _slice_window(layout: Layout, j: Any) -> slice:
    each, windows = layout.shards_per_reader, layout.windows_per_epoch
    return slice(each * j // windows, each * (j + 1) // windows)


def find_reader_start(layout: Layout, position: int, reader: int) -> ReaderStart:
    """Return where `reader` continues after all global positions below `position` were read."""
    taken = count_positions_before(layout, position, reader)
    epoch = (reader + taken * layout.num_readers) // layout.num_records
    left = taken - count_positions_before(layout, epoch * layout.num_records, reader)
    counts = np.asarray(layout.counts)[list_reader_shards(layout, epoch, reader)]
    for j in range(layout.windows_per_epoch):
        inside = int(counts[_slice_window(layout, j)].sum())
        if left < inside:
            return ReaderStart(reader, epoch * layout.windows_per_epoch + j, left)
        left -= inside
    raise AssertionError("a reader's number of records differs from the sum of its shards' records")


def find_host_starts(
    layout: Layout, global_batch_size: int, step: int, num_hosts: int = 1, host: int = 0
) -> list[ReaderStart]:
    """Return where the readers of a host start for batch `step`, in the order of their records.

    Raises:
        BadInput: `num_hosts` does not divide the readers or the batch.
    """
    check_hosts(layout.num_readers, global_batch_size, num_hosts)
    position = step * global_batch_size
    turns = range(position + host, position + host + layout.num_readers, num_hosts)
    return [find_reader_start(layout, position, turn % layout.num_readers) for turn in turns]
