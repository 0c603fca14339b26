"""Fill in [MASK] in a text with the most likely tokens.

  bigbird-ja fill-mask --model_dir out/model --text '日本の首都は[MASK]です。'
  bigbird-ja fill-mask --model_dir gs://BUCKET/run --input letter.txt --top_k 10

Reads MODEL_DIR (newest checkpoint, config.yaml, tokenizer.model); writes nothing. The text needs at
least one [MASK], and can be as long as the model's maximum length. Takes 5 to 15 seconds to start.
"""

from __future__ import annotations

from typing import Any

from bigbird_ja import storage
from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.common_flags import define_model_flags
from bigbird_ja.errors import BadInput

_MAX_TEXT = 1 << 20  # bytes; the longest sequences that are trained have 16,384 tokens

EXAMPLE = "bigbird-ja fill-mask --model_dir out/model --text '日本の首都は[MASK]です。'"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    define_model_flags(flags)
    flags.text("text", "Text with [MASK] in it.", excludes=("input",))
    flags.path("input", "UTF-8 file that holds the text, on disk or gs://.")
    flags.integer("top_k", 5, "Number of candidates per mask.", low=1, high=10_000_000)


def run(args: Args) -> dict[str, Any]:
    """Print the candidates at each mask."""
    text: str | None = args.text
    if text is None:
        if args.input is None:
            raise BadInput("no text: give --text or --input")
        text = storage.read_text(args.input, _MAX_TEXT).rstrip("\n")
    from bigbird_ja.evaluation import fill_mask

    return fill_mask.run(args.model_dir, args.step, text, args.top_k)
