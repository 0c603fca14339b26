"""Most likely tokens at each `[MASK]` of a text."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bigbird_ja.errors import BadInput, check_is_list
from bigbird_ja.model_dir.model import load_run
from bigbird_ja.text.markers import MASK
from bigbird_ja.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bigbird_ja.model.forward import Forward


@dataclass(frozen=True)
class Candidate:
    """Token that the model predicts at a mask."""

    token: str
    token_id: int
    probability: float


@dataclass(frozen=True)
class FillMaskResult:
    """Candidates at the masks of texts."""

    step: int  # Global step of the checkpoint.
    masks: list[list[Candidate]]  # Candidates of each mask in the texts, best first.
    filled: list[str]  # Texts with the best candidates in brackets.


def fill_mask(
    *,
    model_dir: str | os.PathLike[str],
    texts: Sequence[str],
    step: int | None = None,
    top_k: int = 5,
) -> FillMaskResult:
    """Fill in the masks of texts with the most likely tokens.

    Args:
        model_dir: folder of the run, on disk or gs://.
        texts: texts that contain at least one `[MASK]`, or mask token of the model's tokenizer.
        step: global step of the checkpoint, or None for the newest.
        top_k: number of candidates per mask.

    Raises:
        BadInput: A text contains no mask, or more tokens than the model accepts.
    """
    check_is_list("texts", texts)
    model = load_run(os.fspath(model_dir), step)
    texts = [normalize_masks(text, model.tokenizer) for text in texts]
    from bigbird_ja.model.forward import Forward

    forward = Forward(model.config, model.data, model.params)
    each = [find_candidates(forward, model.tokenizer, text, top_k) for text in texts]
    written = model.tokenizer.written
    filled = [fill_text(text, masks, written) for text, masks in zip(texts, each, strict=True)]
    return FillMaskResult(model.meta.step, [mask for masks in each for mask in masks], filled)


def normalize_masks(text: str, tokenizer: Tokenizer) -> str:
    """Replace the mask token of the model's own tokenizer, such as `<mask>`, by `[MASK]`.

    Raises:
        BadInput: The text contains neither of these mask tokens.
    """
    own = tokenizer.names[tokenizer.special.mask]
    text = text.replace(own, MASK)
    if MASK not in text:
        names = " or ".join(dict.fromkeys([MASK, own]))
        raise BadInput(f"the text contains no {names}: write it where a word is to be filled in")
    return text


def find_candidates(
    forward: Forward, tokenizer: Tokenizer, text: str, top_k: int
) -> list[list[Candidate]]:
    """Return a list for each `[MASK]` of a text, with the `top_k` most likely tokens, best first.

    Raises:
        BadInput: The text contains more tokens than the model accepts.
    """
    special = tokenizer.special
    ids = [special.cls, *tokenizer.encode_with_masks(text), special.sep]
    positions = [place for place, i in enumerate(ids) if i == special.mask]
    longest = forward.config.model.max_position_embeddings or 0
    if len(ids) > longest:
        raise BadInput(
            f"the text has {len(ids):,} tokens, but the model accepts at most {longest:,}: give a"
            f" shorter text around {MASK}"
        )
    scores = forward.compute_log_probabilities(np.array([ids]), np.array([positions]))[0]
    return [
        [
            Candidate(tokenizer.tokens[i], int(i), math.exp(float(row[i])))
            for i in np.argsort(-row[: tokenizer.vocab_size], kind="stable")[:top_k]
        ]
        for row in scores
    ]


def fill_text(text: str, masks: list[list[Candidate]], written: list[str]) -> str:
    """Replace each `[MASK]` of a text by its best candidate, in brackets.

    `masks` contains the candidates at each `[MASK]`, best first. `written` contains the text of
    each token by id (`Tokenizer.written`).
    """
    best = (written[mask[0].token_id].replace("▁", " ") for mask in masks)
    return re.sub(re.escape(MASK), lambda _: f"【{next(best)}】", text)
