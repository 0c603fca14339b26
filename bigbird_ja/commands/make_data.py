"""Corpus to sharded TFRecords and manifest.json, on disk or gs://.

Reads the corpus once, streaming; writes equal, globally shuffled shards, the tokenizer model and,
last, manifest.json, the single source of truth for lengths, ids, counts and checksums. About
12 MB of text a second on two cores; memory does not grow with the corpus. Killed at any point, the
same command continues with the same bytes. Two at once on one directory: the second is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.commands import corpus_input
from bigbird_ja.settings.schema import LENGTH_SETTINGS, OPTIONS

if TYPE_CHECKING:
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.settings.schema import Config

EXAMPLE = (
    "bigbird-ja make-data --input=tfds:wiki40b/ja:train --tokenizer=tok/ja.model"
    " --output_dir=gs://my-bucket/data"
)

# The model only says which lengths it can be trained on.
SETTINGS = ("make_data", *LENGTH_SETTINGS)


def define_flags(flags: Flags) -> None:
    """This command's flags; most are settings."""
    corpus_input.define_flags(flags, weights=True)
    flags.path(
        "tokenizer",
        "SentencePiece .model file that `tokenize` wrote, or that you have, or a Hugging Face"
        " folder with one, on disk or gs://.",
        required=True,
    )  # fmt: skip
    flags.path("output_dir", "Directory to write, on disk or gs://.", required=True)
    for key, option in OPTIONS.items():
        if option.section == "make_data":
            flags.setting(key)
    flags.integer(
        "num_workers", None, "Processes. The bytes do not depend on it.", low=1, high=1024,
        none="one per core",
    )  # fmt: skip
    flags.switch("input_mask", "Also writes `input_mask` (static only), for BERT's readers.")
    flags.switch(
        "overwrite", "Replaces a data set of ours once the new one is whole, and unfinished work of"
        " other settings.",
    )  # fmt: skip


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Makes the data set."""
    import time

    from bigbird_ja.cli import command_flags
    from bigbird_ja.process.console import log

    began = time.monotonic()
    config, overrides = command_flags.resolve(args)
    log(f"make-data settings:\n{command_flags.echo(args, config, overrides)}")
    manifest, was_there = _make(args, config)
    seconds = time.monotonic() - began
    if was_there:
        log(f"{args.output_dir} is finished already: nothing to do")
    results = summary(manifest, seconds)
    print(report(manifest, results, args.output_dir))
    return results


def _make(args: absl_flags.FlagValues, config: Config) -> tuple[Manifest, bool]:
    from bigbird_ja.data import build
    from bigbird_ja.data.manifest import spec_of
    from bigbird_ja.process.console import log
    from bigbird_ja.text import tokenizer as tokenizer_lib
    from bigbird_ja.text.tokenizer_files import Files

    _check_length(config)
    num_workers = args.num_workers or build.available_cores()
    ours = Files(args.tokenizer.removesuffix(".model"))
    if args.tokenizer.endswith(".model") and ours.read_record() is not None:
        tokenizer = tokenizer_lib.load(args.tokenizer)
        ours.check_model(tokenizer)
    else:
        tokenizer = tokenizer_lib.load_any(args.tokenizer)
    for name, change in tokenizer.changes.items():
        log(f"{tokenizer.source}: {name}: {change}")
    corpus = corpus_input.open_input(args, weights=True)
    spec = spec_of(config.make_data, tokenizer, corpus, args.input_mask)
    request = build.Request(
        corpus=corpus,
        tokenizer=tokenizer,
        spec=spec,
        output_dir=args.output_dir,
        num_workers=num_workers,
        overwrite=args.overwrite,
    )
    return build.make_data(request)


def _check_length(config: Config) -> None:
    """Data of a length that attention cannot be computed for would be of no use to anybody."""
    from bigbird_ja.model import pattern
    from bigbird_ja.process.errors import BadInput

    try:
        pattern.is_full(config, config.make_data.seq_length)
    except ValueError as error:
        raise BadInput(
            f"no model can be trained on this data: {error}, or another model.block_size"
        ) from error


def summary(manifest: Manifest, seconds: float) -> dict[str, Any]:
    """The `--json` results that `make-data` and `check-data` share."""
    results: dict[str, Any] = {
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "sequences": manifest.sequences,
        "shards": len(manifest.train_shards) + len(manifest.eval_shards),
        "density": manifest.density,
        "mean_predictions": manifest.mean_predictions,
        "seconds": round(seconds, 3),
        "train_sequences": manifest.train.sequences,
        "eval_sequences": manifest.eval.sequences,
        "bytes": sum(s.bytes for s in manifest.train_shards + manifest.eval_shards),
        "fingerprint": manifest.fingerprint,
    }
    if manifest.corpora:
        results["corpora"] = manifest.portions()
    return results


def rows_of(manifest: Manifest) -> list[list[str]]:
    """What `make-data` and `check-data` both show of a data set."""
    return [
        ["sequences", f"{manifest.train.sequences:,} train, {manifest.eval.sequences:,} eval"],
        ["shards", f"{len(manifest.train_shards)} train, {len(manifest.eval_shards)} eval"],
        ["density", f"{manifest.density:.2%} of {manifest.seq_length:,} positions are tokens"],
        ["predictions", f"{manifest.mean_predictions:.1f} per sequence"],
    ]


def report(manifest: Manifest, results: dict[str, Any], where: str) -> str:
    """The result for people."""
    from bigbird_ja.process.console import human_bytes, human_count, human_time, table

    rows = [
        ["documents", human_count(manifest.documents)],
        ["tokens", human_count(manifest.tokens)],
        *rows_of(manifest),
        ["size", human_bytes(results["bytes"])],
        ["time", human_time(results["seconds"])],
    ]
    found = f"{where}: {manifest.masking} masks\n{table(rows, ['what', 'value'])}"
    return found + corpora_table(manifest)


def corpora_table(manifest: Manifest) -> str:
    """The corpora that are mixed, for people; empty where they are one."""
    from bigbird_ja.process.console import human_count, table

    if not manifest.corpora:
        return ""
    rows = [
        [
            row["name"],
            f"{row['weight']:g}",
            f"{row['documents']:,}",
            human_count(row["tokens"]),
            f"{row['share']:.1%}",
            f"{row['eval_documents']:,}",
        ]
        for row in manifest.portions()
    ]
    header = ["corpus", "weight", "documents per epoch", "tokens per epoch", "share", "held out"]
    return f"\n\n{table(rows, header)}"
