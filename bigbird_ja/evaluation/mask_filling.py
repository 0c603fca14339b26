"""What a model puts at `[MASK]` in a text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bigbird_ja.process.errors import BadInput

if TYPE_CHECKING:
    from bigbird_ja.evaluation.forward import Forward
    from bigbird_ja.text.tokenizer import Tokenizer

MASK = "[MASK]"


def encode_with_masks(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of a text in which `[MASK]` stands for the mask, without [CLS] and [SEP].

    The mask stands where a token stood, as in training and with Hugging Face's tokenizer: no space
    is put after it, and spaces before it are removed. To that end each mask travels through
    SentencePiece as a marker that is always one piece.
    """
    marker = "_NEWLINE_"
    special = tokenizer.special
    parts = text.split(MASK)
    is_mask: list[bool] = []  # of each marker in the text, in order
    for part in parts:
        is_mask += [False] * part.count(marker) + [True]
    joined = marker.join([*(part.rstrip() for part in parts[:-1]), parts[-1]])
    ids = tokenizer.encode(joined)
    if len(parts) > 1 and not parts[0].strip() and tokenizer.pieces[ids[0]] == "▁":
        ids = ids[1:]
    markers = iter(is_mask)
    return [special.mask if i == special.newline and next(markers) else i for i in ids]


def top_candidates(
    log_probabilities: np.ndarray, pieces: list[str], k: int
) -> list[dict[str, Any]]:
    """The `k` likeliest pieces, best first: `token`, `token_id` and `probability`.

    Args:
        log_probabilities: float32 [vocabulary].
        pieces: the piece of each id.
        k: how many.
    """
    best = np.argsort(-log_probabilities, kind="stable")[:k]
    return [
        {
            "token": pieces[i],
            "token_id": int(i),
            "probability": math.exp(float(log_probabilities[i])),
        }
        for i in best
    ]


def fill_mask(
    forward: Forward, tokenizer: Tokenizer, text: str, top_k: int
) -> list[list[dict[str, Any]]]:
    """The candidates at each `[MASK]`, in the order of the text: `top_candidates` for each.

    Raises:
        BadInput: more tokens than the model takes.
    """
    special = tokenizer.special
    ids = [special.cls, *encode_with_masks(text, tokenizer), special.sep]
    positions = [place for place, i in enumerate(ids) if i == special.mask]
    most = forward.config.model.max_position_embeddings
    assert most is not None
    if len(ids) > most:
        raise BadInput(
            f"the text has {len(ids):,} tokens; the model takes {most:,}: cut it near {MASK}"
        )
    scores = forward.log_probabilities(np.array([ids]), np.array([positions]))[0]
    return [top_candidates(row, tokenizer.pieces, top_k) for row in scores]


def filled_text(text: str, masks: list[list[dict[str, Any]]]) -> str:
    """The text with the best candidate at each mask, in brackets."""
    parts = text.split(MASK)
    best = [str(candidates[0]["token"]).replace("▁", " ") for candidates in masks]
    filled = [f"{part}【{token}】" for part, token in zip(parts, best, strict=False)]
    return "".join([*filled, *parts[len(best) :]])
