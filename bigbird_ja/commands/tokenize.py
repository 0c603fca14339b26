"""Train a SentencePiece model.

Reads the corpora of --input as a stream. Writes PREFIX.model, PREFIX.vocab and PREFIX.json
(settings, corpus fingerprint, statistics), on disk or gs://. Takes 90 seconds for 35 MB of text on
two cores, 1.3 hours for Wiki40b.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.common_flags import define_corpus_flags
from bigbird_ja.cli.config import resolve
from bigbird_ja.settings.schema import OPTIONS, used_by

EXAMPLE = "bigbird-ja tokenize --input tfds:wiki40b/ja --output_prefix out/ja --vocab_size 32000"
SETTINGS = used_by("tokenize")


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
        "overwrite",
        "Replaces a model of other settings or another corpus; keeps it as NAME.replaced-N.",
    )


def run(args: Args) -> dict[str, Any]:
    """Train, or find that the model is there already."""
    from bigbird_ja.process.console import human_time
    from bigbird_ja.text import tokenizer_training
    from bigbird_ja.text.corpus import open_corpus

    started = time.monotonic()
    settings = resolve(args)[0].tokenize
    files = tokenizer_training.ModelFiles(args.output_prefix)
    files.check(replaces=args.overwrite or files.read_record() is None)
    corpus = open_corpus(args.input, args.tfds_data_dir, args.txt_documents, args.text_field)
    fingerprint = corpus.fingerprint
    record = None if args.overwrite else files.finished(settings, fingerprint)
    if record:
        print(f"finished already: {files.model}")
    else:
        files.check(replaces=True)
        tokenizer, figures = tokenizer_training.train(corpus, settings)
        corpus.check_unchanged()
        record = files.write(
            tokenizer,
            settings=dataclasses.asdict(settings),
            corpus_fingerprint=fingerprint,
            seconds=round(time.monotonic() - started, 3),
            **figures,
        )
        print(
            f"wrote {files.model}: {record.vocab_size:,} tokens,"
            f" {record.characters_per_token} characters per token,"
            f" {record.unknown_rate:.4%} unknown, in {human_time(record.seconds)}"
        )
    shown = "vocab_size characters_per_token unknown_rate longest_piece lines seconds"
    return {**{name: getattr(record, name) for name in shown.split()}, "model": files.model}
