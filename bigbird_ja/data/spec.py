"""What a data set is: one description, used by making, checking, adopting, reading and training.

The manifest is this and what came out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import numpy as np
from msgspec import Meta

from bigbird_ja.data import records
from bigbird_ja.data.masking import NEWEST_VERSION, MaskingRule
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import MakeDataConfig
from bigbird_ja.settings.values import predictions_of
from bigbird_ja.text.corpus import Corpus
from bigbird_ja.text.tokenizer import Tokenizer

SHORTEST_SEQUENCE = 8
PAIRS_VERSION = 2  # of `pair_packing`: 1 drew label, length and partner from one hash

_Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Version = Annotated[int, Meta(ge=1)]
Spec = TypeVar("Spec", bound="DataSpec")

# Versions of rules: no choice of the user's, so no reason to refuse work of an earlier program.
_VERSIONS = ("masking_version", "pairs_version")


class Portion(TypedDict):
    """One corpus of several that are mixed."""

    sha256: str  # its fingerprint
    weight: Annotated[float, Meta(gt=0)]  # times that an epoch takes each document


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Every choice that changes a byte; neither workers nor paths do. Picklable.

    What the first version of the program knew has no default. What came later has one, and is
    written and hashed only where it differs, so that fingerprints of earlier data sets stay valid.
    """

    seq_length: _Positive  # tokens per record
    masking: Literal["dynamic", "static"]
    dupe_factor: _Positive  # copies with other masks: 1 for dynamic
    max_predictions_per_seq: _Positive
    masked_lm_prob: Annotated[float, Meta(gt=0, lt=1)]
    mask_unit: Literal["subword", "whole_word", "span"]
    word_boundaries: Literal["script", "mecab", "none"]  # none: adopted
    nsp: bool
    eval_fraction: Annotated[float, Meta(ge=0, lt=1)]
    num_shards: _Id  # 0 chooses
    seed: int
    input_mask: bool  # static records also hold `input_mask`
    vocab_size: _Positive
    special_ids: dict[str, _Id]  # pad, cls, sep, mask and the others that are never predicted
    tokenizer_sha256: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]  # empty: adopted without
    corpus: str  # fingerprint
    masking_version: _Version = 1  # of the rule in `masking`
    pairs_version: _Version = 1  # of `pair_packing`
    mixture: tuple[Portion, ...] = ()  # empty: all inputs are one corpus, taken once

    @property
    def pad_id(self) -> int:
        """The id that fills a record's end."""
        return self.special_ids["pad"]

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in a dynamic record."""
        return records.token_bytes(self.vocab_size)

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """One packed sequence, before it becomes records."""
        return np.dtype(
            [
                ("tokens", records.token_dtype(self.token_bytes), (self.seq_length,)),
                ("word_starts", "u1", (-(-self.seq_length // 8),)),
                ("segment_b", "<i4"),
                ("label", "u1"),
            ]
        )

    @property
    def record_bytes(self) -> int:
        """About how long a record is."""
        if self.masking == "dynamic":
            return self.row_dtype.itemsize + 80
        arrays = 4 + self.input_mask
        return arrays * self.seq_length + 8 * self.max_predictions_per_seq + 300

    def rule(self, mask_unit: str | None = None, max_predictions: int | None = None) -> MaskingRule:
        """How records are masked; what is given overrides the data set's (dynamic data only).

        Raises:
            BadInput: another unit or rate for records whose targets were drawn when they were made.
        """
        if self.masking == "static" and max_predictions not in (None, self.max_predictions_per_seq):
            raise BadInput(
                "training.masked_lm_prob: the data set's masks are static"
                f" ({self.masked_lm_prob:g}): leave it out, or make the data with --masking=dynamic"
            )
        if self.masking == "static" and mask_unit not in (None, self.mask_unit):
            raise BadInput(
                f"data.mask_unit={mask_unit}: the data set's masks are static"
                f" ({self.mask_unit}): leave it out, or make the data with --masking=dynamic"
            )
        return MaskingRule(
            vocab_size=self.vocab_size,
            special_ids=tuple(sorted(set(self.special_ids.values()))),
            mask_id=self.special_ids["mask"],
            pad_id=self.pad_id,
            max_predictions=max_predictions or self.max_predictions_per_seq,
            prob=self.masked_lm_prob,
            unit=mask_unit or self.mask_unit,
            version=self.masking_version,
        )

    def spec_values(self) -> dict[str, Any]:
        """The spec as JSON values, without what is at the default of a later field."""
        values = {field: getattr(self, field.name) for field in dataclasses.fields(DataSpec)}
        return {f.name: value for f, value in values.items() if value != f.default}

    def continuing(self: Spec, begun: DataSpec, unasked: Collection[str] = ()) -> Spec:
        """The spec with which unfinished work goes on.

        Args:
            begun: the spec that the work was begun with.
            unasked: fields that nobody asked for: their value is the one of `begun`.

        Raises:
            BadInput: they differ, or an earlier version of the program packed it otherwise.
        """
        differing = self.differences(begun, unasked)
        if self.pairs_version != begun.pairs_version:
            differing.append("pairs for next-sentence prediction as an earlier version drew them")
        if differing:
            raise BadInput(
                f"unfinished work of other settings: {', '.join(differing)}: run that command"
                " again, or --overwrite"
            )
        taken = {name: getattr(begun, name) for name in ("masking_version", *unasked)}
        return dataclasses.replace(self, **taken)

    def differences(self, there: DataSpec, unasked: Collection[str] = ()) -> list[str]:
        """What a data set that is there has otherwise, in words of the command's flags."""
        names = {
            "tokenizer_sha256": "--tokenizer (another model)",
            "corpus": "--input (other text)",
        }
        passed = ("special_ids", "vocab_size", "mixture", *_VERSIONS, *unasked)
        found = []
        for field in dataclasses.fields(DataSpec):
            before, after = getattr(there, field.name), getattr(self, field.name)
            if before != after and field.name not in passed:
                shown = f"--{field.name} ({before} there, {after} asked for)"
                found.append(names.get(field.name, shown))
        if there.corpus == self.corpus and there.mixture != self.mixture:
            before, after = _weights(there.mixture), _weights(self.mixture)
            found.append(f"--input (weights {before} there, {after} asked for)")
        return found


def _weights(mixture: Collection[Portion]) -> str:
    return ", ".join(f"{portion['weight']:g}" for portion in mixture) or "none"


def spec_of(
    config: MakeDataConfig, tokenizer: Tokenizer, corpus: Corpus, input_mask: bool = False
) -> DataSpec:
    """Joins the config's section with what the tokenizer and the corpus are.

    Raises:
        BadInput: settings that no data can have.
    """
    if config.seq_length < SHORTEST_SEQUENCE:
        raise BadInput(f"--seq_length={config.seq_length}: at least {SHORTEST_SEQUENCE}")
    max_predictions = predictions_of(config)
    if max_predictions > config.seq_length:
        raise BadInput(
            f"--max_predictions_per_seq={max_predictions} is more than"
            f" --seq_length={config.seq_length}: lower it"
        )
    if input_mask and config.masking == "dynamic":
        raise BadInput("--input_mask is for --masking=static: dynamic records hold no masks")
    if tokenizer.special.pad != 0:
        raise BadInput(
            f"{tokenizer.source}: the padding piece has id {tokenizer.special.pad}, not 0: train a"
            " tokenizer with `bigbird-ja tokenize`"
        )
    # Where no word can be cut, now or by a run's own unit, the rule's versions are the same.
    has_no_words = config.masking == "static" and config.mask_unit == "subword"
    return DataSpec(
        seq_length=config.seq_length,
        masking=config.masking,  # type: ignore[arg-type]
        dupe_factor=config.dupe_factor if config.masking == "static" else 1,
        max_predictions_per_seq=max_predictions,
        masked_lm_prob=config.masked_lm_prob,
        mask_unit=config.mask_unit,  # type: ignore[arg-type]
        word_boundaries=config.word_boundaries,  # type: ignore[arg-type]
        nsp=config.nsp,
        eval_fraction=config.eval_fraction,
        num_shards=config.num_shards,
        seed=config.seed,
        input_mask=input_mask,
        vocab_size=tokenizer.vocab_size,
        special_ids=dataclasses.asdict(tokenizer.special),
        tokenizer_sha256=tokenizer.sha256,
        corpus=corpus.fingerprint,
        masking_version=1 if has_no_words else NEWEST_VERSION,
        pairs_version=PAIRS_VERSION if config.nsp else 1,
        mixture=tuple(Portion(sha256=sha, weight=weight) for sha, weight in corpus.weights),
    )


def unasked_fields(config: MakeDataConfig) -> tuple[str, ...]:
    """The fields of the spec that follow from others, where the user left them to that."""
    return () if config.max_predictions_per_seq is not None else ("max_predictions_per_seq",)
