"""`DATA_DIR/manifest.json`: the single source of truth about a data set.

Written last and by rename, so a directory with a manifest is a complete data set. Everything that
reads records takes lengths, ids, counts and checksums from here and from nowhere else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from bigbird_ja import storage, typed
from bigbird_ja.data import static_masking
from bigbird_ja.errors import BadInput

FILE_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.model"
VERSION = 1

# Said for people; two data sets that differ in these alone are the same data.
_NOT_CONTENT = ("fingerprint", "created_by", "sources")


@dataclass(frozen=True)
class Shard:
    """One TFRecord file of a data set."""

    name: str  # file name inside the data directory
    records: int
    bytes: int
    sha256: str  # hex, of the whole file
    crc32c: str = ""  # base64 of the big-endian CRC32C, as Cloud Storage states it


@dataclass(frozen=True)
class Split:
    """Counts of the train or the eval records (static: every copy counts as a record)."""

    documents: int = 0
    tokens: int = 0  # of the text, each once; [CLS], [SEP] and padding not counted
    sequences: int = 0
    used_positions: int = 0  # positions that are not padding
    predictions: int = 0  # positions to predict (dynamic: the number aimed at, in one epoch)


@dataclass(frozen=True)
class Manifest:
    """What a data set is. `settings` holds every choice that its bytes depend on."""

    seq_length: int  # tokens per record
    max_predictions_per_seq: int
    masked_lm_prob: float
    masking: str  # dynamic | static
    mask_unit: str  # subword | whole_word | span
    word_boundaries: str  # script | mecab | none (adopted)
    nsp: bool
    vocab_size: int
    special_ids: dict[str, int]  # pad, cls, sep, mask and the others that are never predicted
    num_readers: int  # virtual readers; a host takes whole ones
    train: Split
    eval: Split
    train_shards: tuple[Shard, ...]
    eval_shards: tuple[Shard, ...]
    tokenizer_sha256: str = ""  # hex, of tokenizer.model; empty where adopted without one
    dupe_factor: int = 1
    input_mask: bool = False  # static records also hold `input_mask`
    document_ids: bool = True  # static records also hold `document_ids`
    token_bytes: int = 2  # of one token in a dynamic record
    adopted: bool = False  # records were made elsewhere
    settings: dict[str, Any] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)  # lengths, documents per sequence
    sources: tuple[str, ...] = ()
    created_by: str = ""

    @property
    def source_names(self) -> tuple[str, ...]:
        """The sources without the folders that they lay in: fit to be published."""
        return tuple(
            source if source.startswith("tfds:") else storage.base_name(source)
            for source in self.sources
        )

    @property
    def documents(self) -> int:
        """Documents of both splits."""
        return self.train.documents + self.eval.documents

    @property
    def tokens(self) -> int:
        """Tokens of the text of both splits."""
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
    def pad_id(self) -> int:
        """The id that fills a record's end."""
        return self.special_ids["pad"]

    @property
    def masking_version(self) -> int:
        """Of the rule in `static_masking`; data sets that do not say it have the first."""
        return int(self.settings.get("masking_version", 1))

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all that a run depends on: counts, ids, settings, checksums."""
        values = {k: v for k, v in _as_dict(self).items() if k not in _NOT_CONTENT}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def fixed(self) -> dict[str, Any]:
        """The values of `config.DATA_SET_KEYS`."""
        return {
            "model.vocab_size": self.vocab_size,
            "data.seq_length": self.seq_length,
            "data.max_predictions_per_seq": self.max_predictions_per_seq,
            "data.masking": self.masking,
            "data.nsp": self.nsp,
            "data.mask_unit": self.mask_unit,
        }

    def shards(self, split: str) -> tuple[Shard, ...]:
        """The shards of `train` or `eval`."""
        return {"train": self.train_shards, "eval": self.eval_shards}[split]


def to_json(manifest: Manifest) -> str:
    """The text of `manifest.json`, the same for the same data set."""
    values = {**_as_dict(manifest), "fingerprint": manifest.fingerprint}
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def from_json(text: str, where: str) -> Manifest:
    """Reads what `to_json` wrote.

    Raises:
        BadInput: not a manifest, another version, or changed by hand.
    """
    try:
        values = json.loads(text)
        version = values.pop("version")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise BadInput(f"{where}: not a manifest: make the data again") from error
    if version != VERSION:
        raise BadInput(
            f"{where}: version {version}, this program reads {VERSION}: make the data again"
        )
    try:
        stated = values.pop("fingerprint")
        for split in ("train", "eval"):
            values[split] = Split(**values[split])
            values[f"{split}_shards"] = tuple(Shard(**s) for s in values[f"{split}_shards"])
        values["sources"] = tuple(values["sources"])
        manifest = Manifest(**values)
        for shard in manifest.train_shards + manifest.eval_shards:
            storage.check_inside(shard.name)
        ids = [manifest.special_ids[name] for name in ("pad", "cls", "sep", "mask")]
        is_whole = manifest.fingerprint == stated and min(ids) >= 0
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{where}: not a whole manifest ({error}): make the data again") from error
    if not 1 <= manifest.masking_version <= static_masking.NEWEST_VERSION:
        raise BadInput(
            f"{where}: masked by version {manifest.masking_version} of the rule, this program knows"
            f" versions up to {static_masking.NEWEST_VERSION}: use a newer bigbird-ja"
        )
    if not is_whole:
        raise BadInput(f"{where}: was changed after it was written: make the data again")
    return manifest


def load(data_dir: str) -> Manifest:
    """The manifest of a data directory, on disk or gs://.

    Raises:
        BadInput: there is none, or it cannot be trusted.
    """
    path = storage.join(data_dir, FILE_NAME)
    try:
        text = storage.read_text(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInput(
            f"{data_dir}: no {FILE_NAME}, so no finished data set: run `bigbird-ja make-data`"
            f" with --output_dir={data_dir} (for records made elsewhere: `check-data --adopt`)"
        ) from error
    return from_json(text, path)


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
    claims = typed.read_json(path, _Claims, advice)
    if claims.adopted or not claims.created_by.startswith("bigbird-ja"):
        raise BadInput(f"{path}: the records were made elsewhere: {advice}")
    return {storage.check_inside(s.name) for s in claims.train_shards + claims.eval_shards}


def save(manifest: Manifest, data_dir: str) -> None:
    """Writes `manifest.json` atomically; everything it names must be there already."""
    storage.write_text(storage.join(data_dir, FILE_NAME), to_json(manifest))


def _as_dict(manifest: Manifest) -> dict[str, Any]:
    values = dataclasses.asdict(manifest)
    values["sources"] = list(manifest.sources)
    return {"version": VERSION, **values}
