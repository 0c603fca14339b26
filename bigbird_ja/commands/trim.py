"""Trim an encoder's vocabulary to what a corpus needs.

  bigbird-ja trim --encoder out/e5 --input corpus.jsonl.gz --output_dir out/e5-ja

Reads a Hugging Face folder of a BERT, RoBERTa, XLM-R, BigBird or ModernBERT with its tokenizer, and
the corpus once. Writes OUTPUT_DIR: a folder of the same class with the tokens that the corpus uses
most often. The tokenization algorithm stays the same, and so do the hidden states of every text
whose tokens were kept. Prints the share of tokens in held-out documents (every twentieth) that
change. Continue with `make-data --tokenizer OUTPUT_DIR` and `pretrain --init_from OUTPUT_DIR`.
Takes about a minute for 35 MB of text on two cores.
"""

from __future__ import annotations

from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.common_flags import define_corpus_flags

EXAMPLE = "bigbird-ja trim --encoder out/e5 --input tfds:wiki40b/ja --output_dir out/e5-ja"
NEEDS = ("transformers", "safetensors")


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.path("encoder", "Hugging Face folder of the encoder, on disk or gs://.", required=True)
    define_corpus_flags(flags)
    flags.path("output_dir", "Folder to make, on disk or gs://.", required=True)
    size = "Maximum number of tokens to keep, special tokens and bytes included."
    flags.integer("vocab_size", 32_000, size, unit="tokens", low=1, high=10**7)
    flags.switch("overwrite", "Moves an existing, different folder to OUTPUT_DIR.replaced-N.")


def run(args: Args) -> dict[str, Any]:
    """Trim the vocabulary, unless the output folder already holds the result."""
    import functools

    from bigbird_ja import __version__
    from bigbird_ja.huggingface import trim
    from bigbird_ja.storage import export_folder
    from bigbird_ja.storage.decode import FORMAT_VERSION
    from bigbird_ja.text.corpus import open_corpus

    inputs = {f"--input {path}": path for path in args.input} | {"--encoder": args.encoder}
    export_folder.check(args.output_dir, inputs)
    encoder = trim.read_encoder(args.encoder)
    trim.check_size(encoder, args.vocab_size)
    corpus = open_corpus(args.input, args.tfds_data_dir, args.txt_documents, args.text_field)
    record = {
        "format_version": FORMAT_VERSION,
        "bigbird_ja": __version__,
        "weights": encoder.checksums,
        "tokenizer_sha256": encoder.tokenizer.sha256,
        "corpus_fingerprint": corpus.fingerprint,
        "vocab_size": args.vocab_size,
    }
    if export_folder.finished(args.output_dir, record, args.overwrite):
        print(f"finished already: {args.output_dir}")
        return {"output_dir": args.output_dir}
    trimmed = trim.trim(encoder, corpus.texts(), args.vocab_size)
    fill = functools.partial(trim.fill, encoder=encoder, trimmed=trimmed)
    export_folder.write(args.output_dir, record, fill)
    print(f"wrote {args.output_dir}: {trim.summary(encoder, trimmed)}")
    return {**trim.results(encoder, trimmed), "output_dir": args.output_dir}
