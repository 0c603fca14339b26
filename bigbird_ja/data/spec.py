"""Describe a data set that is to be made: every choice that changes a byte."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import numpy as np
from msgspec import Meta, structs

from bigbird_ja.data import tfrecords
from bigbird_ja.data.masking import MaskingRule
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings import Data, Id, MakeDataConfig, Positive, predictions_of

if TYPE_CHECKING:
    from bigbird_ja.text.corpus import Corpus
    from bigbird_ja.text.interface import Tokenizer

SHORTEST_SEQUENCE = 8
OptionalSha256 = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]  # hex


class Portion(TypedDict):
    """One corpus of several that are mixed."""

    sha256: str  # its fingerprint
    weight: Annotated[float, Meta(gt=0)]  # how often an epoch takes each document


@dataclass(frozen=True, kw_only=True)
class DataSpec(Data):
    """Every choice that changes a byte; neither workers nor paths do. Picklable.

    `special_ids` has pad, cls, sep, mask and the others that are never predicted.
    """

    word_boundaries: Literal["script", "mecab"]
    dupe_factor: Positive  # copies with other masks: 1 for dynamic
    eval_fraction: Annotated[float, Meta(ge=0, lt=1)]
    num_shards: Id  # of the train split, as requested; 0: by size
    seed: int
    input_mask: bool  # static records also hold `input_mask`
    tokenizer_sha256: OptionalSha256  # empty: records that no tokenizer made
    corpus: str  # fingerprint
    mixture: tuple[Portion, ...] = ()  # empty: all inputs are one corpus, taken once

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Return the type of one packed sequence, before it becomes records."""
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
        """Estimate the length of a record."""
        if self.masking == "dynamic":
            return self.row_dtype.itemsize + 80
        arrays = 4 + self.input_mask
        return arrays * self.seq_length + 8 * self.max_predictions_per_seq + 300

    def rule(self, mask_unit: str | None = None, max_predictions: int | None = None) -> MaskingRule:
        """Return the masking rule; the arguments override the data set's (dynamic data only).

        Raises:
            BadInput: another unit or rate for records whose targets were drawn when they were made.
        """
        if self.masking == "static" and max_predictions not in (None, self.max_predictions_per_seq):
            raise BadInput(
                "training.masked_lm_prob: the data set's masks are static"
                f" ({self.masked_lm_prob:g}): leave it out, or make the data with --masking dynamic"
            )
        if self.masking == "static" and mask_unit not in (None, self.mask_unit):
            raise BadInput(
                f"data.mask_unit={mask_unit}: the data set's masks are static"
                f" ({self.mask_unit}): leave it out, or make the data with --masking dynamic"
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
        """List what differs in the spec of a data set, in words of the command's flags."""
        names = {
            "tokenizer_sha256": "--tokenizer (another model)",
            "corpus": "--input (other text)",
        }
        implied = ("special_ids", "vocab_size", "mixture")
        result = []
        for each in dataclasses.fields(DataSpec):
            before, after = getattr(stored, each.name), getattr(self, each.name)
            if before != after and each.name not in implied:
                flag = f"--{each.name} ({before} there, {after} requested)"
                result.append(names.get(each.name, flag))
        if stored.corpus == self.corpus and stored.mixture != self.mixture:
            before, after = _weights(stored.mixture), _weights(self.mixture)
            result.append(f"--input (weights {before} there, {after} requested)")
        return result


def _weights(mixture: tuple[Portion, ...]) -> str:
    return ", ".join(f"{portion['weight']:g}" for portion in mixture) or "none"


def spec_of(
    config: MakeDataConfig, tokenizer: Tokenizer, corpus: Corpus, input_mask: bool = False
) -> DataSpec:
    """Joins the config's section with what the tokenizer and the corpus are.

    Raises:
        BadInput: settings that no data can have.
    """
    if config.seq_length < SHORTEST_SEQUENCE:
        raise BadInput(f"--seq_length {config.seq_length}: at least {SHORTEST_SEQUENCE}")
    max_predictions = predictions_of(config)
    if max_predictions > config.seq_length:
        raise BadInput(
            f"--max_predictions_per_seq {max_predictions} is more than"
            f" --seq_length {config.seq_length}: lower it"
        )
    if input_mask and config.masking == "dynamic":
        raise BadInput("--input_mask is for --masking static: dynamic records hold no masks")
    chosen = {**structs.asdict(config), "max_predictions_per_seq": max_predictions}
    if config.masking == "dynamic":
        chosen["dupe_factor"] = 1
    names = {each.name for each in dataclasses.fields(DataSpec)}
    return DataSpec(
        **{name: value for name, value in chosen.items() if name in names},
        input_mask=input_mask,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
        tokenizer_sha256=tokenizer.sha256,
        corpus=corpus.fingerprint,
        mixture=tuple(Portion(sha256=sha, weight=weight) for sha, weight in corpus.weights),
    )
