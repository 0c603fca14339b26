"""What the bytes of a data set depend on, and how settings are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigbird_ja.config import MakeDataConfig, predictions_of
from bigbird_ja.data import records
from bigbird_ja.data.static_masking import NEWEST_VERSION, MaskingRule
from bigbird_ja.errors import BadInput
from bigbird_ja.text.tokenizer import SpecialIds, Tokenizer

SHORTEST_SEQUENCE = 8
PAIRS_VERSION = 2  # of `pair_packing`: 1 drew label, length and partner from one hash

# Versions of rules: no choice of the user's, so no reason to refuse work of an earlier program.
_VERSIONS = ("masking_version", "pairs_version")


@dataclass(frozen=True)
class DataSettings:
    """Every choice that changes a byte; neither workers nor paths do. Picklable."""

    seq_length: int
    masking: str
    dupe_factor: int  # 1 for dynamic
    max_predictions_per_seq: int
    masked_lm_prob: float
    mask_unit: str
    word_boundaries: str
    nsp: bool
    eval_fraction: float
    num_shards: int  # 0 chooses
    seed: int
    input_mask: bool
    vocab_size: int
    special_ids: tuple[tuple[str, int], ...]
    tokenizer_sha256: str
    corpus: str  # fingerprint
    masking_version: int = NEWEST_VERSION  # of `static_masking`'s rule

    @property
    def specials(self) -> dict[str, int]:
        """Special ids by name."""
        return dict(self.special_ids)

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

    def rule(self) -> MaskingRule:
        """How records are masked."""
        return MaskingRule(
            vocab_size=self.vocab_size,
            special_ids=tuple(sorted(set(self.specials.values()))),
            mask_id=self.specials["mask"],
            pad_id=self.specials["pad"],
            max_predictions=self.max_predictions_per_seq,
            prob=self.masked_lm_prob,
            unit=self.mask_unit,
            version=self.masking_version,
        )

    def as_dict(self) -> dict[str, Any]:
        """For the manifest. Version 1 of a rule is what nothing is said of."""
        values = {**dataclasses.asdict(self), "special_ids": self.specials}
        if self.masking_version == 1:
            del values["masking_version"]
        if self.nsp:
            values["pairs_version"] = PAIRS_VERSION
        return values

    def continuing(self, begun: Mapping[str, Any]) -> DataSettings:
        """The settings with which unfinished work goes on.

        Args:
            begun: the settings, as `as_dict` wrote them, that the work was begun with.

        Raises:
            BadInput: they differ, or an earlier version of the program packed it otherwise.
        """
        differing = differences(begun, self.as_dict())
        if self.nsp and begun.get("pairs_version") != PAIRS_VERSION:
            differing.append("pairs for next-sentence prediction as an earlier version drew them")
        if differing:
            raise BadInput(
                f"unfinished work of other settings: {', '.join(differing)}: run that command"
                " again, or --overwrite"
            )
        return dataclasses.replace(self, masking_version=begun.get("masking_version", 1))


def settings_of(
    config: MakeDataConfig, tokenizer: Tokenizer, corpus_fingerprint: str, input_mask: bool = False
) -> DataSettings:
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
    return DataSettings(
        seq_length=config.seq_length,
        masking=config.masking,
        dupe_factor=config.dupe_factor if config.masking == "static" else 1,
        max_predictions_per_seq=max_predictions,
        masked_lm_prob=config.masked_lm_prob,
        mask_unit=config.mask_unit,
        word_boundaries=config.word_boundaries,
        nsp=config.nsp,
        eval_fraction=config.eval_fraction,
        num_shards=config.num_shards,
        seed=config.seed,
        input_mask=input_mask,
        vocab_size=tokenizer.vocab_size,
        special_ids=tuple(dataclasses.asdict(_special_ids(tokenizer)).items()),
        tokenizer_sha256=tokenizer.sha256,
        corpus=corpus_fingerprint,
    )


def _special_ids(tokenizer: Tokenizer) -> SpecialIds:
    return tokenizer.special


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between the settings of two data sets, in words of the command's flags."""
    names = {"tokenizer_sha256": "--tokenizer (another model)", "corpus": "--input (other text)"}
    found = []
    for key in [*new, *(k for k in old if k not in new)]:
        before, after = old.get(key), new.get(key)
        if before != after and key not in ("special_ids", "vocab_size", *_VERSIONS):
            found.append(names.get(key, f"--{key} ({before} there, {after} asked for)"))
    return found
