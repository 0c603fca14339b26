"""Make sharded TFRecords and manifest.json of a corpus, on disk or gs://.

Reads the corpus once, streaming; writes equal, globally shuffled shards, the tokenizer model and,
last, manifest.json, the single source of truth for lengths, ids, counts and checksums. About
12 MB of text a second on two cores, and 1 GB of memory per process for each TB. Killed at any
point, the same command continues with the same bytes. Two at once on one directory: the second is
refused, but for parts: machines that share --output_dir make a --part each; the command without it
joins them.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.commands import data_report, data_summary, define_corpus_flags, resolve
from bigbird_ja.process import children
from bigbird_ja.process.console import log, shortened, waiting
from bigbird_ja.process.errors import BadInput, CommandError, StorageError
from bigbird_ja.settings.schema import OPTIONS, Config, used_by

if TYPE_CHECKING:
    from bigbird_ja.data.build import Request
    from bigbird_ja.data.shards import MadeShard
    from bigbird_ja.text.tokenizer import Tokenizer

EXAMPLE = (
    "bigbird-ja make-data --input tfds:wiki40b/ja:train --tokenizer tok/ja.model"
    " --output_dir gs://my-bucket/data"
)

# The model only says which lengths it can be trained on.
SETTINGS = used_by("make-data")


def define_flags(flags: Flags) -> None:
    """Define this command's flags; most are settings."""
    define_corpus_flags(flags, weights=True)
    flags.path(
        "tokenizer",
        "SentencePiece .model file that `tokenize` wrote, or that you have, or any Hugging Face"
        " folder that `AutoTokenizer` takes, on disk or gs://, or its name on the Hub.",
        required=True,
    )
    flags.path("output_dir", "Directory to write, on disk or gs://.", required=True)
    for key in SETTINGS:
        if OPTIONS[key].section == "make_data":
            flags.setting(key)
    flags.integer(
        "num_workers",
        None,
        "Processes. The bytes do not depend on it.",
        low=1,
        high=1024,
        none="one per core",
    )
    flags.text(
        "part",
        "Makes part I of N, from 1/N to N/N, on one of several machines that share"
        " --output_dir; the same command without it joins the parts.",
        none="all",
        excludes=("overwrite", "runner"),
    )
    flags.choice(
        "runner",
        ("local", "ray"),
        "ray: makes the parts as tasks of a Ray cluster (RAY_ADDRESS,"
        " or one of this machine's cores; extra `ray`), of --num_workers processes each.",
    )
    flags.switch("input_mask", "Also writes `input_mask` (static only), for BERT's readers.")
    flags.switch(
        "strip_markers",
        "Takes Wiki40b's markers (_START_ARTICLE_ and so on) out of the text; _NEWLINE_ becomes a"
        " line break.",
        default=None,
        none="where the tokenizer has no pieces for them",
    )
    flags.switch(
        "overwrite",
        "Replaces a data set of ours once the new one is whole, and unfinished work of"
        " other settings.",
    )


def run(args: Args) -> dict[str, Any]:
    """Makes the data set."""
    from bigbird_ja.data import build
    from bigbird_ja.data.manifest import spec_of
    from bigbird_ja.settings.values import echo_settings
    from bigbird_ja.storage import hub
    from bigbird_ja.text.corpus import open_corpus

    began = time.monotonic()
    part = _numbers_of_part(args.part) if args.part else None
    if args.runner == "ray" and args.overwrite:
        raise BadInput("--runner ray and --overwrite: give one of them")
    config, overrides = resolve(args)
    _check_length(config)
    tokenizer = _load_tokenizer(hub.fetched(args.tokenizer, "--tokenizer"))
    corpus = open_corpus(
        args.input, args.tfds_data_dir, args.txt_documents, args.text_field, takes_weights=True
    )
    request = build.Request(
        corpus=corpus,
        tokenizer=tokenizer,
        spec=spec_of(config.make_data, tokenizer, corpus, args.input_mask, args.strip_markers),
        output_dir=args.output_dir,
        num_workers=args.num_workers or children.available_cores(),
        overwrite=args.overwrite,
        settings="\n".join(
            (
                f"make-data settings:\n{echo_settings(config, overrides, SETTINGS)}",
                *([] if args.config else _length_warnings(config.make_data.seq_length)),
            )
        ),
    )
    if request.spec.strip_markers and args.strip_markers is None:
        log("the tokenizer has no pieces for Wiki40b's markers: they are taken out of the text")
    if part and (made := build.make_part(request, part)) is not None:
        return _part_results(args.part, made, time.monotonic() - began)
    if args.runner == "ray":
        _make_parts_on_ray(request, args.num_workers)
    manifest, was_there = build.make_data(request)
    if was_there:
        log(f"{args.output_dir} is finished already: nothing to do")
    results = data_summary(manifest, time.monotonic() - began)
    print(data_report(manifest, results, args.output_dir))
    return results


def _load_tokenizer(path: str) -> Tokenizer:
    """Load a tokenizer, check it against its record, and log how it was changed."""
    from bigbird_ja.text import read_tokenizer
    from bigbird_ja.text.tokenizer_training import ModelFiles

    tokenizer = read_tokenizer(path)
    tokenizer.encode("")  # refuses what cannot encode
    if path.endswith(".model"):
        ModelFiles(path.removesuffix(".model")).check_model(tokenizer)
    for name, change in tokenizer.changes.items():
        log(f"{tokenizer.source}: {name}: {change}")
    return tokenizer


def _numbers_of_part(part: str) -> tuple[int, int]:
    """Parse I/N: return the part's number, from 0, and N."""
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

    try:
        pattern.is_full(config, config.make_data.seq_length)
    except ValueError as error:
        raise BadInput(
            f"no model can be trained on this data: {error}, or another model.block_size"
        ) from error


def _length_warnings(seq_length: int) -> Iterator[str]:
    """Name the presets that cannot be trained on sequences of this length."""
    from bigbird_ja.model import pattern
    from bigbird_ja.settings.resolve import preset_names, resolve_config

    for name in preset_names():
        try:
            pattern.is_full(resolve_config(name)[0], seq_length)
        except ValueError as error:
            yield f"warning: the preset {name} cannot be trained on this data: {error}"


def _make_parts_on_ray(request: Request, num_workers: int | None) -> None:
    """Make all parts on a Ray cluster, each where cores are free; `build.make_data` joins them.

    If a machine is lost, another one makes the rest of its part.

    Args:
        request: of `make_part`; its `num_workers` has no meaning here.
        num_workers: processes of a part; None: as many as the smallest machine has cores.

    Raises:
        BadInput: no Ray, or no machine with so many cores; as of `build.make_part`.
        StorageError: no cluster, or parts were lost more often than Ray tries again.
    """
    from bigbird_ja.data.build import make_part

    ray = _start_ray()
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        cores = [int(node["Resources"].get("CPU", 0)) for node in nodes]
        each = num_workers or max(1, min(filter(None, cores), default=1))
        count = sum(number // each for number in cores)
        if not count:
            raise BadInput(f"--num_workers {each}: no machine of the Ray cluster has so many cores")
        log(f"Ray: {count} parts of {each} processes on {len(cores)} machines")
        task = ray.remote(make_part).options(num_cpus=each, max_retries=5)
        shared = ray.put(replace(request, num_workers=each, settings=""))
        ray.get([task.remote(shared, (number, count)) for number in range(count)])
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CommandError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        line = shortened(str(error), 300)
        raise StorageError(f"the Ray cluster: {line}: run the same command again") from error
    finally:
        ray.shutdown()


def _start_ray() -> Any:
    """Start Ray, or join its cluster; return its module.

    Raises:
        BadInput: no Ray.
        StorageError: no cluster.
    """
    handler = signal.getsignal(signal.SIGTERM)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    try:
        with waiting("starting Ray, or joining its cluster"):
            ray.init(logging_level=logging.ERROR)
    except Exception as error:  # Ray's own kinds, or none
        line = shortened(str(error), 300)
        raise StorageError(f"Ray does not start, or cannot be reached: {line}") from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray has set its own
    return ray
