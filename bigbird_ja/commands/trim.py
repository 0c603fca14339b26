"""Trim an encoder's vocabulary to what a corpus needs.

  bigbird-ja trim --encoder out/e5 --input corpus.jsonl.gz --output_dir out/e5-ja

Reads a Hugging Face folder of a BERT, RoBERTa, XLM-R, BigBird or ModernBERT with its tokenizer, and
the corpus once. Writes OUTPUT_DIR: a folder of the same class with the tokens that the corpus uses
most often. The tokenization algorithm stays the same, and so do the hidden states of every text
whose tokens were kept. Holds out every twentieth document, up to 2,000, and prints the share of
tokens that change in these documents. Continue with `make-data --tokenizer OUTPUT_DIR` and
`pretrain --init_from OUTPUT_DIR`. Takes about a minute for 35 MB of text on two cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.common_flags import collect_corpus_parameters, define_corpus_flags

if TYPE_CHECKING:
    from bigbird_ja.huggingface.trim import TrimResult

EXAMPLE = "bigbird-ja trim --encoder out/e5 --input tfds:wiki40b/ja --output_dir out/e5-ja"
NEEDS = ("transformers", "safetensors")


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.path(
        "encoder",
        "Hugging Face folder of the encoder, on disk or gs://, or its name on the Hub.",
        required=True,
    )
    define_corpus_flags(flags)
    flags.path("output_dir", "Folder to make, on disk or gs://.", required=True)
    size = "Maximum number of tokens to keep, special tokens and bytes included."
    flags.integer("vocab_size", 32_000, size, unit="tokens", low=1, high=10**7)
    flags.switch("overwrite", "Move an existing, different folder to OUTPUT_DIR.replaced-N.")


def run(args: Args) -> TrimResult:
    """Trim the vocabulary, unless the output folder already contains the result."""
    from bigbird_ja.huggingface.trim import summarize, trim

    result = trim(
        encoder=args.encoder,
        **collect_corpus_parameters(args),
        output_dir=args.output_dir,
        vocab_size=args.vocab_size,
        overwrite=args.overwrite,
    )
    if result.vocab_size is not None:
        print(f"{result.output_dir}: {summarize(result)}")
    return result
