"""Shards of equal size with packed sequences in random order, the second half of `make-data`.

The n records of a split are put in a random order, which depends on the seed. Shard k of K contains
the records at the places [n*k/K, n*(k+1)/K) of this order. So shards differ by one record at most,
and each is a random sample of the corpus. Sequences are read from the blocks one by one, so that
only some records are in memory.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bigbird_ja import __version__, storage
from bigbird_ja.data import masking, order, tfrecords
from bigbird_ja.data.blocks import StoredBlock
from bigbird_ja.data.hashing import Purpose, fold, permutation, seed_key
from bigbird_ja.data.manifest import DataSpec, Manifest, Shard, Split, Statistics
from bigbird_ja.text.corpus import Corpus

# Preferred size of a shard. It is small because the input pipeline keeps whole shards in memory.
_TARGET_BYTES = 2_000_000
# The number of train shards is a multiple of this, if there are enough records.
_READERS = 32
# Minimum number of records in a shard, unless the user chooses the number of shards.
_FEWEST_RECORDS = 8
_MAX_SHARDS = 8192
# Number of records that are masked and encoded in one call.
_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class SplitPlan:
    """Assignment of the sequences of one split to shards, in picklable form."""

    split: str
    blocks: tuple[StoredBlock, ...]
    folder: str
    copies: int  # Copies of each sequence with different masks, in each repetition.
    num_shards: int

    @functools.cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """Number of rows up to and including each block: int64 [blocks]."""
        return np.cumsum([block.stats.sequences for block in self.blocks], dtype=np.int64)

    @property
    def num_records(self) -> int:
        """Number of records. Each repetition and each copy of a sequence is a record."""
        return sum(block.stats.sequences * self._count_repeats(block) for block in self.blocks)

    def _count_repeats(self, block: StoredBlock) -> int:
        return block.stats.times * self.copies

    @functools.cached_property
    def _copies(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Three arrays with an element per copy of a block: end, copy number, index of first row.

        Records are numbered copy by copy, and within a copy block by block. Copy c contains the
        blocks that have more than c copies. The end is one more than the number of the last record
        in the copy of the block.
        """
        repeats = np.array([self._count_repeats(block) for block in self.blocks], np.int64)
        sizes = np.diff(self.ends, prepend=0)
        of_copy = [np.flatnonzero(repeats > copy) for copy in range(repeats.max(initial=0))]
        blocks = np.concatenate(of_copy)
        numbers = np.repeat(np.arange(len(of_copy)), [len(copy) for copy in of_copy])
        return np.cumsum(sizes[blocks]), numbers, (self.ends - sizes)[blocks]

    def locate(
        self, records: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the copy number of each record, and the index of its row in the split."""
        ends, copies, rows = self._copies
        at = np.searchsorted(ends, records, side="right")
        starts = np.concatenate([[0], ends[:-1]])
        return copies[at], rows[at] + records - starts[at]

    def name_shard(self, shard: int) -> str:
        """Return the file name of a shard."""
        return f"{self.split}-{shard:05d}-of-{self.num_shards:05d}.tfrecord"


@dataclass(frozen=True)
class MadeShard:
    """Description of a shard that was written."""

    shard: Shard
    predictions: int  # Number of positions to predict, 0 for dynamic data.


def plan_split(split: str, blocks: list[StoredBlock], folder: str, spec: DataSpec) -> SplitPlan:
    """Choose the number of shards of a split, and return its plan.

    An eval sequence has only one copy, because its masks never change.
    """
    copies = spec.dupe_factor if split == "train" else 1
    total = SplitPlan(split, tuple(blocks), folder, copies, 0).num_records
    if split == "train" and spec.num_shards:
        number = min(spec.num_shards, total)
    elif split == "train":
        number = choose_num_shards(total, spec.record_bytes)
    else:
        number = min(total, -(-total * spec.record_bytes // (8 * _TARGET_BYTES)))
    return SplitPlan(split, tuple(blocks), folder, copies, number)


def choose_num_shards(num_records: int, record_bytes: int) -> int:
    """Choose the number of shards.

    With 256 records or more, it is a multiple of 32, else a power of two.
    """
    most = max(1, num_records // _FEWEST_RECORDS)
    if most < _READERS:
        return 1 << (most.bit_length() - 1)
    wanted = -(-num_records * record_bytes // _TARGET_BYTES)
    wanted = max(_READERS, -(-wanted // _READERS) * _READERS)
    return int(min(wanted, most // _READERS * _READERS, _MAX_SHARDS))


def write_shard(plan: SplitPlan, shard: int, spec: DataSpec, path: str) -> MadeShard:
    """Write one shard atomically, and return its description.

    The rows are read from the blocks, masked if the masks are static, and encoded.
    """
    n, k = plan.num_records, plan.num_shards
    items = shuffle_records(n, spec.seed, plan.split)[n * shard // k : n * (shard + 1) // k]
    copy, row = plan.locate(items)
    predictions = 0
    with storage.writing(path) as file:
        content = tfrecords.Summed(file)
        for at in range(0, len(items), _ROWS_AT_ONCE):
            part = slice(at, at + _ROWS_AT_ONCE)
            rows = _gather(plan, row[part], spec)
            encoded, predicted = _encode(rows, copy[part], row[part], spec)
            content.write(tfrecords.frame_records(encoded))
            predictions += predicted
    name = plan.name_shard(shard)
    return MadeShard(Shard(name, len(items), **content.compute_sums()), predictions)


def _encode(
    rows: npt.NDArray[Any], copy: npt.NDArray[Any], row: npt.NDArray[Any], spec: DataSpec
) -> tuple[list[bytes], int]:
    if spec.masking == "dynamic":
        numbers = {}
        if spec.nsp:
            numbers = {"segment_b": rows["segment_b"], "next_sentence_labels": rows["label"]}
        return tfrecords.encode_dynamic(rows["tokens"], rows["word_starts"], numbers), 0
    features = make_static_features(rows, copy, row, spec)
    return tfrecords.encode_static(features), int(features["masked_lm_weights"].sum())


def make_static_features(
    rows: npt.NDArray[Any], copy: npt.NDArray[Any], row: npt.NDArray[Any], spec: DataSpec
) -> dict[str, npt.NDArray[Any]]:
    """Return BERT's classic features of a batch of rows, by name.

    Copy c of row r has the masks that dynamic masking draws for record r in epoch c.
    """
    tokens = rows["tokens"].astype(np.int32)
    starts = np.unpackbits(rows["word_starts"], axis=1, count=spec.seq_length).astype(bool)
    made = masking.mask(tokens, starts, copy, row, spec.seed, spec.make_rule())
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
def shuffle_records(num_records: int, seed: int, split: str) -> npt.NDArray[np.int64]:
    """Return the record number at each place of the shuffled split: int64 [records]."""
    key = fold(seed_key(seed, Purpose.SCATTER), split == "eval")
    return permutation(key, np.arange(num_records))


def _gather(plan: SplitPlan, row: npt.NDArray[Any], spec: DataSpec) -> npt.NDArray[Any]:
    """Read the rows with the indices `row` in the split, from the blocks that contain them."""
    order = np.argsort(row, kind="stable")
    block_of = np.searchsorted(plan.ends, row[order], side="right")
    result = np.empty(len(row), spec.row_dtype)
    for number in np.unique(block_of):
        block = plan.blocks[number]
        mine = order[block_of == number]
        before = plan.ends[number] - block.stats.sequences
        result[mine] = block.read_rows(plan.folder, row[mine] - before, spec.row_dtype)
    return result


def make_manifest(
    spec: DataSpec,
    corpus: Corpus,
    plans: Sequence[SplitPlan],
    made: Sequence[Sequence[MadeShard]],
    **about: Any,
) -> Manifest:
    """Return the manifest of finished shards, with the sums of all blocks' counts.

    `about` contains the fields of `Statistics` that are not such sums.
    """
    counts = [_sum_counts(plan) for plan in plans]
    if spec.masking == "static":
        for count, shards in zip(counts, made, strict=True):
            count["predictions"] = sum(m.predictions for m in shards)
    shard_lists = [tuple(m.shard for m in each) for each in made]
    stats = [block.stats for plan in plans for block in plan.blocks]
    return Manifest(
        **vars(spec),
        num_readers=order.choose_num_readers([shard.records for shard in shard_lists[0]]),
        train=Split(**counts[0]),
        eval=Split(**counts[1]),
        train_shards=shard_lists[0],
        eval_shards=shard_lists[1],
        statistics=Statistics(
            document_tokens=_sum_histograms([(s.document_tokens, s.times) for s in stats]),
            documents_per_sequence=_sum_histograms(
                [(s.documents_per_sequence, s.times) for s in stats]
            ),
            sequences_left_out=sum(s.left_out for s in stats),
            unknown=sum(s.unknown * s.times for s in stats),
            unknown_characters=_pick_most_frequent([s.unknown_characters for s in stats]),
            **about,
        ),
        sources=tuple(corpus.sources),
        created_by=f"bigbird-ja {__version__}",
    )


def _pick_most_frequent(counts: Sequence[dict[str, int]]) -> str:
    """Return the ten most frequent characters, the most frequent one first."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return "".join(sorted(total, key=lambda c: (-total[c], c))[:10])


def _sum_counts(plan: SplitPlan) -> dict[str, int]:
    """Return the counts of a split by the field names of `Split`, summed over its blocks."""
    stats = [block.stats for block in plan.blocks]
    counts = {
        name: sum(getattr(s, name) * s.times for s in stats)
        for name in ("documents", "tokens", "sequences", "used_positions", "predictions")
    }
    counts["sequences"] *= plan.copies
    counts["used_positions"] *= plan.copies
    return counts


def _sum_histograms(histograms: Sequence[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """Return the weighted sum of histograms, given as pairs (histogram, weight)."""
    scaled = [[count * times for count in histogram] for histogram, times in histograms]
    return tuple(sum(column) for column in zip(*scaled, strict=True))
