"""The second half of `make-data`: packed sequences, scattered over equal shards.

Where a record goes is a permutation of all records of its split, keyed by the seed: shard k holds
the records at places [n*k/K, n*(k+1)/K) of it, so shards differ by one record at most and each is a
random sample of the corpus. A shard gathers its sequences from the blocks one by one; nothing but
the shard itself is in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bigbird_ja import __version__, storage
from bigbird_ja.data import hashing, masking, order, records
from bigbird_ja.data.blocks import StoredBlock
from bigbird_ja.data.manifest import Manifest, Shard, Split
from bigbird_ja.data.spec import DataSpec

# Shards are made about this large, because the input pipeline holds windows of whole shards.
_TARGET_BYTES = 2_000_000
_READERS = 32  # the number of shards is a multiple of it where there are records enough
_FEWEST_RECORDS = 8  # per shard, where the number of shards is ours to choose
_MOST_SHARDS = 8192
_ROWS_AT_ONCE = 64  # records that are masked and encoded together


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


def plan_split(split: str, blocks: list[StoredBlock], spec: DataSpec) -> SplitPlan:
    """Decides the number of shards. Eval records get one copy: they are always masked the same."""
    copies = spec.dupe_factor if split == "train" else 1
    total = sum(block.stats.sequences for block in blocks) * copies
    if split == "train" and spec.num_shards:
        number = min(spec.num_shards, total)
    elif split == "train":
        number = choose_num_shards(total, spec.record_bytes)
    else:
        number = min(total, -(-total * spec.record_bytes // (8 * _TARGET_BYTES)))
    return SplitPlan(split, tuple(blocks), copies, number)


def choose_num_shards(num_records: int, record_bytes: int) -> int:
    """A multiple of 32 where there are records enough for it, else a power of two."""
    most = max(1, num_records // _FEWEST_RECORDS)
    if most < _READERS:
        return 1 << (most.bit_length() - 1)
    wanted = -(-num_records * record_bytes // _TARGET_BYTES)
    wanted = max(_READERS, -(-wanted // _READERS) * _READERS)
    return int(min(wanted, most // _READERS * _READERS, _MOST_SHARDS))


def write_shard(plan: SplitPlan, shard: int, spec: DataSpec, path: str) -> MadeShard:
    """Writes one shard to a local file, whole or not at all: gathers its rows from the blocks,
    masks them (static) and encodes them."""
    first, last = plan.bounds(shard)
    items = scatter_order(plan.num_records, spec.seed, plan.split)[first:last]
    copy, row = items // plan.num_rows, items % plan.num_rows
    predictions = 0
    with storage.writing(path) as file:
        content = records.Summed(file)
        for at in range(0, len(items), _ROWS_AT_ONCE):
            part = slice(at, at + _ROWS_AT_ONCE)
            rows = _gather(plan, row[part], spec)
            encoded, predicted = _encode(rows, copy[part], row[part], spec)
            content.write(records.frame(encoded))
            predictions += predicted
    name = plan.name(shard)
    return MadeShard(Shard(name, len(items), **content.sums()), predictions)


def _encode(
    rows: npt.NDArray[Any], copy: npt.NDArray[Any], row: npt.NDArray[Any], spec: DataSpec
) -> tuple[list[bytes], int]:
    if spec.masking == "dynamic":
        extra = (rows["segment_b"], rows["label"]) if spec.nsp else (None, None)
        return records.encode_dynamic(rows["tokens"], rows["word_starts"], *extra), 0
    features = static_features(rows, copy, row, spec)
    return records.encode_static(features), int(features["masked_lm_weights"].sum())


def static_features(
    rows: npt.NDArray[Any], copy: npt.NDArray[Any], row: npt.NDArray[Any], spec: DataSpec
) -> dict[str, npt.NDArray[Any]]:
    """The classic features of a batch of rows; copy c of row r is masked as epoch c of record r."""
    tokens = rows["tokens"].astype(np.int32)
    starts = np.unpackbits(rows["word_starts"], axis=1, count=spec.seq_length).astype(bool)
    made = masking.mask(tokens, starts, copy, row, spec.seed, spec.rule())
    is_text = tokens != spec.special_ids["pad"]
    in_b = (np.arange(spec.seq_length)[None, :] >= rows["segment_b"][:, None]) & is_text
    ends = tokens == spec.special_ids["sep"]
    runs = np.cumsum(ends, axis=1) - ends + 1
    features = {"input_ids": made["input_ids"]}
    if spec.input_mask:
        features["input_mask"] = is_text.astype(np.int32)
    features["segment_ids"] = in_b.astype(np.int32)
    for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        features[name] = made[name]
    features["next_sentence_labels"] = rows["label"].astype(np.int32)[:, None]
    features["document_ids"] = np.where(is_text, runs, 0)
    return features


@functools.lru_cache(maxsize=2)
def scatter_order(num_records: int, seed: int, split: str) -> npt.NDArray[np.int64]:
    """int64 [records]: at each place of the shuffled split, copy * rows + row."""
    key = hashing.fold(hashing.seed_key(seed, hashing.SCATTER), split == "eval")
    return hashing.permutation(key, np.arange(num_records))


def _gather(plan: SplitPlan, row: npt.NDArray[Any], spec: DataSpec) -> npt.NDArray[Any]:
    """The rows with these numbers, each read from its block."""
    ends = np.cumsum([block.stats.sequences for block in plan.blocks])
    order = np.argsort(row, kind="stable")
    block_of = np.searchsorted(ends, row[order], side="right")
    result = np.empty(len(row), spec.row_dtype)
    for number in np.unique(block_of):
        block = plan.blocks[number]
        mine = order[block_of == number]
        before = ends[number] - block.stats.sequences
        result[mine] = block.rows(row[mine] - before, spec.row_dtype)
    return result


def manifest_of(
    spec: DataSpec,
    sources: Sequence[str],
    plans: Sequence[SplitPlan],
    made: Sequence[Sequence[MadeShard]],
) -> Manifest:
    """The manifest of finished shards, from the counts of their blocks."""
    splits = [_split_of(plan, m, spec) for plan, m in zip(plans, made, strict=True)]
    stats = [block.stats for plan in plans for block in plan.blocks]
    shard_lists = [tuple(m.shard for m in each) for each in made]
    return Manifest(
        **vars(spec),
        num_readers=order.choose_num_readers([shard.records for shard in shard_lists[0]]),
        train=splits[0],
        eval=splits[1],
        train_shards=shard_lists[0],
        eval_shards=shard_lists[1],
        statistics={
            "document_tokens": _sum([s.document_tokens for s in stats]),
            "documents_per_sequence": _sum([s.documents_per_sequence for s in stats]),
            "sequences_left_out": sum(s.left_out for s in stats),
        },
        sources=tuple(sources),
        created_by=f"bigbird-ja {__version__}",
    )


def _split_of(plan: SplitPlan, made: Sequence[MadeShard], spec: DataSpec) -> Split:
    stats = [block.stats for block in plan.blocks]
    if spec.masking == "static":
        predictions = sum(m.predictions for m in made)
    else:
        predictions = sum(s.predictions for s in stats)
    return Split(
        documents=sum(s.documents for s in stats),
        tokens=sum(s.tokens for s in stats),
        sequences=plan.num_records,
        used_positions=sum(s.used_positions for s in stats) * plan.copies,
        predictions=predictions,
    )


def _sum(histograms: Sequence[tuple[int, ...]]) -> list[int]:
    return [sum(column) for column in zip(*histograms, strict=True)]
