"""Fill in [MASK] in a text with the most likely tokens.

  bigbird-ja fill-mask --model_dir out/model --text '日本の首都は[MASK]です。'
  bigbird-ja fill-mask --model_dir out/german --text 'Berlin ist die [MASK] von Deutschland.'
  bigbird-ja fill-mask --model_dir gs://BUCKET/run --input letter.txt --top_k 10

Reads MODEL_DIR (newest checkpoint, config.yaml, tokenizer.model); writes nothing. A text needs at
least one [MASK], or the mask token of the model's own tokenizer, and can be as long as the model's
maximum length. Takes 5 to 15 seconds to start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja import storage
from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.common_flags import define_model_flags
from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import escape_text, table

if TYPE_CHECKING:
    from bigbird_ja.evaluation.fill_mask import FillMaskResult

# A filled text of this many characters or more is not printed.
_MAX_SHOWN = 400
# Maximum size of a text in bytes, far above the longest trained sequences of 16,384 tokens.
_MAX_TEXT = 1 << 20

EXAMPLE = "bigbird-ja fill-mask --model_dir out/model --text '日本の首都は[MASK]です。'"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    define_model_flags(flags)
    flags.text("text", "Text with [MASK] in it (repeatable).", many=True, excludes=("input",))
    flags.path("input", "UTF-8 file that contains the text, on disk or gs://.")
    flags.integer("top_k", 5, "Number of candidates per mask.", low=1, high=10_000_000)


def run(args: Args) -> FillMaskResult:
    """Print the candidates at each mask."""
    texts: list[str] = args.text
    if not texts:
        if args.input is None:
            raise BadInput("no text is given: use --text or --input")
        texts = [storage.read_text(args.input, _MAX_TEXT).rstrip("\n")]
    from bigbird_ja.evaluation.fill_mask import fill_mask

    result = fill_mask(model_dir=args.model_dir, texts=texts, step=args.step, top_k=args.top_k)
    rows = [
        (number if place == 0 else "", candidate.token, f"{candidate.probability:.4f}")
        for number, candidates in enumerate(result.masks, start=1)
        for place, candidate in enumerate(candidates)
    ]
    print(table(rows, ["mask", "token", "probability"]))
    for filled in result.filled:
        if len(filled) < _MAX_SHOWN:
            print("\n".join(map(escape_text, filled.split("\n"))))
    return result
