"""The second half of `make-data`: packed sequences, scattered over equal shards.

Where a record goes is a permutation of all records of its split, keyed by the seed: shard k holds
the records at places [n*k/K, n*(k+1)/K) of it, so shards differ by one record at most and each is a
random sample of the corpus. A shard gathers its sequences from the blocks one by one; nothing but
the shard itself is in memory.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from bigbird_ja.data import hashing, records, static_masking
from bigbird_ja.data.blocks import StoredBlock
from bigbird_ja.data.manifest import Shard
from bigbird_ja.data.settings import DataSettings
from bigbird_ja.storage import local

# Shards are made about this large, because the input pipeline holds windows of whole shards.
_TARGET_BYTES = 2_000_000
_READERS = 32  # the number of shards is a multiple of it where there are records enough
_FEWEST_RECORDS = 8  # per shard, where the number of shards is ours to choose
_MOST_SHARDS = 8192
ROWS_AT_ONCE = 64  # records that are masked and encoded together


@dataclass(frozen=True)
class SplitPlan:
    """How the sequences of one split become shards. Picklable."""

    split: str
    blocks: tuple[StoredBlock, ...]
    copies: int
    num_shards: int

    @property
    def num_rows(self) -> int:
        """Packed sequences."""
        return sum(block.stats.sequences for block in self.blocks)

    @property
    def num_records(self) -> int:
        """Records: every copy counts."""
        return self.num_rows * self.copies

    def name(self, shard: int) -> str:
        """File name of a shard."""
        return f"{self.split}-{shard:05d}-of-{self.num_shards:05d}.tfrecord"

    def bounds(self, shard: int) -> tuple[int, int]:
        """The places [first, last) of a shard in the permutation."""
        n = self.num_records
        return n * shard // self.num_shards, n * (shard + 1) // self.num_shards


@dataclass(frozen=True)
class MadeShard:
    """What the manifest says of a shard that was written."""

    shard: Shard
    predictions: int  # positions to predict (static only)


# Rows of `settings.row_dtype`, the copy that each is of, its number among the rows of its split.
Batch = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


def plan_split(split: str, blocks: list[StoredBlock], settings: DataSettings) -> SplitPlan:
    """Decides the number of shards. Eval records get one copy: they are always masked the same."""
    copies = settings.dupe_factor if split == "train" else 1
    total = sum(block.stats.sequences for block in blocks) * copies
    if split == "train" and settings.num_shards:
        number = min(settings.num_shards, total)
    elif split == "train":
        number = choose_num_shards(total, settings.record_bytes)
    else:
        number = min(total, -(-total * settings.record_bytes // (8 * _TARGET_BYTES)))
    return SplitPlan(split, tuple(blocks), copies, number)


def choose_num_shards(num_records: int, record_bytes: int) -> int:
    """A multiple of 32 where there are records enough for it, else a power of two."""
    most = max(1, num_records // _FEWEST_RECORDS)
    if most < _READERS:
        return 1 << (most.bit_length() - 1)
    wanted = -(-num_records * record_bytes // _TARGET_BYTES)
    wanted = max(_READERS, -(-wanted // _READERS) * _READERS)
    return int(min(wanted, most // _READERS * _READERS, _MOST_SHARDS))


def write_shard(plan: SplitPlan, shard: int, settings: DataSettings, path: str) -> MadeShard:
    """Writes one shard to a local file, whole or not at all, gathering its rows from the blocks."""
    first, last = plan.bounds(shard)
    items = places(plan, settings)[first:last]
    copy, row = items // plan.num_rows, items % plan.num_rows

    def batches() -> Iterator[Batch]:
        for at in range(0, len(items), ROWS_AT_ONCE):
            part = slice(at, at + ROWS_AT_ONCE)
            yield _gather(plan, row[part], settings), copy[part], row[part]

    return write_records(batches(), plan.name(shard), settings, path)


def write_records(
    batches: Iterable[Batch], name: str, settings: DataSettings, path: str
) -> MadeShard:
    """Masks (static), encodes and writes rows as the TFRecord file `path`."""
    sha, crc, size, count, predictions = hashlib.sha256(), 0, 0, 0, 0
    with local.writing(path) as file:
        for rows, copy, row in batches:
            encoded, predicted = _encode(rows, copy, row, settings)
            data = records.frame(encoded)
            file.write(data)
            sha.update(data)
            crc = google_crc32c.extend(crc, data)
            size += len(data)
            count += len(encoded)
            predictions += predicted
    text = base64.b64encode(crc.to_bytes(4, "big")).decode()
    return MadeShard(Shard(name, count, size, sha.hexdigest(), text), predictions)


def _encode(
    rows: npt.NDArray[Any], copy: npt.NDArray[Any], row: npt.NDArray[Any], settings: DataSettings
) -> tuple[list[bytes], int]:
    if settings.masking == "dynamic":
        extra = (rows["segment_b"], rows["label"]) if settings.nsp else (None, None)
        return records.encode_dynamic(rows["tokens"], rows["word_starts"], *extra), 0
    features = static_features(rows, copy, row, settings)
    return records.encode_static(features), int(features["masked_lm_weights"].sum())


def static_features(
    rows: npt.NDArray[Any], copy: npt.NDArray[Any], row: npt.NDArray[Any], settings: DataSettings
) -> dict[str, npt.NDArray[Any]]:
    """The classic features of a batch of rows; copy c of row r is masked as epoch c of record r."""
    tokens = rows["tokens"].astype(np.int32)
    starts = np.unpackbits(rows["word_starts"], axis=1, count=settings.seq_length).astype(bool)
    made = static_masking.mask(tokens, starts, copy, row, settings.seed, settings.rule())
    is_text = tokens != settings.specials["pad"]
    in_b = (np.arange(settings.seq_length)[None, :] >= rows["segment_b"][:, None]) & is_text
    ends = tokens == settings.specials["sep"]
    runs = np.cumsum(ends, axis=1) - ends + 1
    features = {"input_ids": made["input_ids"]}
    if settings.input_mask:
        features["input_mask"] = is_text.astype(np.int32)
    features["segment_ids"] = in_b.astype(np.int32)
    for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        features[name] = made[name]
    features["next_sentence_labels"] = rows["label"].astype(np.int32)[:, None]
    features["document_ids"] = np.where(is_text, runs, 0)
    return features


def places(plan: SplitPlan, settings: DataSettings) -> npt.NDArray[np.int64]:
    """int64 [records]: at each place of the shuffled split, copy * rows + row."""
    return scatter_order(plan.num_records, settings.seed, plan.split)


@functools.lru_cache(maxsize=2)
def scatter_order(num_records: int, seed: int, split: str) -> npt.NDArray[np.int64]:
    """The permutation that scatters a split's records."""
    key = hashing.fold(hashing.seed_key(seed, hashing.SCATTER), split == "eval")
    return hashing.permutation(key, np.arange(num_records))


def _gather(plan: SplitPlan, row: npt.NDArray[Any], settings: DataSettings) -> npt.NDArray[Any]:
    """The rows with these numbers, each read from its block."""
    ends = np.cumsum([block.stats.sequences for block in plan.blocks])
    order = np.argsort(row, kind="stable")
    block_of = np.searchsorted(ends, row[order], side="right")
    result = np.empty(len(row), settings.row_dtype)
    for number in np.unique(block_of):
        block = plan.blocks[number]
        mine = order[block_of == number]
        before = ends[number] - block.stats.sequences
        result[mine] = block.rows(row[mine] - before, settings.row_dtype)
    return result
