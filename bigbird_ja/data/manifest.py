"""Description of a data set: the request, and, in `DATA_DIR/manifest.json`, the result.

A `DataSpec` has every choice that changes a byte. A `Manifest` is a spec with the counts and
checksums of the result, the single source of truth about a data set: it is written last and by
rename, so a directory with one is complete, and all readers take lengths, ids, counts and
checksums from it only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np
from msgspec import Meta

from bigbird_ja import storage
from bigbird_ja.data import tfrecords
from bigbird_ja.data.masking import MaskingRule
from bigbird_ja.errors import BadInput
from bigbird_ja.settings.data_facts import Data, count_predictions
from bigbird_ja.settings.schema import Id, MakeDataConfig, Positive
from bigbird_ja.storage import decode
from bigbird_ja.storage.decode import Count
from bigbird_ja.storage.paths import NAMED
from bigbird_ja.text.load import TOKENIZER_NAME  # noqa: F401 - a file of a data set, too
from bigbird_ja.text.markers import MARKERS

if TYPE_CHECKING:
    from bigbird_ja.text.corpus import Corpus
    from bigbird_ja.text.tokenizer import Tokenizer

FILE_NAME = "manifest.json"
SPLITS = ("train", "eval")
# Bins of histograms: documents of [2**i, 2**(i+1)) tokens; sequences of i fragments, the last bin
# also of more.
LENGTH_BINS = 25
MAX_FRAGMENTS = 64

# Keys that are informative: data sets that differ only in these are the same data.
_NOT_CONTENT = ("created_by", "sources")
# The same among the statistics: data sets of earlier counts, or of a moved tokenizer, are the same.
_INFORMATIVE = (
    "skipped",
    "duplicates",
    "html_documents",
    "fullwidth_space_documents",
    "unknown",
    "unknown_characters",
    "tokenizer_source",
)
_ADVICE = "make the data again"
OptionalSha256 = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]  # hex


class Portion(TypedDict):
    """Corpus of a mixture."""

    sha256: str
    weight: Annotated[float, Meta(gt=0)]  # repetitions of each document per epoch


@dataclass(frozen=True, kw_only=True)
class DataSpec(Data):
    """Choices that determine the bytes of a data set, in picklable form.

    `special_ids` has pad, cls, sep, mask and the others that are never predicted.
    """

    word_boundaries: Literal["script", "mecab"]
    dupe_factor: Positive  # copies with different masks: 1 for dynamic
    eval_fraction: Annotated[float, Meta(ge=0, lt=1)]
    num_shards: Id  # requested number for the train split; 0: by size
    seed: int
    input_mask: bool  # whether static records contain `input_mask`, too
    tokenizer_sha256: OptionalSha256  # empty: no tokenizer made the records
    corpus: str  # fingerprint
    mixture: tuple[Portion, ...] = ()  # empty: all inputs are one corpus, once per epoch
    strip_markers: bool = False  # Wiki40b's markers are removed from the text

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Dtype of one packed sequence, a row of a block."""
        return np.dtype(
            [
                ("tokens", tfrecords.token_dtype(self.vocab_size), (self.seq_length,)),
                ("word_starts", "u1", (-(-self.seq_length // 8),)),
                ("segment_b", "<i4"),
                ("label", "u1"),
            ]
        )

    @property
    def record_bytes(self) -> int:
        """Estimate the bytes of a record."""
        if self.masking == "dynamic":
            return self.row_dtype.itemsize + 80
        arrays = 4 + self.input_mask
        return arrays * self.seq_length + 8 * self.max_predictions_per_seq + 300

    def rule(self, mask_unit: str | None = None, max_predictions: int | None = None) -> MaskingRule:
        """Return the masking rule.

        The arguments override the data set's (dynamic data only).

        Raises:
            BadInput: Another unit or rate for static records, whose masks are fixed.
        """
        for key, value, stated in (
            ("training.masked_lm_prob", max_predictions, self.max_predictions_per_seq),
            ("data.mask_unit", mask_unit, self.mask_unit),
        ):
            if self.masking == "static" and value not in (None, stated):
                raise BadInput(
                    f"{key}: the data set's masks are static ({self.masked_lm_prob:g} by"
                    f" {self.mask_unit}). Leave it out, or make the data with dynamic `masking`"
                )
        return MaskingRule(
            vocab_size=self.vocab_size,
            special_ids=tuple(sorted(set(self.special_ids.values()))),
            mask_id=self.special_ids["mask"],
            pad_id=self.pad_id,
            max_predictions=max_predictions or self.max_predictions_per_seq,
            prob=self.masked_lm_prob,
            unit=mask_unit or self.mask_unit,
        )

    def differences(self, stored: DataSpec) -> list[str]:
        """List the differences from the spec of a data set, by the parameters of `make_data`."""
        names = {
            "tokenizer_sha256": "`tokenizer` (another model)",
            "corpus": "`inputs` (other text)",
            "mixture": "`inputs` (other weights)",
        }
        implied = ("special_ids", "vocab_size")
        result = []
        for each in dataclasses.fields(DataSpec):
            before, after = getattr(stored, each.name), getattr(self, each.name)
            if before != after and each.name not in implied:
                change = f"`{each.name}` {before} there, {after} requested"
                result.append(names.get(each.name, change))
        return result


@dataclass(frozen=True)
class Shard:
    """TFRecord file of a data set."""

    name: str  # file name inside the data directory
    records: Count
    bytes: Count
    sha256: OptionalSha256  # hash of the whole file
    crc32c: str  # base64 of the big-endian CRC32C, as Cloud Storage states it


@dataclass(frozen=True)
class Split:
    """Counts of the train or the eval split (static: every copy counts as a record)."""

    documents: Count = 0  # with repetitions by weight; static copies do not count
    tokens: Count = 0  # tokens of these documents, without [CLS], [SEP] and padding
    sequences: Count = 0
    used_positions: Count = 0  # positions without padding
    predictions: Count = 0  # positions to predict (dynamic: targeted number in one epoch)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Informative counts, of documents without their repetitions."""

    document_tokens: tuple[Count, ...] = ()  # documents by the logarithm of their length
    documents_per_sequence: tuple[Count, ...] = ()  # sequences by number of fragments
    sequences_left_out: Count = 0  # sequences without any token to predict
    skipped: Count = 0  # records without text
    duplicates: Count = 0  # documents that occurred before
    html_documents: Count = 0  # documents with tags
    fullwidth_space_documents: Count = 0
    unknown: Count = 0  # unknown tokens
    unknown_characters: str = ""  # the most frequent characters without a token
    tokenizer_changes: dict[str, str] = field(default_factory=dict)  # by special token
    tokenizer_source: str = ""  # name on the Hub and commit


@dataclass(frozen=True, kw_only=True)
class Manifest(DataSpec):
    """Data set: its spec, and the counts and checksums of its files."""

    num_readers: Annotated[int, Meta(ge=1)]  # virtual readers; a host takes whole readers
    train: Split
    eval: Split
    train_shards: tuple[Shard, ...]
    eval_shards: tuple[Shard, ...]
    statistics: Statistics = field(default_factory=Statistics)
    sources: tuple[str, ...] = ()
    created_by: str = ""

    @property
    def every_shard(self) -> tuple[Shard, ...]:
        """Shards of both splits."""
        return self.train_shards + self.eval_shards

    @property
    def source_names(self) -> tuple[str, ...]:
        """Sources without their folders, for publication."""
        return tuple(map(_published, self.sources))

    @property
    def documents(self) -> int:
        """Number of documents of both splits, with their repetitions per epoch."""
        return self.train.documents + self.eval.documents

    @property
    def tokens(self) -> int:
        """Number of tokens of the documents in both splits."""
        return self.train.tokens + self.eval.tokens

    @property
    def sequences(self) -> int:
        """Number of records of both splits."""
        return self.train.sequences + self.eval.sequences

    @property
    def density(self) -> float:
        """Share of positions that are not padding."""
        used = self.train.used_positions + self.eval.used_positions
        return used / max(1, self.sequences * self.seq_length)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all that a run depends on: counts, ids, settings, sums."""
        values = dataclasses.asdict(self)
        for name in _NOT_CONTENT:
            del values[name]
        for name in _INFORMATIVE:
            del values["statistics"][name]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def shards(self, split: str) -> tuple[Shard, ...]:
        """Return the shards of `train` or `eval`."""
        return {"train": self.train_shards, "eval": self.eval_shards}[split]


def _published(source: str) -> str:
    return source if source.startswith(NAMED) else storage.get_base_name(source.rstrip("/"))


def to_json(manifest: Manifest) -> str:
    """Return the text of `manifest.json`, the same for the same data set."""
    values = {
        "format_version": decode.FORMAT_VERSION,
        **dataclasses.asdict(manifest),
        "fingerprint": manifest.fingerprint,
    }
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def from_json(data: bytes, where: str) -> Manifest:
    """Parse the text of `to_json`.

    Raises:
        BadInput: Not a manifest, one of another format, or one that was changed by hand.
    """
    raw = decode.decode_json(data, dict[str, Any], where, _ADVICE)
    decode.check_format(str(raw.get("format_version", "")), where, _ADVICE)
    manifest = decode.convert(raw, Manifest, where, _ADVICE)
    for shard in manifest.every_shard:
        storage.check_inside(shard.name)
    if json.loads(to_json(manifest)) != raw:  # compares the fingerprint, too
        raise BadInput(f"{where} was changed after it was written: {_ADVICE}")
    return manifest


def load(data_dir: str) -> Manifest:
    """Read the manifest of a data directory, on disk or gs://.

    Raises:
        BadInput: There is none, or it is invalid.
    """
    path = storage.join(data_dir, FILE_NAME)
    try:
        data = storage.read_bytes(path)
    except NotADirectoryError as error:
        raise BadInput(
            f"{data_dir}: a file, not a data set. Give the folder that `bigbird-ja make-data`"
            " wrote (its `output_dir`)"
        ) from error
    except FileNotFoundError as error:
        raise BadInput(
            f"{data_dir}: no {FILE_NAME}, so no finished data set. Run `bigbird-ja make-data`"
            f" with `output_dir` {data_dir}"
        ) from error
    return from_json(data, path)


def spec_of(
    config: MakeDataConfig,
    tokenizer: Tokenizer,
    corpus: Corpus,
    input_mask: bool = False,
    strip_markers: bool | None = None,
) -> DataSpec:
    """Return the spec of a data set, from settings, tokenizer and corpus.

    Args:
        config: section `make_data` of the settings.
        tokenizer: tokenizer of the data set.
        corpus: text of the data set.
        input_mask: whether static records have a feature `input_mask`.
        strip_markers: whether to remove Wiki40b's markers; None: if the tokenizer lacks a token for
            one of them.

    Raises:
        BadInput: Invalid settings.
    """
    max_predictions = count_predictions(config)
    if max_predictions > config.seq_length:
        raise BadInput(
            f"`max_predictions_per_seq` {max_predictions} is more than"
            f" `seq_length` {config.seq_length}: lower it"
        )
    if input_mask and config.masking == "dynamic":
        raise BadInput("`input_mask` is for static `masking`: dynamic records contain no masks")
    chosen = {**msgspec.structs.asdict(config), "max_predictions_per_seq": max_predictions}
    if config.masking == "dynamic":
        chosen["dupe_factor"] = 1
    return DataSpec(
        **chosen,
        input_mask=input_mask,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
        tokenizer_sha256=tokenizer.sha256,
        corpus=corpus.fingerprint,
        mixture=tuple(Portion(sha256=sha, weight=weight) for sha, weight in corpus.weights),
        strip_markers=strip_markers
        if strip_markers is not None
        else not set(MARKERS).issubset(tokenizer.tokens),
    )
