"""Train a SentencePiece model.

Reads the corpora of --input as a stream. Writes PREFIX.model, PREFIX.vocab and PREFIX.json
(settings, corpus fingerprint, statistics), on disk or gs://. Takes 90 seconds for 35 MB of text on
two cores, 1.3 hours for Wiki40b.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.common_flags import collect_corpus_parameters, define_corpus_flags
from bigbird_ja.cli.config import collect_setting_parameters
from bigbird_ja.settings.variants import OPTIONS, list_used_settings

if TYPE_CHECKING:
    from bigbird_ja.text.tokenizer_training import TokenizerResult

EXAMPLE = "bigbird-ja tokenize --input tfds:wiki40b/ja --output_prefix out/ja --vocab_size 32000"
SETTINGS = list_used_settings("tokenize")


def define_flags(flags: Flags) -> None:
    """Define this command's flags."""
    define_corpus_flags(flags)
    flags.path(
        "output_prefix",
        "Path without its ending: PREFIX.model, PREFIX.vocab and PREFIX.json are written.",
        required=True,
    )
    for key, option in OPTIONS.items():
        if option.section == "tokenize":
            flags.setting(key)
    flags.switch(
        "overwrite", "Move a model of other settings or another corpus to NAME.replaced-N."
    )


def run(args: Args) -> TokenizerResult:
    """Train the tokenizer, unless the output exists already."""
    from bigbird_ja.process.console import format_time
    from bigbird_ja.text.tokenizer_training import tokenize

    result = tokenize(
        **collect_corpus_parameters(args),
        output_prefix=args.output_prefix,
        **collect_setting_parameters(args),
        overwrite=args.overwrite,
    )
    print(
        f"{result.model}: {result.vocab_size:,} tokens, {result.characters_per_token} characters"
        f" per token, {result.unknown_rate:.4%} unknown, in {format_time(result.seconds)}"
    )
    return result
