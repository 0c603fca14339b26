"""Implements the verbs, one module per command; here is what several of them share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bigbird_ja.cli import command_flags
from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.process.console import human_bytes, human_count, human_time, log, table
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import OPTIONS

if TYPE_CHECKING:
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.settings.provenance import Override
    from bigbird_ja.settings.schema import Config

_MOST_UNKNOWN = 0.01  # share of tokens above which a data set is warned of
_WEIGHTS = (
    " SRC=WEIGHT: an epoch takes each of its documents WEIGHT times, 0.0001 to 1000 (1 where only"
    " others have one); weighted corpora are packed apart."
)


def define_model_flags(flags: Flags) -> None:
    """Define the flags that name a checkpoint."""
    flags.path("model_dir", "Folder of the run, on disk or gs://.", required=True)
    step = "Global step of the checkpoint."
    flags.integer("step", None, step, low=0, high=10**12, none="the newest")


def define_corpus_flags(flags: Flags, weights: bool = False) -> None:
    """Define the flags that name text; `weights` tells whether a source can have one."""
    flags.path(
        "input",
        "Corpus: .jsonl, .txt, .csv or .tsv (also .gz, .zst), .parquet, .arrow, a .zip or folder of"
        " these or of Hugging Face's `datasets`, a glob, on disk or gs://; tfds:wiki40b/ja[:SPLIT];"
        " hf:OWNER/NAME[@REVISION][:[CONFIG/]SPLIT], streamed from the Hub by `datasets`."
        + (_WEIGHTS if weights else ""),
        many=True,
        required=True,
    )
    flags.text(
        "text_field", "Field or column of the text, in all but .txt and tfds:.", default="text"
    )
    flags.path("tfds_data_dir", "Directory of prepared TFDS data sets, for tfds: inputs.")
    flags.choice(
        "txt_documents",
        ("auto", "file", "blank_line", "line"),
        "What a document is in a .txt file: all of it, what stands between blank lines, or a line."
        " auto: the file, where a folder or glob names several of at most 8 MB; else blank lines.",
    )


def resolve(
    args: Args, adopted: Iterable[Override] = (), config_name: str | None = None
) -> tuple[Config, list[Override]]:
    """Resolves the config that a command's flags ask for; see `resolve_config`.

    Where `--config` is repeatable, `config_name` is the one of them.

    Raises:
        BadInput: also a setting that has no effect without a flag that is not there.
    """
    from bigbird_ja.settings.provenance import Override
    from bigbird_ja.settings.resolve import resolve_config

    given = [
        Override(command_flags.declared(flag).setting, flag.value, f"--{flag.name}")
        for flag in command_flags.own_flags(args)
        if command_flags.declared(flag).setting and flag.value is not None
    ]
    uses = command_flags.declared(args["set"]).uses
    name = config_name or args.config or None
    config, overrides = resolve_config(name, args.set, given, uses, adopted)
    for override in overrides:
        need = OPTIONS[override.key].needs_flag
        if override.source != "--set" or not need:
            continue
        if need.partition("=")[0] not in args:
            raise BadInput(f"--set {override.key} has no effect in this command: leave it out")
        command_flags.check_given(args, f"--set {override.key}", need)
    return config, overrides


def data_summary(manifest: Manifest, seconds: float) -> dict[str, Any]:
    """Collect the `--json` results that `make-data` and `check-data` share."""
    return {
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "sequences": manifest.sequences,
        "shards": len(manifest.every_shard),
        "density": manifest.density,
        "mean_predictions": manifest.mean_predictions,
        "seconds": round(seconds, 3),
        "skipped": manifest.statistics.get("skipped"),
        "unknown_rate": manifest.unknown_rate,
        "train_sequences": manifest.train.sequences,
        "eval_sequences": manifest.eval.sequences,
        "bytes": sum(s.bytes for s in manifest.every_shard),
        "fingerprint": manifest.fingerprint,
    }


def data_report(manifest: Manifest, results: dict[str, Any], where: str) -> str:
    """Describe a data set to people; log a warning if its tokenizer knows too little of it."""
    fragments = manifest.statistics.get("documents_per_sequence", [])
    skipped, unknown = results["skipped"], results["unknown_rate"]
    mean_fragments = sum(i * n for i, n in enumerate(fragments)) / max(1, sum(fragments))
    rows = [
        ["masks", f"{manifest.masking}, {manifest.mask_unit}, words by {manifest.word_boundaries}"],
        ["documents", f"{manifest.train.documents:,} train, {manifest.eval.documents:,} eval"],
        *([["without text", f"{skipped:,} records, left out"]] if skipped is not None else []),
        ["tokens per epoch", human_count(manifest.train.tokens * manifest.dupe_factor)],
        *([["unknown tokens", f"{unknown:.4%}"]] if unknown is not None else []),
        ["sequences", f"{manifest.train.sequences:,} train, {manifest.eval.sequences:,} eval"],
        ["shards", f"{len(manifest.train_shards)} train, {len(manifest.eval_shards)} eval"],
        ["density", f"{manifest.density:.2%} of {manifest.seq_length:,} positions are tokens"],
        ["predictions", f"{manifest.mean_predictions:.1f} per sequence"],
        ["documents per sequence", f"{mean_fragments:.2f} on average"],
        ["next sentence", "yes" if manifest.nsp else "no"],
        ["readers", f"{manifest.num_readers} (hosts must divide them)"],
        ["size", human_bytes(results["bytes"])],
        ["time", human_time(results["seconds"])],
    ]
    if unknown is not None and unknown > _MOST_UNKNOWN:
        log(
            f"warning: {unknown:.1%} of the tokens are unknown to the tokenizer, and nothing can be"
            " learned from these: is it a tokenizer of another language?"
        )
    lengths = manifest.statistics.get("document_tokens", [])
    most = max(lengths, default=1)
    bars = [
        [f"{2**i:,} to {2 ** (i + 1) - 1:,} tokens", n, "#" * max(1, round(40 * n / most))]
        for i, n in enumerate(lengths)
        if n
    ]
    tables = [table(rows, ["what", "value"]), table(bars, ["length of documents", "number", ""])]
    return f"{where}\n" + "\n\n".join(tables)
