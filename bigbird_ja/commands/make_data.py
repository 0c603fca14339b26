"""Make sharded TFRecords and manifest.json of a corpus, on disk or gs://.

Reads the corpus once, streaming; writes equal, globally shuffled shards, the tokenizer model and,
last, manifest.json, the single source of truth for lengths, ids, counts and checksums. About
12 MB of text a second on two cores, and 1 GB of memory per process for each TB. Killed at any
point, the same command continues with the same bytes. Two at once on one directory: the second is
refused, but for parts: machines that share --output_dir make a --part each; the command without it
joins them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.commands import define_corpus_flags, open_corpus
from bigbird_ja.settings.schema import OPTIONS, used_by

if TYPE_CHECKING:
    from bigbird_ja.data.shards import MadeShard
    from bigbird_ja.settings.schema import Config
    from bigbird_ja.text.tokenizer import Tokenizer

EXAMPLE = (
    "bigbird-ja make-data --input tfds:wiki40b/ja:train --tokenizer tok/ja.model"
    " --output_dir gs://my-bucket/data"
)
_FEW_HELD_OUT = 20  # sequences

# The model only says which lengths it can be trained on.
SETTINGS = used_by("make-data")


def define_flags(flags: Flags) -> None:
    """Define this command's flags; most are settings."""
    define_corpus_flags(flags, weights=True)
    flags.path(
        "tokenizer",
        "SentencePiece .model file that `tokenize` wrote, or that you have, or any Hugging Face"
        " folder that `AutoTokenizer` takes, on disk or gs://.",
        required=True,
    )  # fmt: skip
    flags.path("output_dir", "Directory to write, on disk or gs://.", required=True)
    for key in SETTINGS:
        if OPTIONS[key].section == "make_data":
            flags.setting(key)
    flags.integer(
        "num_workers", None, "Processes. The bytes do not depend on it.", low=1, high=1024,
        none="one per core",
    )  # fmt: skip
    flags.text(
        "part", "Makes part I of N, from 1/N to N/N, on one of several machines that share"
        " --output_dir; the same command without it joins the parts.", none="all",
        excludes=("overwrite", "runner"),
    )  # fmt: skip
    flags.choice(
        "runner", ("local", "ray"), "ray: makes the parts as tasks of a Ray cluster (RAY_ADDRESS,"
        " or one of this machine's cores; extra `ray`), of --num_workers processes each.",
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
    from bigbird_ja.data import build, runners
    from bigbird_ja.data.check import report, short_documents, summary
    from bigbird_ja.data.manifest import spec_of
    from bigbird_ja.process.console import log
    from bigbird_ja.process.errors import BadInput

    began = time.monotonic()
    part = _numbers_of_part(args.part) if args.part else None
    if args.runner == "ray" and args.overwrite:
        raise BadInput("--runner ray and --overwrite: give one of them")
    config, overrides = command_flags.resolve(args)
    log(f"make-data settings:\n{command_flags.echo(args, config, overrides)}")
    _check_length(config)
    tokenizer = _load_tokenizer(args.tokenizer)
    corpus = open_corpus(args, weights=True)
    request = build.Request(
        corpus=corpus,
        tokenizer=tokenizer,
        spec=spec_of(config.make_data, tokenizer, corpus, args.input_mask),
        output_dir=args.output_dir,
        num_workers=args.num_workers or runners.available_cores(),
        overwrite=args.overwrite,
    )
    if part and (made := build.make_part(request, part)) is not None:
        return _part_results(args.part, made, time.monotonic() - began)
    if args.runner == "ray":
        runners.make_parts_on_ray(build.make_part, request, args.num_workers)
    manifest, was_there = build.make_data(request)
    if was_there:
        log(f"{args.output_dir} is finished already: nothing to do")
    if warning := short_documents(manifest):
        log(f"warning: {warning}")
    results = summary(manifest, time.monotonic() - began)
    print(report(manifest, results, args.output_dir))
    held_out = manifest.eval.sequences
    if 0 < held_out < _FEW_HELD_OUT:
        log(
            f"warning: only {held_out} held-out sequences, so that their loss is noisy: a larger"
            " --eval_fraction holds out more"
        )
    return results


def _load_tokenizer(path: str) -> Tokenizer:
    """Load a tokenizer, check it against its record, and log how it was changed."""
    from bigbird_ja.process.console import log
    from bigbird_ja.text import read_tokenizer
    from bigbird_ja.text.tokenizer_files import ModelFiles

    tokenizer = read_tokenizer(path)
    tokenizer.encode("")  # refuses what cannot encode
    if path.endswith(".model"):
        ModelFiles(path.removesuffix(".model")).check_model(tokenizer)
    for name, change in tokenizer.changes.items():
        log(f"{tokenizer.source}: {name}: {change}")
    return tokenizer


def _numbers_of_part(part: str) -> tuple[int, int]:
    """Parse I/N: return the part's number, from 0, and N."""
    from bigbird_ja.process.errors import BadInput

    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= 100_000):
        raise BadInput(f"--part {part}: write I/N, from 1/N to N/N, such as --part 3/8")
    return int(number) - 1, int(count)


def _part_results(part: str, made: list[MadeShard], seconds: float) -> dict[str, Any]:
    results = {
        "part": part,
        "shards": len(made),
        "sequences": sum(one.shard.records for one in made),
        "bytes": sum(one.shard.bytes for one in made),
        "seconds": round(seconds, 3),
    }
    print("part {part}: {shards} shards with {sequences:,} sequences are ready".format(**results))
    return results


def _check_length(config: Config) -> None:
    """Refuse a sequence length for which no attention can be computed."""
    from bigbird_ja.model import pattern
    from bigbird_ja.process.errors import BadInput

    try:
        pattern.is_full(config, config.make_data.seq_length)
    except ValueError as error:
        raise BadInput(
            f"no model can be trained on this data: {error}, or another model.block_size"
        ) from error
