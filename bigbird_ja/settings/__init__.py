"""Settings of a run: declaration, reading, comparison; imports only `process` and `storage`.

Here are the settings of making data, and `Data`, the typed facts of a data set: a run is a pair of
`Config` (`settings.schema`), what the run decides, and `Data`, what its data set decides. A fact
that both have has one type here, with its range.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from bigbird_ja.settings.option import LONGEST_RUN, setting

if TYPE_CHECKING:
    from bigbird_ja.settings.schema import Config

PAD_ID = "make_data.pad_id"  # a fact of the data set: no setting has this key
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]
SeqLength = Annotated[int, Meta(ge=8, le=1_000_000, extra={"unit": "tokens"})]
Masking = Literal["dynamic", "static"]
Predictions = Annotated[int, Meta(ge=1, le=1_000_000, extra={"unit": "tokens"})]
MaskRate = Annotated[float, Meta(ge=0.0001, le=0.9)]
MaskUnit = Literal["subword", "whole_word", "span"]

SEEDS = (-(2**63), 2**64 - 1)
_RUN = ("pretrain", "launch", "plan", "preflight")
_fact = partial(setting, by=("make-data", *_RUN), change="fixed")


@dataclass(frozen=True, kw_only=True)
class TokenizeConfig:
    """Settings for training the SentencePiece model."""

    vocab_size: int = _fact(
        32_000,
        "Vocabulary size, special tokens included.",
        (16, 10_000_000),
        by=("tokenize", *_RUN),
    )
    model_type: Literal["unigram", "bpe"] = setting("unigram", "Type of SentencePiece model.")
    character_coverage: float = setting(
        0.9995, "Share of the text's characters that get an entry of their own.", (0.98, 1.0)
    )
    max_sentence_length: int = setting(
        16_384, "Longest line to train on; longer ones are split.", (16, 2**31 - 1), "bytes"
    )
    max_sentences: int = setting(
        2_000_000, "Lines drawn from the whole corpus; 0: all.", (0, LONGEST_RUN), "lines"
    )


@dataclass(frozen=True, kw_only=True)
class MakeDataConfig:
    """Settings for making a data set."""

    seq_length: SeqLength = _fact(4096, "Sequence length, [CLS] and [SEP] included.")
    masking: Masking = _fact(
        "dynamic",
        "Masks. dynamic: drawn in training, new in each epoch; static: stored in the records.",
    )
    dupe_factor: int = setting(
        10, "Copies, each masked anew.", (1, 1000), only_with="make_data.masking=static"
    )
    max_predictions_per_seq: Predictions | None = _fact(
        None, "Maximum number of predicted tokens.", none="what seq_length and masked_lm_prob need"
    )
    masked_lm_prob: MaskRate = _fact(0.15, "Share of the tokens to predict.")
    mask_unit: MaskUnit = _fact(
        "whole_word",
        "Unit that is masked as a whole: a token, a word, or a span of words.",
        by=("make-data", "pretrain", "launch", "plan"),
    )
    word_boundaries: Literal["script", "mecab"] = setting(
        "script", "Word boundaries: changes of script, or MeCab with unidic-lite (extra `words`)."
    )
    nsp: bool = _fact(False, "Pairs of segments (A and B) for next-sentence prediction.")
    eval_fraction: float = _fact(0.01, "Share of documents held out for evaluation.", (0.0, 0.5))
    num_shards: int = setting(0, "Train shards; 0: a multiple of 32, by size.", (0, 100_000))
    seed: int = setting(12_345, "Seed for shuffling, held-out documents and static masks.", SEEDS)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Hold what a data set decides and models, steps and evaluation depend on."""

    seq_length: SeqLength
    max_predictions_per_seq: Predictions
    masked_lm_prob: MaskRate
    masking: Masking
    mask_unit: MaskUnit
    nsp: bool
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
