"""Declare, read and compare what a run decides; imports `process` and `storage` alone.

Here are the settings of making data, and `Data`, the typed facts of a data set: a run is a pair of
`Config` (`settings.schema`), what the run decides, and `Data`, what its data set decides. A fact
that both know has one type here, with its range and its meaning.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from bigbird_ja.settings.option import LONGEST_RUN, has

if TYPE_CHECKING:
    from bigbird_ja.settings.schema import Config

PAD_ID = "make_data.pad_id"  # a fact of the data set alone: no setting has this key
SEED = has(low=-(2**63), high=2**64 - 1)  # msgspec's own bounds end at 63 bits
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]

_RUN = ("pretrain", "launch", "plan", "preflight")
_FACT = has(by=("make-data", *_RUN), change="fixed")
SeqLength = Annotated[int, has(8, 1_000_000, "tokens"), _FACT]
Masking = Annotated[Literal["dynamic", "static"], _FACT]
Predictions = Annotated[int, has(1, 1_000_000, "tokens"), _FACT]
MaskRate = Annotated[float, has(0.0001, 0.9), _FACT]
MaskUnit = Annotated[
    Literal["subword", "whole_word", "span"],
    has(by=("make-data", "pretrain", "launch", "plan"), change="fixed"),
]
Pairs = Annotated[bool, _FACT]


class TokenizeConfig(Struct, frozen=True, kw_only=True):
    """Configure the training of the SentencePiece model."""

    vocab_size: Annotated[
        int, has(16, 10_000_000, "pieces", by=("tokenize", *_RUN), change="fixed")
    ] = 32_000
    """Pieces of the vocabulary, special ones included."""

    model_type: Literal["unigram", "bpe"] = "unigram"
    """Kind of SentencePiece model."""

    character_coverage: Annotated[float, has(0.98, 1.0)] = 0.9995
    """Share of the text's characters that get a piece of their own."""

    max_sentence_length: Annotated[int, has(16, 2**31 - 1, "bytes")] = 16_384
    """Longest line to train on; longer ones are split, never dropped."""

    max_sentences: Annotated[int, has(0, LONGEST_RUN, "lines")] = 2_000_000
    """Lines to train on, drawn from the whole corpus; 0 is all."""


class MakeDataConfig(Struct, frozen=True, kw_only=True):
    """Configure how `make-data` makes records."""

    seq_length: SeqLength = 4096
    """Length of a sequence, [CLS] and [SEP] included."""

    masking: Masking = "dynamic"
    """dynamic: targets are drawn while training, anew in each epoch; static: they are in the
    records.
    """

    dupe_factor: Annotated[int, has(1, 1000, "copies", only_with="make_data.masking=static")] = 10
    """Copies of each sequence, each with other masks."""

    max_predictions_per_seq: Annotated[
        Predictions | None, has(none="what seq_length and masked_lm_prob need")
    ] = None
    """Most tokens to predict in a sequence."""

    masked_lm_prob: MaskRate = 0.15
    """Share of the tokens to predict."""

    mask_unit: MaskUnit = "whole_word"
    """Units that are masked together: single pieces, words, or runs of words."""

    word_boundaries: Literal["script", "mecab"] = "script"
    """Word boundaries: at changes of script, or by MeCab with unidic-lite (extra `words`)."""

    nsp: Pairs = False
    """Pairs of segments (A and B), for next-sentence prediction."""

    eval_fraction: Annotated[float, has(0.0, 0.5)] = 0.01
    """Share of the documents held out for evaluation."""

    num_shards: Annotated[int, has(0, 100_000, "files")] = 0
    """Train shards; 0 chooses by size, a multiple of 32."""

    seed: Annotated[int, SEED] = 12_345
    """Of shuffling, held-out documents and static masks."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Hold what a data set decides and models, steps and evaluation depend on."""

    seq_length: SeqLength
    max_predictions_per_seq: Predictions
    masked_lm_prob: MaskRate
    masking: Masking
    mask_unit: MaskUnit
    nsp: Pairs
    vocab_size: Positive
    special_ids: dict[str, Id]  # by name; `pad` at least

    @property
    def pad_id(self) -> int:
        """Return the id that fills a record's end."""
        return self.special_ids["pad"]


_SHARED = [field.name for field in dataclasses.fields(Data)][:-2]  # with MakeDataConfig
DATA_KEYS = ("tokenize.vocab_size", *(f"make_data.{name}" for name in _SHARED))


def requested_data(config: Config, pad_id: int = 0) -> Data:
    """Describe the data set that `make-data` would make by a config, before there is one."""
    values = {name: getattr(config.make_data, name) for name in _SHARED}
    values["max_predictions_per_seq"] = predictions_of(config.make_data)
    pieces = config.tokenize.vocab_size
    return Data(**values, vocab_size=pieces, special_ids={"pad": pad_id})


def predictions_of(making: MakeDataConfig) -> int:
    """Return the most predictions in a sequence: as stated, else enough for a full one's share."""
    stated = making.max_predictions_per_seq
    return places_for(making.seq_length, making.masked_lm_prob) if stated is None else stated


def places_for(seq_length: int, rate: float) -> int:
    """Return how many predictions a full sequence needs at a mask rate."""
    return max(1, math.ceil(round(seq_length * rate, 6)))


def data_entries(data: Data) -> dict[str, Any]:
    """Return the facts under the keys by which `config.yaml` states them, for fingerprints too."""
    values = (data.vocab_size, *(getattr(data, name) for name in _SHARED))
    return {**dict(zip(DATA_KEYS, values, strict=True)), PAD_ID: data.pad_id}
