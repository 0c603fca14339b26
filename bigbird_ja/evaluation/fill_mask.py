"""The likeliest tokens at each `[MASK]` of a text."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from bigbird_ja.errors import BadInput
from bigbird_ja.model.forward import Forward
from bigbird_ja.model_dir.model import load_run
from bigbird_ja.process.console import printable, table
from bigbird_ja.text.markers import MASK
from bigbird_ja.text.tokenizer import Tokenizer


def run(model_dir: str, step: int | None, text: str, top_k: int) -> dict[str, Any]:
    """Print the candidates at each mask, and return the `--json` results.

    Args:
        model_dir: folder of the run.
        step: global step of the checkpoint; None for the newest.
        text: text with at least one `[MASK]`, or mask token of the model's tokenizer.
        top_k: candidates per mask.

    Raises:
        BadInput: no mask in the text, or more tokens than the model takes.
    """
    model = load_run(model_dir, step)
    text = with_our_mask(text, model.tokenizer)
    masks = fill_mask(Forward(model.config, model.data, model.params), model.tokenizer, text, top_k)
    rows = [
        (number if place == 0 else "", candidate["token"], f"{candidate['probability']:.4f}")
        for number, candidates in enumerate(masks, start=1)
        for place, candidate in enumerate(candidates)
    ]
    print(table(rows, ["mask", "token", "probability"]))
    if len(text) < 400:
        filled = filled_text(text, masks, model.tokenizer.written)
        print("\n".join(map(printable, filled.split("\n"))))
    return {"step": model.meta.step, "masks": masks}


def with_our_mask(text: str, tokenizer: Tokenizer) -> str:
    """Replace the mask token of the model's own tokenizer, such as `<mask>`, by `[MASK]`.

    Raises:
        BadInput: The text contains neither.
    """
    own = tokenizer.names[tokenizer.special.mask]
    text = text.replace(own, MASK)
    if MASK not in text:
        names = " or ".join(dict.fromkeys([MASK, own]))
        raise BadInput(f"the text contains no {names}: write it where a word is to be filled in")
    return text


def fill_mask(
    forward: Forward, tokenizer: Tokenizer, text: str, top_k: int
) -> list[list[dict[str, Any]]]:
    """Return the `top_k` most likely tokens at each `[MASK]`, in the order of the text.

    Best first, each with `token`, `token_id` and `probability`.

    Raises:
        BadInput: more tokens than the model takes.
    """
    special = tokenizer.special
    ids = [special.cls, *tokenizer.encode_with_masks(text), special.sep]
    positions = [place for place, i in enumerate(ids) if i == special.mask]
    most = forward.config.model.max_position_embeddings or 0
    if len(ids) > most:
        raise BadInput(
            f"the text has {len(ids):,} tokens; the model takes {most:,}: cut it near {MASK}"
        )
    scores = forward.log_probabilities(np.array([ids]), np.array([positions]))[0]
    names = tokenizer.tokens
    return [
        [
            {"token": names[i], "token_id": int(i), "probability": math.exp(float(row[i]))}
            for i in np.argsort(-row[: tokenizer.vocab_size], kind="stable")[:top_k]
        ]
        for row in scores
    ]


def filled_text(text: str, masks: list[list[dict[str, Any]]], written: list[str]) -> str:
    """Put the best candidate at each mask, in brackets; `written` is the tokenizer's."""
    best = (written[candidates[0]["token_id"]].replace("▁", " ") for candidates in masks)
    return re.sub(re.escape(MASK), lambda _: f"【{next(best)}】", text)
