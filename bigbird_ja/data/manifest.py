"""Description of a data set.

A `DataSpec` is the request. It contains every choice that changes a byte of the data set.

A `Manifest` (`DATA_DIR/manifest.json`) is a spec with the counts and checksums of the result. It is
written last and by rename, so a directory with a manifest is complete. Programs that read the data
set take sequence length, token ids, counts and checksums from the manifest.
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
# Number of bins of each histogram. Bin i of the lengths counts documents of [2**i, 2**(i+1))
# tokens, and bin i of the fragments counts sequences of i fragments. The last bin also counts all
# larger values.
LENGTH_BINS = 25
MAX_FRAGMENTS = 64

# Keys that the fingerprint ignores.
_NOT_CONTENT = ("created_by", "sources")
# Keys of the statistics that the fingerprint ignores, since later versions of this program may
# count more problems, and since the path of a tokenizer may change.
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
OptionalSha256 = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]


class Portion(TypedDict):
    """Hash and weight of one corpus of a mixture."""

    sha256: str
    weight: Annotated[float, Meta(gt=0)]  # Repetitions of each document per epoch.


@dataclass(frozen=True, kw_only=True)
class DataSpec(Data):
    """Choices that determine the bytes of a data set, in picklable form.

    `special_ids` contains pad, cls, sep, mask and other ids that are never predicted.
    """

    word_boundaries: Literal["script", "mecab"]
    dupe_factor: Positive  # Copies of each sequence with different masks. 1 for dynamic masks.
    eval_fraction: Annotated[float, Meta(ge=0, lt=1)]
    num_shards: Id  # Requested number of train shards, or 0 to choose it by size.
    seed: int
    input_mask: bool  # Whether static records contain `input_mask`.
    tokenizer_sha256: OptionalSha256  # Empty if the records were made without a tokenizer.
    corpus: str  # Fingerprint of the corpus.
    mixture: tuple[Portion, ...] = ()  # Empty for one corpus without weights.
    strip_markers: bool = False  # Whether Wiki40b's markers are removed from the text.

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Dtype of one packed sequence, a row of a block."""
        return np.dtype(
            [
                ("tokens", tfrecords.choose_token_dtype(self.vocab_size), (self.seq_length,)),
                ("word_starts", "u1", (-(-self.seq_length // 8),)),
                ("segment_b", "<i4"),
                ("label", "u1"),
            ]
        )

    @property
    def record_bytes(self) -> int:
        """Estimated size of a record, in bytes."""
        if self.masking == "dynamic":
            return self.row_dtype.itemsize + 80
        arrays = 4 + self.input_mask
        return arrays * self.seq_length + 8 * self.max_predictions_per_seq + 300

    def make_rule(
        self, mask_unit: str | None = None, max_predictions: int | None = None
    ) -> MaskingRule:
        """Return the masking rule of the data set.

        If the masks are dynamic, an argument that is not None replaces the data set's value.

        Raises:
            BadInput: The data is static, and an argument differs from the data set's value.
        """
        for key, value, stated in (
            ("training.masked_lm_prob", max_predictions, self.max_predictions_per_seq),
            ("data.mask_unit", mask_unit, self.mask_unit),
        ):
            if self.masking == "static" and value not in (None, stated):
                raise BadInput(
                    f"{key} has no effect, as the data set's masks are static"
                    f" (made with masked_lm_prob={self.masked_lm_prob:g} and"
                    f" mask_unit={self.mask_unit}). Leave it out, or make the"
                    " data with dynamic `masking`"
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

    def list_differences(self, stored: DataSpec) -> list[str]:
        """List the parameters of `make_data` that differ from a stored spec, with both values."""
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

    name: str
    records: Count
    bytes: Count
    sha256: OptionalSha256
    crc32c: str  # Base64 of the big-endian CRC32C, as Cloud Storage states it.


@dataclass(frozen=True)
class Split:
    """Counts of the train or the eval split.

    Attributes:
        documents: number of documents. If the weight of a corpus is above 1, each repetition of a
            document counts, but copies with different static masks do not count.
        tokens: number of tokens of these documents, without [CLS], [SEP] and padding.
        sequences: number of records, including copies with different static masks.
        used_positions: number of positions of all records, without padding.
        predictions: number of positions to predict in one epoch. For dynamic data, it is computed
            from the masking rate.
    """

    documents: Count = 0
    tokens: Count = 0
    sequences: Count = 0
    used_positions: Count = 0
    predictions: Count = 0


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Informative counts of documents and sequences.

    If a corpus has a weight, the two histograms and `unknown` include each repetition of its
    documents. The other counts do not.

    Attributes:
        document_tokens: histogram of documents by the logarithm of their length.
        documents_per_sequence: histogram of sequences by their number of fragments.
        sequences_left_out: sequences without any token to predict.
        skipped: records without text.
        duplicates: documents that repeat an earlier one.
        html_documents: documents with HTML tags.
        fullwidth_space_documents: documents with full-width spaces.
        unknown: number of unknown tokens.
        unknown_characters: the most frequent characters without a token.
        tokenizer_changes: changes that were made to another project's tokenizer, by special token.
        tokenizer_source: "name@commit" of a tokenizer on the Hub, or "" for a local one.
    """

    document_tokens: tuple[Count, ...] = ()
    documents_per_sequence: tuple[Count, ...] = ()
    sequences_left_out: Count = 0
    skipped: Count = 0
    duplicates: Count = 0
    html_documents: Count = 0
    fullwidth_space_documents: Count = 0
    unknown: Count = 0
    unknown_characters: str = ""
    tokenizer_changes: dict[str, str] = field(default_factory=dict)
    tokenizer_source: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest(DataSpec):
    """Spec of a data set, with the counts and checksums of its files."""

    # Number of virtual readers. The order of the records depends on this number, but not on the
    # number of hosts, which must divide it.
    num_readers: Annotated[int, Meta(ge=1)]
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
        """Names of the sources without their folders, for publication."""
        return tuple(map(_hide_folder, self.sources))

    @property
    def documents(self) -> int:
        """Number of documents of both splits, including repetitions of a document in an epoch."""
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
        """SHA-256 (hex) of all values on which a run depends: spec, counts and checksums."""
        values = dataclasses.asdict(self)
        for name in _NOT_CONTENT:
            del values[name]
        for name in _INFORMATIVE:
            del values["statistics"][name]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def select_shards(self, split: str) -> tuple[Shard, ...]:
        """Return the shards of `train` or `eval`."""
        return {"train": self.train_shards, "eval": self.eval_shards}[split]


def _hide_folder(source: str) -> str:
    return source if source.startswith(NAMED) else storage.get_base_name(source.rstrip("/"))


def to_json(manifest: Manifest) -> str:
    """Return the text of `manifest.json`, which is equal for equal data sets."""
    values = {
        "format_version": decode.FORMAT_VERSION,
        **dataclasses.asdict(manifest),
        "fingerprint": manifest.fingerprint,
    }
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def from_json(data: bytes, where: str) -> Manifest:
    """Parse the text of `to_json`.

    Raises:
        BadInput: The text is not a manifest, has another format, or was changed.
    """
    raw = decode.decode_json(data, dict[str, Any], where, _ADVICE)
    decode.check_format(str(raw.get("format_version", "")), where, _ADVICE)
    manifest = decode.convert(raw, Manifest, where, _ADVICE)
    for shard in manifest.every_shard:
        storage.check_inside(shard.name)
    if json.loads(to_json(manifest)) != raw:  # This compares the fingerprint, too.
        raise BadInput(f"{where} was changed after it was written: {_ADVICE}")
    return manifest


def load(data_dir: str) -> Manifest:
    """Read the manifest of a data directory, on disk or gs://.

    Raises:
        BadInput: The manifest is missing or invalid.
    """
    path = storage.join(data_dir, FILE_NAME)
    try:
        data = storage.read_bytes(path)
    except NotADirectoryError as error:
        raise BadInput(
            f"{data_dir} is a file, not a data set. Give the folder that `bigbird-ja make-data`"
            " wrote (its `output_dir`)"
        ) from error
    except FileNotFoundError as error:
        raise BadInput(
            f"{data_dir} contains no finished data set (no {FILE_NAME}). Run `bigbird-ja make-data`"
            f" with `output_dir` {data_dir}"
        ) from error
    return from_json(data, path)


def make_spec(
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
        strip_markers: whether to remove Wiki40b's markers, or None to remove them if the tokenizer
            lacks a token for one of them.

    Raises:
        BadInput: The settings contradict each other.
    """
    max_predictions = count_predictions(config)
    if max_predictions > config.seq_length:
        raise BadInput(
            f"`max_predictions_per_seq` {max_predictions} is more than"
            f" `seq_length` {config.seq_length}: lower it"
        )
    if input_mask and config.masking == "dynamic":
        raise BadInput(
            "`input_mask` is for static `masking`: leave it out, or choose static `masking`"
        )
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
