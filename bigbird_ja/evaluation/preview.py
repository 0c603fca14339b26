"""Previews: masked words of held-out records, which a model fills in when it is evaluated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from bigbird_ja.model.forward import Model
    from bigbird_ja.text.tokenizer import Tokenizer

Arrays = Mapping[str, np.ndarray]
# Number of masked words, and maximum number of tokens on each side of a masked word.
_PREVIEWS = 3
_PREVIEW_TOKENS = 24


def preview(forward: Model, tokenizer: Tokenizer, batch: Arrays) -> list[dict[str, Any]]:
    """Mask single tokens of held-out records, and let the model fill them in.

    Args:
        forward: model on a device.
        tokenizer: tokenizer of the records.
        batch: first batch of held-out records.

    Returns:
        A dict for each mask: text `before` and `after` the mask, `truth` (the masked token),
        `guess` (the most likely token) and its `probability`.
    """
    special, written = tokenizer.special, tokenizer.written
    row, slot = np.nonzero(batch["masked_lm_weights"] > 0)
    column, truth = batch["masked_lm_positions"][row, slot], batch["masked_lm_ids"][row, slot]
    tokens = batch["input_ids"].copy()
    tokens[row, column] = truth
    is_word = [len(w := written[i].strip("▁")) > 1 and w.isalnum() for i in truth]
    candidates = np.flatnonzero(is_word if any(is_word) else tokenizer.is_text_token[truth])
    chosen = candidates[:: max(1, len(candidates) // _PREVIEWS)][:_PREVIEWS]
    if not len(chosen):
        return []
    filled: list[dict[str, Any]] = []
    rows = []
    for one in chosen:
        line, at = tokens[row[one]], int(column[one])
        ends = np.flatnonzero(np.isin(line, (special.cls, special.sep, special.pad)))
        first = max(at - _PREVIEW_TOKENS, *(ends[ends < at] + 1))
        last = min([at + _PREVIEW_TOKENS, *ends[ends > at]])
        before, after = line[first:at].tolist(), line[at + 1 : last].tolist()
        rows.append([special.cls, *before, special.mask, *after, special.sep])
        filled.append(
            {
                "before": tokenizer.format_tokens(before),
                "after": tokenizer.format_tokens(after),
                "truth": tokenizer.format_tokens([truth[one]]).strip(),
            }
        )
    longest = max(map(len, rows))
    ids = np.array([ids + [special.pad] * (longest - len(ids)) for ids in rows])
    places = np.array([[ids.index(special.mask)] for ids in rows])
    scores = forward.compute_log_probabilities(ids, places)[:, 0, : tokenizer.vocab_size]
    for sentence, scored in zip(filled, scores, strict=True):
        best = int(scored.argmax())
        sentence["guess"] = tokenizer.format_tokens([best]).strip()
        sentence["probability"] = round(math.exp(float(scored[best])), 4)
    return filled
