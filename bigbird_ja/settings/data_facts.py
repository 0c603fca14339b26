"""Facts of a data set on which models, steps and evaluation depend.

Two objects describe a run: `Config` (in `schema`) contains its settings, and `Data` the facts of
its data set. If a fact is also a setting, its type is declared in `schema`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from bigbird_ja.settings import schema

# Key of the padding's token id in `config.yaml`. All other facts of the data set in `config.yaml`
# are also settings.
PAD_ID = "make_data.pad_id"


@dataclass(frozen=True, kw_only=True)
class Data:
    """Facts of a data set.

    Attributes:
        seq_length: Tokens per sequence.
        max_predictions_per_seq: Maximum number of masked tokens per sequence.
        masked_lm_prob: Fraction of masked tokens.
        masking: "dynamic" or "static".
        mask_unit: Unit that is masked as a whole.
        nsp: Whether records are pairs of segments.
        vocab_size: Number of tokens of the tokenizer.
        special_ids: Token ids of the special tokens by name. It always contains `pad`.
    """

    seq_length: schema.SeqLength
    max_predictions_per_seq: schema.Predictions
    masked_lm_prob: schema.MaskRate
    masking: schema.Masking
    mask_unit: schema.MaskUnit
    nsp: bool
    vocab_size: schema.Positive
    special_ids: dict[str, schema.Id]

    @property
    def pad_id(self) -> int:
        """Token id of padding."""
        return self.special_ids["pad"]


_MADE = schema.MakeDataConfig.__struct_fields__
_SHARED = [field.name for field in dataclasses.fields(Data) if field.name in _MADE]
DATA_KEYS = ("tokenize.vocab_size", *(f"make_data.{name}" for name in _SHARED))


def derive_data(config: schema.Config, pad_id: int = 0) -> Data:
    """Return the facts of the data set that `make-data` would create from a config."""
    values = {name: getattr(config.make_data, name) for name in _SHARED}
    values["max_predictions_per_seq"] = count_predictions(config.make_data)
    vocab_size = config.tokenize.vocab_size
    return Data(**values, vocab_size=vocab_size, special_ids={"pad": pad_id})


def count_predictions(making: schema.MakeDataConfig) -> int:
    """Return the maximum number of masked tokens per sequence in a data set."""
    stated = making.max_predictions_per_seq
    return count_masked(making.seq_length, making.masked_lm_prob) if stated is None else stated


def count_masked(seq_length: int, rate: float) -> int:
    """Return the number of masked tokens in a full sequence at a mask rate."""
    return max(1, math.ceil(round(seq_length * rate, 6)))


def get_data_entries(data: Data) -> dict[str, Any]:
    """Return facts of a data set by their keys in `config.yaml`.

    They also enter the fingerprint of a run's config.
    """
    values = (data.vocab_size, *(getattr(data, name) for name in _SHARED))
    return {**dict(zip(DATA_KEYS, values, strict=True)), PAD_ID: data.pad_id}
