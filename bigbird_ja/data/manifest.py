"""Read and write `DATA_DIR/manifest.json`, the single source of truth about a data set.

It is written last and by rename, so a directory with a manifest is a complete data set. Everything
that reads records takes lengths, ids, counts and checksums from here and from nowhere else.

`Manifest` is a `DataSpec`, every choice that changes a byte, with the counts and checksums of what
was made.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from bigbird_ja import storage
from bigbird_ja.data import order
from bigbird_ja.data.spec import DataSpec, OptionalSha256
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode
from bigbird_ja.storage.decode import Count

FILE_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.model"
SPLITS = ("train", "eval")
# Histograms: documents of [2**i, 2**(i+1)) tokens; sequences of i fragments, the last: or more.
LENGTH_BINS = 25
MOST_FRAGMENTS = 64

# Keys that are for people: two data sets that differ in these alone are the same data.
_NOT_CONTENT = ("created_by", "sources")
_ADVICE = "make the data again"


@dataclass(frozen=True)
class Shard:
    """One TFRecord file of a data set."""

    name: str  # file name inside the data directory
    records: Count
    bytes: Count
    sha256: OptionalSha256  # of the whole file
    crc32c: str = ""  # base64 of the big-endian CRC32C, as Cloud Storage states it


@dataclass(frozen=True)
class Split:
    """Counts of the train or the eval records (static: every copy counts as a record)."""

    documents: Count = 0  # as often as weights take each; static copies do not count
    tokens: Count = 0  # of these documents; [CLS], [SEP] and padding do not count
    sequences: Count = 0
    used_positions: Count = 0  # positions that are not padding
    predictions: Count = 0  # positions to predict (dynamic: the number aimed at, in one epoch)


@dataclass(frozen=True)
class CorpusShare:
    """The share of an epoch that one of several corpora has, counting every repetition."""

    documents: Count
    tokens: Count
    sequences: Count  # static: every copy


@dataclass(frozen=True)
class MixedCorpus:
    """One of several corpora that are mixed, and its share of both splits."""

    name: str  # as it was given; not content, for text may move
    sha256: str
    weight: float
    train: CorpusShare
    eval: CorpusShare


class Statistics(TypedDict, total=False):
    """For people. Lists are histograms, by powers of two and by number."""

    document_tokens: list[Count]
    documents_per_sequence: list[Count]
    sequences_left_out: Count
    skipped: Count  # records without text; not content
    tokenizer_changes: dict[str, str]  # special piece -> how another project's model got it


@dataclass(frozen=True, kw_only=True)
class Manifest(DataSpec):
    """A data set: the spec that it was made by, and the counts and checksums of what was made."""

    num_readers: Annotated[int, Meta(ge=1)]  # virtual readers; a host takes whole ones
    train: Split
    eval: Split
    train_shards: tuple[Shard, ...]
    eval_shards: tuple[Shard, ...]
    corpora: tuple[MixedCorpus, ...] = ()  # in the order of `mixture`; empty: one corpus
    statistics: Statistics = field(default_factory=lambda: Statistics())
    sources: tuple[str, ...] = ()
    created_by: str = ""

    @property
    def every_shard(self) -> tuple[Shard, ...]:
        """List the shards of both splits."""
        return self.train_shards + self.eval_shards

    @property
    def source_names(self) -> tuple[str, ...]:
        """Name the sources without the folders that they lay in: fit to be published."""
        return tuple(map(_published, self.sources))

    @property
    def corpus_names(self) -> tuple[str, ...]:
        """Name the mixed corpora without their folders, unless only these tell them apart."""
        names = [corpus.name for corpus in self.corpora]
        short = [_published(name) for name in names]
        return tuple(
            one if short.count(one) == 1 else name for one, name in zip(short, names, strict=True)
        )

    @property
    def documents(self) -> int:
        """Count documents of both splits, each as often as an epoch takes it."""
        return self.train.documents + self.eval.documents

    @property
    def tokens(self) -> int:
        """Count the tokens of these documents."""
        return self.train.tokens + self.eval.tokens

    @property
    def sequences(self) -> int:
        """Count the records of both splits."""
        return self.train.sequences + self.eval.sequences

    @property
    def density(self) -> float:
        """Share of positions that are not padding."""
        used = self.train.used_positions + self.eval.used_positions
        return used / max(1, self.sequences * self.seq_length)

    @property
    def mean_predictions(self) -> float:
        """Return the mean number of positions to predict in a record."""
        return (self.train.predictions + self.eval.predictions) / max(1, self.sequences)

    @property
    def fingerprint(self) -> str:
        """Hash all that a run depends on: counts, ids, settings, checksums; SHA-256 in hex."""
        values = {k: v for k, v in dataclasses.asdict(self).items() if k not in _NOT_CONTENT}
        values["statistics"].pop("skipped", None)
        for corpus in values["corpora"]:
            del corpus["name"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def shards(self, split: str) -> tuple[Shard, ...]:
        """Return the shards of `train` or `eval`."""
        return {"train": self.train_shards, "eval": self.eval_shards}[split]

    def portions(self) -> list[dict[str, Any]]:
        """Describe the mixed corpora for people and `--json`; empty where there is one corpus."""
        return [
            {
                "name": name,
                "weight": corpus.weight,
                **vars(corpus.train),
                "share": corpus.train.tokens / max(1, self.train.tokens),  # of an epoch's tokens
                **{f"eval_{key}": value for key, value in vars(corpus.eval).items()},
            }
            for name, corpus in zip(self.corpus_names, self.corpora, strict=True)
        ]


def _published(source: str) -> str:
    return source if source.startswith("tfds:") else storage.base_name(source.rstrip("/"))


def to_json(manifest: Manifest) -> str:
    """Write the text of `manifest.json`, the same for the same data set."""
    values = {
        "format_version": decode.FORMAT_VERSION,
        **dataclasses.asdict(manifest),
        "fingerprint": manifest.fingerprint,
    }
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def from_json(data: bytes, where: str) -> Manifest:
    """Reads what `to_json` wrote.

    Raises:
        BadInput: not a manifest, of another format, or changed by hand.
    """
    raw = decode.decode_json(data, dict[str, Any], where, _ADVICE)
    decode.check_format(str(raw.get("format_version", "")), where, _ADVICE)
    manifest = decode.convert(raw, Manifest, where, _ADVICE)
    names = [storage.check_inside(s.name) for s in manifest.every_shard]
    if len(set(names)) < len(names):
        raise BadInput(f"{where}: names a shard twice: {_ADVICE}")
    if missing := {"pad", "cls", "sep", "mask"} - manifest.special_ids.keys():
        raise BadInput(f"{where}: special_ids lacks {', '.join(sorted(missing))}: {_ADVICE}")
    ids = set(manifest.special_ids.values())
    if len(ids) < len(manifest.special_ids) or not max(ids) < manifest.vocab_size > len(ids):
        raise BadInput(
            f"{where}: special_ids {sorted(manifest.special_ids.values())} do not fit"
            f" vocab_size {manifest.vocab_size}: {_ADVICE}"
        )
    try:
        counts = tuple(shard.records for shard in manifest.train_shards)
        order.Layout(counts, manifest.num_readers, seed=0, window=1)
    except ValueError as error:
        raise BadInput(f"{where}: {error}: {_ADVICE}") from error
    if json.loads(to_json(manifest)) != raw:
        raise BadInput(f"{where}: was changed after it was written: {_ADVICE}")
    return manifest


def load(data_dir: str) -> Manifest:
    """Read the manifest of a data directory, on disk or gs://.

    Raises:
        BadInput: there is none, or it cannot be trusted.
    """
    path = storage.join(data_dir, FILE_NAME)
    try:
        data = storage.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInput(
            f"{data_dir}: no {FILE_NAME}, so no finished data set: run `bigbird-ja make-data`"
            f" with --output_dir {data_dir}"
        ) from error
    return from_json(data, path)
