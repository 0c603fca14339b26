"""Fill in [MASK] in a text with the likeliest pieces.

  bigbird-ja fill-mask --model_dir out/model --text '日本の首都は[MASK]です。'
  bigbird-ja fill-mask --model_dir gs://BUCKET/run --input letter.txt --top_k 10

Reads MODEL_DIR (newest checkpoint, config.yaml, tokenizer.model); writes nothing. The text may be
as long as the model takes; it needs at least one [MASK]. Starting takes 5 to 15 seconds.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from bigbird_ja import storage
from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.commands import define_model_flags
from bigbird_ja.process.console import printable, table
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text.markers import MASK

if TYPE_CHECKING:
    from bigbird_ja.model.forward import Forward
    from bigbird_ja.text.tokenizer import Tokenizer

_MOST_TEXT = 1 << 20  # bytes; the longest sequences that are trained have 16,384 tokens

EXAMPLE = "bigbird-ja fill-mask --model_dir out/model --text '日本の首都は[MASK]です。'"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    define_model_flags(flags)
    flags.text("text", "Text with [MASK] in it.", excludes=("input",))
    flags.path("input", "UTF-8 file with the text, on disk or gs://.")
    flags.integer("top_k", 5, "Candidates per mask.", low=1, high=10_000_000)


def run(args: Args) -> dict[str, Any]:
    """Print the candidates at each mask."""
    text: str | None = args.text
    if text is None:
        if args.input is None:
            raise BadInput("no text: give --text or --input")
        text = storage.read_text(args.input, _MOST_TEXT).rstrip("\n")
    if MASK not in text:
        raise BadInput(f"the text holds no {MASK}: write it where a word is to be filled in")
    from bigbird_ja.evaluation import load_run

    model = load_run(args.model_dir, args.step)
    from bigbird_ja.model.forward import Forward

    masks = fill_mask(
        Forward(model.config, model.data, model.params), model.tokenizer, text, args.top_k
    )
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


def fill_mask(
    forward: Forward, tokenizer: Tokenizer, text: str, top_k: int
) -> list[list[dict[str, Any]]]:
    """Return the `top_k` likeliest pieces at each `[MASK]` in the order of the text.

    Best first, each with `token`, `token_id` and `probability`.

    Raises:
        BadInput: more tokens than the model takes.
    """
    import numpy as np

    special = tokenizer.special
    ids = [special.cls, *tokenizer.encode_with_masks(text), special.sep]
    positions = [place for place, i in enumerate(ids) if i == special.mask]
    most = forward.config.model.max_position_embeddings or 0
    if len(ids) > most:
        raise BadInput(
            f"the text has {len(ids):,} tokens; the model takes {most:,}: cut it near {MASK}"
        )
    scores = forward.log_probabilities(np.array([ids]), np.array([positions]))[0]
    pieces = tokenizer.pieces
    return [
        [
            {"token": pieces[i], "token_id": int(i), "probability": math.exp(float(row[i]))}
            for i in np.argsort(-row[: tokenizer.vocab_size], kind="stable")[:top_k]
        ]
        for row in scores
    ]


def filled_text(text: str, masks: list[list[dict[str, Any]]], written: list[str]) -> str:
    """Put the best candidate at each mask, in brackets; `written` is the tokenizer's."""
    best = (written[candidates[0]["token_id"]].replace("▁", " ") for candidates in masks)
    return re.sub(re.escape(MASK), lambda _: f"【{next(best)}】", text)
