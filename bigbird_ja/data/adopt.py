"""`check-data --adopt`: a manifest for classic static TFRecords that were made elsewhere.

Such records (google-research/bigbird, bert) hold `input_ids`, `segment_ids`, `masked_lm_positions`,
`masked_lm_ids`, `masked_lm_weights` and `next_sentence_labels`; lengths are read from the first
one, ids come from the user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bigbird_ja import __version__, storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import order, records
from bigbird_ja.data.manifest import Manifest, Shard, Split
from bigbird_ja.process.errors import BadInput

_NEEDED = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


@dataclass(frozen=True)
class Ids:
    """What the records' numbers mean: the tokenizer they were made with."""

    vocab_size: int
    special_ids: dict[str, int]  # at least pad, cls, sep, mask
    tokenizer: bytes | None = None  # copied to tokenizer.model


def adopt(
    data_dir: str,
    train: Sequence[str],
    evaluation: Sequence[str],
    ids: Ids,
    nsp: bool | None = None,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Counts the records of some files in `data_dir` and writes their manifest.

    Args:
        data_dir: on disk or gs://.
        train, evaluation: file names in it.
        ids: of the tokenizer.
        nsp: whether next-sentence labels are to be learned; None: if any segment B is there.
        progress: told the bytes that were read since the last call.

    Raises:
        BadInput: a manifest is there already, a file is damaged or holds other records.
    """
    if storage.exists(storage.join(data_dir, manifest_lib.FILE_NAME)):
        raise BadInput(
            f"{data_dir} has a manifest.json already: remove it to adopt the records anew"
        )
    if not train:
        raise BadInput(f"{data_dir}: no file to adopt: see --adopt_files")
    target = storage.join(data_dir, manifest_lib.TOKENIZER_NAME)
    if ids.tokenizer and storage.exists(target) and storage.read_bytes(target) != ids.tokenizer:
        raise BadInput(f"{target}: another tokenizer than --tokenizer is there: move it away")
    tally = _Tally(ids)
    shards = {}
    splits = {}
    for split, names in (("train", train), ("eval", evaluation)):
        tally.start()
        shards[split] = tuple(tally.read(data_dir, name, progress) for name in names)
        splits[split] = tally.split()
    manifest = _manifest_of(tally, ids, shards, splits, nsp)
    if ids.tokenizer:
        storage.write_bytes(target, ids.tokenizer)
    manifest_lib.save(manifest, data_dir)
    return manifest


def _manifest_of(
    tally: _Tally,
    ids: Ids,
    shards: dict[str, tuple[Shard, ...]],
    splits: dict[str, Split],
    nsp: bool | None,
) -> Manifest:
    return Manifest(
        seq_length=tally.seq_length,
        max_predictions_per_seq=tally.max_predictions,
        masked_lm_prob=0.15,
        masking="static",
        mask_unit="subword",
        word_boundaries="none",
        dupe_factor=1,
        input_mask=False,
        nsp=tally.has_segment_b if nsp is None else nsp,
        vocab_size=ids.vocab_size,
        special_ids=ids.special_ids,
        num_readers=order.choose_num_readers([shard.records for shard in shards["train"]]),
        train=splits["train"],
        eval=splits["eval"],
        train_shards=shards["train"],
        eval_shards=shards["eval"],
        tokenizer_sha256=hashlib.sha256(ids.tokenizer).hexdigest() if ids.tokenizer else "",
        **manifest_lib.UNKNOWN,
        adopted=True,
        created_by=f"bigbird-ja {__version__}",
    )


class _Tally:
    """Counts what the records hold, and that all have the lengths of the first."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self.seq_length = self.max_predictions = 0
        self.has_segment_b = False
        self.start()

    def start(self) -> None:
        """Begins a split."""
        self._counts = {"sequences": 0, "used_positions": 0, "predictions": 0, "tokens": 0}

    def split(self) -> Split:
        """The counts of the split; records made elsewhere do not say how many documents."""
        return Split(documents=0, **self._counts)

    def read(self, data_dir: str, name: str, progress: Callable[[int], None] | None) -> Shard:
        """Counts one file."""
        path = storage.join(data_dir, storage.check_inside(name))
        count = 0
        with storage.open_read(path) as file:
            content = records.Summed(file, progress)
            try:
                for record in records.frames(content):
                    self._add(record, f"{name}: record {count}")
                    count += 1
            except records.DamagedRecord as error:
                raise BadInput(f"{path}: {error}: copy or make it again") from error
        if not count:
            raise BadInput(f"{path} holds no records: leave it out")
        return Shard(name, count, **content.sums())

    def _add(self, record: bytes, where: str) -> None:
        try:
            features = tf.train.Example.FromString(record).features.feature
        except Exception as error:
            raise BadInput(f"{where} is not a tf.train.Example") from error
        lacking = [name for name in _NEEDED if name not in features]
        if lacking:
            raise BadInput(f"{where} lacks {', '.join(lacking)}: only classic static records do")
        tokens = _integers(features["input_ids"])
        positions = _integers(features["masked_lm_positions"])
        if not len(tokens) or not len(positions):
            raise BadInput(f"{where} has no tokens or no places to predict: leave the file out")
        if not self.seq_length:
            self.seq_length, self.max_predictions = len(tokens), len(positions)
        if (len(tokens), len(positions)) != (self.seq_length, self.max_predictions):
            raise BadInput(
                f"{where} has {len(tokens)} tokens and {len(positions)} predictions, the first has"
                f" {self.seq_length} and {self.max_predictions}: all must be alike"
            )
        if tokens.max() >= self._ids.vocab_size:
            raise BadInput(f"{where} holds id {tokens.max()}: give the right --vocab_size")
        special = self._ids.special_ids
        weights = np.asarray(features["masked_lm_weights"].float_list.value)
        self._counts["sequences"] += 1
        self._counts["used_positions"] += int((tokens != special["pad"]).sum())
        self._counts["tokens"] += int(
            (~np.isin(tokens, [special["pad"], special["cls"], special["sep"]])).sum()
        )
        self._counts["predictions"] += int((weights > 0).sum())
        if "segment_ids" in features and "next_sentence_labels" in features:
            self.has_segment_b |= bool(_integers(features["segment_ids"]).any())


def _integers(feature: Any) -> np.ndarray:
    return np.asarray(feature.int64_list.value, np.int64)
