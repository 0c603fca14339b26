"""Facts of a data set that models, steps and evaluation depend on.

A run is a pair of `Config` (`schema`), its own settings, and `Data`, the facts of its data set.
A fact that both contain is declared once, with its range, in `schema`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from bigbird_ja.settings import schema

# A fact of the data set: no setting has this key.
PAD_ID = "make_data.pad_id"


@dataclass(frozen=True, kw_only=True)
class Data:
    """Facts of a data set."""

    seq_length: schema.SeqLength
    max_predictions_per_seq: schema.Predictions
    masked_lm_prob: schema.MaskRate
    masking: schema.Masking
    mask_unit: schema.MaskUnit
    nsp: bool
    vocab_size: schema.Positive
    special_ids: dict[str, schema.Id]  # by name, `pad` among them

    @property
    def pad_id(self) -> int:
        """Id that fills the end of a record."""
        return self.special_ids["pad"]


_MADE = schema.MakeDataConfig.__struct_fields__
_SHARED = [field.name for field in dataclasses.fields(Data) if field.name in _MADE]
DATA_KEYS = ("tokenize.vocab_size", *(f"make_data.{name}" for name in _SHARED))


def requested_data(config: schema.Config, pad_id: int = 0) -> Data:
    """Describe the data set that `make-data` would make by a config, before there is one."""
    values = {name: getattr(config.make_data, name) for name in _SHARED}
    values["max_predictions_per_seq"] = predictions_of(config.make_data)
    vocab_size = config.tokenize.vocab_size
    return Data(**values, vocab_size=vocab_size, special_ids={"pad": pad_id})


def predictions_of(making: schema.MakeDataConfig) -> int:
    """Return the maximum number of predictions in a sequence, by default that of a full one."""
    stated = making.max_predictions_per_seq
    return places_for(making.seq_length, making.masked_lm_prob) if stated is None else stated


def places_for(seq_length: int, rate: float) -> int:
    """Return the number of predictions in a full sequence at a mask rate."""
    return max(1, math.ceil(round(seq_length * rate, 6)))


def data_entries(data: Data) -> dict[str, Any]:
    """Return the facts under the keys by which `config.yaml` states them, for fingerprints too."""
    values = (data.vocab_size, *(getattr(data, name) for name in _SHARED))
    return {**dict(zip(DATA_KEYS, values, strict=True)), PAD_ID: data.pad_id}
