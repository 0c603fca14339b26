"""Masked places of held-out records and what the model puts there, for people to read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from bigbird_ja.evaluation.forward import Model
    from bigbird_ja.text.tokenizer import Tokenizer

_COUNT = 8
_CONTEXT = 14  # tokens on either side


def masked_examples(
    forward: Model, batch: dict[str, np.ndarray], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """Some masked places of a batch's first record, always the same ones.

    Returns:
        For each: `before` and `after` (text around it, other masks as `[MASK]`), `truth`, `guess`
        and the guess's `probability`.
    """
    positions = batch["masked_lm_positions"][0]
    masked = batch["input_ids"][0][positions] == tokenizer.special.mask
    usable = np.flatnonzero((batch["masked_lm_weights"][0] > 0) & masked)
    if not len(usable):
        return []
    chosen = usable[np.linspace(0, len(usable) - 1, min(_COUNT, len(usable))).astype(int)]
    scores = forward.log_probabilities(batch["input_ids"][:1], positions[chosen][None])[0]
    row = batch["input_ids"][0]
    found = []
    for place, truth, score in zip(
        positions[chosen], batch["masked_lm_ids"][0][chosen], scores, strict=True
    ):
        best = int(score.argmax())
        found.append(
            {
                "before": _text(row[max(0, place - _CONTEXT) : place], tokenizer),
                "after": _text(row[place + 1 : place + 1 + _CONTEXT], tokenizer),
                "truth": _text([truth], tokenizer),
                "guess": _text([best], tokenizer),
                "probability": round(math.exp(float(score[best])), 4),
            }
        )
    return found


def as_markdown(examples: list[dict[str, Any]]) -> str:
    """A table for TensorBoard's text plugin."""
    lines = ["| | before | truth | guess | | after |", "|---|---|---|---|---|---|"]
    for example in examples:
        sign = "✓" if example["guess"] == example["truth"] else ""
        truth, guess = f"**{example['truth']}**", f"**{example['guess']}**"
        cells = [sign, f"…{example['before']}", truth, guess]
        cells += [f"{example['probability']:.0%}", f"{example['after']}…"]
        lines.append("| " + " | ".join(cell.replace("|", "¦") for cell in cells) + " |")
    return "\n".join(lines)


def _text(ids: Any, tokenizer: Tokenizer) -> str:
    pieces = [tokenizer.pieces[int(i)] for i in ids if int(i) != tokenizer.special.pad]
    return "".join(pieces).replace("▁", " ")
