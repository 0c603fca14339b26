"""`DATA_DIR/manifest.json`: the single source of truth about a data set.

Written last and by rename, so a directory with a manifest is a complete data set. Everything that
reads records takes lengths, ids, counts and checksums from here and from nowhere else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from bigbird_ja import storage
from bigbird_ja.data import masking, order
from bigbird_ja.data.spec import DataSpec
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode
from bigbird_ja.storage.decode import Count

FILE_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.model"
VERSION = 1

# Said for people; two data sets that differ in these alone are the same data.
_NOT_CONTENT = ("fingerprint", "created_by", "sources")
_ADVICE = "make the data again"

# The choices of the spec that stand at the top of the file too, where people look for them.
_SHOWN_FIRST = (
    "seq_length", "max_predictions_per_seq", "masked_lm_prob", "masking", "mask_unit",
    "word_boundaries", "nsp", "vocab_size", "special_ids",
)  # fmt: skip

# What cannot be known of records that were made elsewhere.
UNKNOWN: dict[str, Any] = {"eval_fraction": 0.0, "num_shards": 0, "seed": 0, "corpus": ""}


@dataclass(frozen=True)
class Shard:
    """One TFRecord file of a data set."""

    name: str  # file name inside the data directory
    records: Count
    bytes: Count
    sha256: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]  # hex, of the whole file
    crc32c: str = ""  # base64 of the big-endian CRC32C, as Cloud Storage states it


@dataclass(frozen=True)
class Split:
    """Counts of the train or the eval records (static: every copy counts as a record)."""

    documents: Count = 0  # as often as weights take each; static copies do not count
    tokens: Count = 0  # of these; [CLS], [SEP] and padding not counted
    sequences: Count = 0
    used_positions: Count = 0  # positions that are not padding
    predictions: Count = 0  # positions to predict (dynamic: the number aimed at, in one epoch)


@dataclass(frozen=True)
class Taken:
    """What an epoch takes from one corpus, every time counted."""

    documents: Count
    tokens: Count
    sequences: Count  # static: every copy


@dataclass(frozen=True)
class MixedCorpus:
    """One of several corpora that are mixed, and what came of it."""

    name: str  # as it was given; not content, for text may move
    sha256: str
    weight: float
    train: Taken
    eval: Taken


# Histograms: documents of [2**i, 2**(i+1)) tokens; sequences of i fragments, the last: or more.
LENGTH_BINS = 25
MOST_FRAGMENTS = 64


class Statistics(TypedDict, total=False):
    """Said for people. Lists are histograms, by powers of two and by number."""

    document_tokens: list[Count]
    documents_per_sequence: list[Count]
    sequences_left_out: Count
    tokenizer_changes: dict[str, str]  # special piece -> how another project's model got it


@dataclass(frozen=True)
class PortionOf:
    """What one of several mixed corpora is in an epoch, for people and `--json`."""

    name: str  # fit to be published
    weight: float
    documents: int  # of an epoch, as the next two
    tokens: int
    sequences: int
    share: float  # of the tokens of an epoch
    eval_documents: int
    eval_tokens: int
    eval_sequences: int


@dataclass(frozen=True, kw_only=True)
class Manifest(DataSpec):
    """What a data set is: the spec that it was made by, and what came out."""

    num_readers: Annotated[int, Meta(ge=1)]  # virtual readers; a host takes whole ones
    train: Split
    eval: Split
    train_shards: tuple[Shard, ...]
    eval_shards: tuple[Shard, ...]
    corpora: tuple[MixedCorpus, ...] = ()  # in the order of `mixture`; empty: one corpus
    adopted: bool = False  # records were made elsewhere
    statistics: Statistics = field(default_factory=lambda: Statistics())
    sources: tuple[str, ...] = ()
    created_by: str = ""

    @property
    def source_names(self) -> tuple[str, ...]:
        """The sources without the folders that they lay in: fit to be published."""
        return tuple(map(_published, self.sources))

    @property
    def corpus_names(self) -> tuple[str, ...]:
        """The mixed corpora without the folders that they lay in, but where only these differ."""
        names = [corpus.name for corpus in self.corpora]
        short = [_published(name) for name in names]
        return tuple(
            one if short.count(one) == 1 else name for one, name in zip(short, names, strict=True)
        )

    def portions(self) -> list[PortionOf]:
        """The mixed corpora in their order; empty where all text is one."""
        return [
            PortionOf(
                name,
                corpus.weight,
                **vars(corpus.train),
                share=corpus.train.tokens / max(1, self.train.tokens),
                eval_documents=corpus.eval.documents,
                eval_tokens=corpus.eval.tokens,
                eval_sequences=corpus.eval.sequences,
            )
            for name, corpus in zip(self.corpus_names, self.corpora, strict=True)
        ]

    @property
    def documents(self) -> int:
        """Documents of both splits, each as often as an epoch takes it."""
        return self.train.documents + self.eval.documents

    @property
    def tokens(self) -> int:
        """Tokens of these documents."""
        return self.train.tokens + self.eval.tokens

    @property
    def sequences(self) -> int:
        """Records of both splits."""
        return self.train.sequences + self.eval.sequences

    @property
    def density(self) -> float:
        """Share of positions that are not padding."""
        used = self.train.used_positions + self.eval.used_positions
        return used / max(1, self.sequences * self.seq_length)

    @property
    def mean_predictions(self) -> float:
        """Positions to predict per record."""
        return (self.train.predictions + self.eval.predictions) / max(1, self.sequences)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all that a run depends on: counts, ids, settings, checksums."""
        return _digest(_as_dict(self))

    def as_settings(self) -> dict[str, Any]:
        """The values of the settings in `FIXED_BY_DATA`."""
        return {
            "tokenize.vocab_size": self.vocab_size,
            "make_data.seq_length": self.seq_length,
            "make_data.masking": self.masking,
            "make_data.max_predictions_per_seq": self.max_predictions_per_seq,
            "make_data.masked_lm_prob": self.masked_lm_prob,
            "make_data.mask_unit": self.mask_unit,
            "make_data.nsp": self.nsp,
        }

    def shards(self, split: str) -> tuple[Shard, ...]:
        """The shards of `train` or `eval`."""
        return {"train": self.train_shards, "eval": self.eval_shards}[split]


def _published(source: str) -> str:
    return source if source.startswith("tfds:") else storage.base_name(source.rstrip("/"))


def to_json(manifest: Manifest) -> str:
    """The text of `manifest.json`, the same for the same data set."""
    values = {**_as_dict(manifest), "fingerprint": manifest.fingerprint}
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def from_json(data: bytes, where: str) -> Manifest:
    """Reads what `to_json` wrote.

    Raises:
        BadInput: not a manifest, another version, or changed by hand.
    """
    raw = decode.decode_json(data, dict[str, Any], where, _ADVICE)
    if raw.get("version") != VERSION:
        raise BadInput(
            f"{where}: version {raw.get('version')}, this program reads {VERSION}: {_ADVICE}"
        )
    settings = decode.convert(raw.get("settings"), dict[str, Any], f"{where}: settings", _ADVICE)
    unknown = UNKNOWN if raw.get("adopted") is True else {}
    manifest = decode.convert({**unknown, **settings, **raw}, Manifest, where, _ADVICE)
    _check_shards(manifest, where)
    if lacking := {"pad", "cls", "sep", "mask"} - manifest.special_ids.keys():
        raise BadInput(f"{where}: special_ids lacks {', '.join(sorted(lacking))}: {_ADVICE}")
    if manifest.masking_version > masking.NEWEST_VERSION:
        raise BadInput(
            f"{where}: masked by version {manifest.masking_version} of the rule, this program knows"
            f" versions up to {masking.NEWEST_VERSION}: use a newer bigbird-ja"
        )
    if raw.get("fingerprint") != _digest(raw):
        raise BadInput(f"{where}: was changed after it was written: {_ADVICE}")
    if raw["fingerprint"] != manifest.fingerprint:
        raise BadInput(f"{where}: says what this program does not know: use a newer bigbird-ja")
    return manifest


def _check_shards(manifest: Manifest, where: str) -> None:
    names = [shard.name for shard in manifest.train_shards + manifest.eval_shards]
    for name in names:
        storage.check_inside(name)
    if len(set(names)) < len(names):
        raise BadInput(f"{where}: names a shard twice: {_ADVICE}")
    try:
        counts = tuple(shard.records for shard in manifest.train_shards)
        order.Layout(counts, manifest.num_readers, seed=0, window=1)
    except ValueError as error:
        raise BadInput(f"{where}: {error}: {_ADVICE}") from error


def load(data_dir: str) -> Manifest:
    """The manifest of a data directory, on disk or gs://.

    Raises:
        BadInput: there is none, or it cannot be trusted.
    """
    path = storage.join(data_dir, FILE_NAME)
    try:
        data = storage.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInput(
            f"{data_dir}: no {FILE_NAME}, so no finished data set: run `bigbird-ja make-data`"
            f" with --output_dir={data_dir} (for records made elsewhere: `check-data --adopt`)"
        ) from error
    return from_json(data, path)


@dataclass(frozen=True)
class _Named:
    name: str


@dataclass(frozen=True)
class _Claims:
    """What a manifest of any version says of who made which shards."""

    created_by: str
    train_shards: list[_Named]
    eval_shards: list[_Named]
    adopted: bool = False


def shards_to_replace(data_dir: str) -> set[str]:
    """The names of the shards that `make-data` wrote to a directory with a manifest.

    Raises:
        BadInput: the data set there is not one that `make-data` made.
    """
    path = storage.join(data_dir, FILE_NAME)
    advice = "nothing is replaced that make-data did not make: choose another --output_dir"
    claims = decode.read_json(path, _Claims, advice)
    if claims.adopted or not claims.created_by.startswith("bigbird-ja"):
        raise BadInput(f"{path}: the records were made elsewhere: {advice}")
    return {storage.check_inside(s.name) for s in claims.train_shards + claims.eval_shards}


def save(manifest: Manifest, data_dir: str) -> None:
    """Writes `manifest.json` atomically; everything it names must be there already."""
    storage.write_text(storage.join(data_dir, FILE_NAME), to_json(manifest))


def _digest(values: Mapping[str, Any]) -> str:
    counted = {key: value for key, value in values.items() if key not in _NOT_CONTENT}
    if "corpora" in counted:
        counted["corpora"] = [
            {key: value for key, value in corpus.items() if key != "name"}
            for corpus in counted["corpora"]
        ]
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def _as_dict(manifest: Manifest) -> dict[str, Any]:
    spec = manifest.spec_values()
    corpora = [dataclasses.asdict(corpus) for corpus in manifest.corpora]
    return {
        "version": VERSION,
        **{key: spec[key] for key in _SHOWN_FIRST},
        "num_readers": manifest.num_readers,
        "train": dataclasses.asdict(manifest.train),
        "eval": dataclasses.asdict(manifest.eval),
        "train_shards": [dataclasses.asdict(shard) for shard in manifest.train_shards],
        "eval_shards": [dataclasses.asdict(shard) for shard in manifest.eval_shards],
        "tokenizer_sha256": manifest.tokenizer_sha256,
        "dupe_factor": manifest.dupe_factor,
        "input_mask": manifest.input_mask,
        "document_ids": not manifest.adopted,  # whether static records hold them
        "token_bytes": 2 if manifest.adopted else manifest.token_bytes,  # of dynamic records
        "adopted": manifest.adopted,
        "settings": {} if manifest.adopted else spec,
        "statistics": manifest.statistics,
        **({"corpora": corpora} if corpora else {}),  # left out, for the earlier fingerprints
        "sources": list(manifest.sources),
        "created_by": manifest.created_by,
    }
