"""The typed facts of a data set: what a run takes from it and cannot choose.

A run is a pair of `Config`, what the run decides, and `Data`, what its data set decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

if TYPE_CHECKING:
    from bigbird_ja.settings.schema import Config, MakeDataConfig

PAD_ID = "make_data.pad_id"  # a fact of the data set alone: no setting has this key
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]


@dataclass(frozen=True, kw_only=True)
class Data:
    """The properties of a data set that models, steps and evaluation depend on."""

    seq_length: Positive  # tokens per record
    max_predictions_per_seq: Positive
    masked_lm_prob: Annotated[float, Meta(gt=0, lt=1)]
    masking: Literal["dynamic", "static"]
    mask_unit: Literal["subword", "whole_word", "span"]
    nsp: bool
    vocab_size: Positive
    special_ids: dict[str, Id]  # by name; `pad` at least

    @property
    def pad_id(self) -> int:
        """Return the id that fills a record's end."""
        return self.special_ids["pad"]


def requested_data(config: Config, pad_id: int = 0) -> Data:
    """Describe the data set that `make-data` would make by a config, before there is one."""
    making = config.make_data
    return Data(
        seq_length=making.seq_length,
        max_predictions_per_seq=predictions_of(making),
        masked_lm_prob=making.masked_lm_prob,
        masking=making.masking,  # type: ignore[arg-type]
        mask_unit=making.mask_unit,  # type: ignore[arg-type]
        nsp=making.nsp,
        vocab_size=config.tokenize.vocab_size,
        special_ids={"pad": pad_id},
    )


def predictions_of(making: MakeDataConfig) -> int:
    """Return the most predictions in a sequence: as stated, else enough for a full one's share."""
    if making.max_predictions_per_seq is not None:
        return making.max_predictions_per_seq
    if (making.seq_length, making.masked_lm_prob) == (4096, 0.15):
        return 600  # of the run that this began with; a full sequence would need 615
    return places_for(making.seq_length, making.masked_lm_prob)


def places_for(seq_length: int, rate: float) -> int:
    """Return how many predictions a full sequence needs at a mask rate."""
    return max(1, math.ceil(round(seq_length * rate, 6)))


def data_entries(data: Data) -> Mapping[str, Any]:
    """Return the facts under the keys by which `config.yaml` states them, for fingerprints too."""
    return {
        "tokenize.vocab_size": data.vocab_size,
        "make_data.seq_length": data.seq_length,
        "make_data.masking": data.masking,
        "make_data.max_predictions_per_seq": data.max_predictions_per_seq,
        "make_data.masked_lm_prob": data.masked_lm_prob,
        "make_data.mask_unit": data.mask_unit,
        "make_data.nsp": data.nsp,
        PAD_ID: data.pad_id,
    }
