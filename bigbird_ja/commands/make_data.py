"""Corpus to sharded TFRecords and manifest.json, on disk or gs://.

Reads the corpus once, streaming; writes equal, globally shuffled shards, the tokenizer model and,
last, manifest.json, the single source of truth for lengths, ids, counts and checksums. About
12 MB of text a second on two cores; memory does not grow with the corpus. Killed at any point, the
same command continues with the same bytes. Two at once on one directory: the second is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags

if TYPE_CHECKING:
    from bigbird_ja.config import Config
    from bigbird_ja.data.manifest import Manifest

EXAMPLE = (
    "bigbird-ja make-data --input=tfds:wiki40b/ja:train --tokenizer=tok/ja.model"
    " --output_dir=gs://my-bucket/data"
)

_SECTION_FLAGS = (
    "seq_length", "masking", "dupe_factor", "max_predictions_per_seq", "masked_lm_prob",
    "mask_unit", "word_boundaries", "nsp", "eval_fraction", "num_shards", "seed",
)  # fmt: skip


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines this command's flags; those with a config key default to its value."""

    def integer(name: str, text: str) -> None:
        flags.DEFINE_integer(name, None, text, flag_values=flag_values)

    def number(name: str, text: str) -> None:
        flags.DEFINE_float(name, None, text, flag_values=flag_values)

    def choice(name: str, values: list[str], text: str) -> None:
        flags.DEFINE_enum(name, None, values, text, flag_values=flag_values)

    def string(name: str, text: str) -> None:
        flags.DEFINE_string(name, None, text, flag_values=flag_values)

    flags.DEFINE_multi_string(
        "input", [], "Corpus: tfds:wiki40b/ja[:SPLIT], .jsonl[.gz], .txt, a glob, on disk or gs://"
        " (repeatable).", flag_values=flag_values,
    )  # fmt: skip
    string("tfds_data_dir", "Directory of prepared TFDS data sets, for tfds: inputs.")
    string("tokenizer", "SentencePiece .model file that `tokenize` wrote, on disk or gs://.")
    string("output_dir", "Directory to write, on disk or gs://.")
    integer("seq_length", "Tokens per sequence, [CLS] and [SEP] included; else 4096.")
    choice("masking", ["dynamic", "static"], "dynamic: targets are drawn while training, anew in"
           " each epoch; static: they are in the records; else dynamic.")  # fmt: skip
    integer("dupe_factor", "Copies of each sequence with other masks (static only); else 10.")
    integer("max_predictions_per_seq", "Most tokens to predict in a sequence; else 600.")
    number("masked_lm_prob", "Share of tokens to predict; else 0.15.")
    choice(
        "mask_unit", ["subword", "whole_word", "span"], "What is masked together; else whole_word."
    )
    choice("word_boundaries", ["script", "mecab"], "Where words start: at changes of script, or by"
           " MeCab with unidic-lite (extra `words`); else script.")  # fmt: skip
    flags.DEFINE_bool(
        "nsp", None, "Pairs of segments for next-sentence prediction; else off.",
        flag_values=flag_values,
    )  # fmt: skip
    number("eval_fraction", "Share of the documents held out for evaluation; else 0.01.")
    integer("num_shards", "Train shards; 0 chooses by size, a multiple of 32; else 0.")
    integer("num_workers", "Processes; else one per core. The bytes do not depend on it.")
    integer("seed", "Of shuffling, held-out documents and static masks; else 12345.")
    flags.DEFINE_bool(
        "input_mask", False, "Also writes `input_mask` (static only), for BERT's readers.",
        flag_values=flag_values,
    )  # fmt: skip
    flags.DEFINE_bool(
        "overwrite", False, "Replaces a data set of ours once the new one is whole, and"
        " unfinished work of other settings.",
        flag_values=flag_values,
    )  # fmt: skip
    string("work_dir", "Local directory in which a folder for unfinished work is made; else it is"
           " OUTPUT_DIR/.make-data, or in the user's cache for gs://.")  # fmt: skip


def run(args: flags.FlagValues) -> dict[str, Any]:
    """Makes the data set."""
    import time

    from bigbird_ja import config as config_lib
    from bigbird_ja.console import log

    began = time.monotonic()
    values = {f"make_data.{name}": getattr(args, name) for name in _SECTION_FLAGS}
    config, overrides = config_lib.resolve(args.config, args.set, values)
    log(f"make-data settings:\n{config_lib.echo(config, overrides)}")
    manifest, was_there = _make(args, config)
    seconds = time.monotonic() - began
    if was_there:
        log(f"{args.output_dir} is finished already: nothing to do")
    results = summary(manifest, seconds)
    print(report(manifest, results, args.output_dir))
    return results


def _make(args: flags.FlagValues, config: Config) -> tuple[Manifest, bool]:
    from bigbird_ja.data import build, workers
    from bigbird_ja.data.settings import settings_of
    from bigbird_ja.errors import BadInput
    from bigbird_ja.text import corpus as corpus_lib
    from bigbird_ja.text import tokenizer as tokenizer_lib

    for name in ("input", "tokenizer", "output_dir"):
        if not getattr(args, name):
            raise BadInput(f"--{name} is missing: see `bigbird-ja make-data --help`")
    num_workers = args.num_workers if args.num_workers is not None else workers.available_cores()
    if num_workers < 1:
        raise BadInput(f"--num_workers={num_workers}: at least 1")
    tokenizer = tokenizer_lib.load(args.tokenizer)
    corpus = corpus_lib.open_corpus(args.input, args.tfds_data_dir)
    settings = settings_of(config.make_data, tokenizer, corpus.fingerprint, args.input_mask)
    request = build.Request(
        corpus, tokenizer, settings, args.output_dir, num_workers, args.overwrite, args.work_dir
    )
    return build.make_data(request)


def summary(manifest: Manifest, seconds: float) -> dict[str, Any]:
    """The `--json` results that `make-data` and `check-data` share."""
    return {
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


def report(manifest: Manifest, results: dict[str, Any], where: str) -> str:
    """The result for people."""
    from bigbird_ja.console import human_bytes, human_count, human_time, table

    rows = [
        ["documents", human_count(manifest.documents)],
        ["tokens", human_count(manifest.tokens)],
        ["sequences", f"{manifest.train.sequences:,} train, {manifest.eval.sequences:,} eval"],
        ["shards", f"{len(manifest.train_shards)} train, {len(manifest.eval_shards)} eval"],
        ["density", f"{manifest.density:.2%} of {manifest.seq_length:,} positions are tokens"],
        ["predictions", f"{manifest.mean_predictions:.1f} per sequence"],
        ["size", human_bytes(results["bytes"])],
        ["time", human_time(results["seconds"])],
    ]
    return f"{where}: {manifest.masking} masks\n{table(rows, ['what', 'value'])}"
