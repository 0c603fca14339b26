"""Turn a corpus into sharded TFRecords and manifest.json, on disk or gs://.

Reads the corpus once, as a stream. Writes equal, globally shuffled shards, the tokenizer model and,
last, manifest.json, the single source of truth for lengths, ids, counts and checksums. If it is
killed, rerun the same command: it continues, and the output is identical. A second `make-data` on
the same directory at the same time is refused. --runner ray tokenizes on several machines. Takes a
second for each 20 to 32 MB of text on two cores, and 1 GB of memory per process for each TB.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.common_flags import define_corpus_flags
from bigbird_ja.cli.config import resolve
from bigbird_ja.process import workers
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import OPTIONS, Config, used_by

if TYPE_CHECKING:
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
        "SentencePiece .model file (from `tokenize` or elsewhere), or a Hugging Face folder that"
        " `AutoTokenizer` loads, on disk or gs://, or its name on the Hub.",
        required=True,
    )
    flags.path("output_dir", "Folder of the data set to write, on disk or gs://.", required=True)
    for key in SETTINGS:
        if OPTIONS[key].section == "make_data":
            flags.setting(key)
    flags.integer(
        "num_workers",
        None,
        "Worker processes; output is identical for any number.",
        low=1,
        high=1024,
        none="one per core",
    )
    flags.choice(
        "runner",
        ("local", "ray"),
        "Runner of the worker processes. ray: --num_workers processes of a Ray cluster"
        " (RAY_ADDRESS, or a cluster on this machine; extra `ray`). Output is identical.",
    )
    flags.switch(
        "input_mask",
        "Also writes the feature `input_mask`, which BERT's own reader needs (static masks only).",
    )
    flags.switch(
        "strip_markers",
        "Removes the markers of Wiki40b (_START_ARTICLE_ and so on) from the text; _NEWLINE_"
        " becomes a line break.",
        default=None,
        none="on if the tokenizer has no tokens for them",
    )
    flags.switch(
        "overwrite",
        "Moves an existing data set to NAME.replaced-N once the new one is complete; discards"
        " unfinished work of other settings.",
    )


def run(args: Args) -> dict[str, Any]:
    """Make the data set."""
    from bigbird_ja.data import build, ray_runner
    from bigbird_ja.data.manifest import spec_of
    from bigbird_ja.data.summary import data_report, data_summary
    from bigbird_ja.settings.preset_files import preset_names
    from bigbird_ja.settings.provenance import echo_settings
    from bigbird_ja.settings.resolve import resolve_config
    from bigbird_ja.storage import hub
    from bigbird_ja.text.corpus import open_corpus

    began = time.monotonic()
    config, overrides = resolve(args)
    seq_length = config.make_data.seq_length
    if problem := _length_problem(config, seq_length):
        raise BadInput(
            f"no model can be trained on this data: {problem}, or another model.block_size"
        )
    tokenizer = _load_tokenizer(hub.fetched(args.tokenizer, "--tokenizer"))
    corpus = open_corpus(
        args.input, args.tfds_data_dir, args.txt_documents, args.text_field, takes_weights=True
    )
    settings = [f"make-data settings:\n{echo_settings(config, overrides, SETTINGS)}"]
    for name in () if args.config else preset_names():
        if problem := _length_problem(resolve_config(name)[0], seq_length):
            settings.append(f"warning: the preset {name} cannot be trained on this data: {problem}")
    request = build.Request(
        corpus=corpus,
        tokenizer=tokenizer,
        spec=spec_of(config.make_data, tokenizer, corpus, args.input_mask, args.strip_markers),
        output_dir=args.output_dir,
        num_workers=args.num_workers or workers.available_cores(),
        overwrite=args.overwrite,
        settings="\n".join(settings),
        pack=functools.partial(ray_runner.pack_blocks, num_workers=args.num_workers)
        if args.runner == "ray"
        else None,
    )
    if request.spec.strip_markers and args.strip_markers is None:
        log("the tokenizer has no tokens for Wiki40b's markers: they are removed from the text")
    manifest, was_there = build.make_data(request)
    if was_there:
        log(f"{args.output_dir} is finished already: nothing to do")
    results = data_summary(manifest, time.monotonic() - began)
    print(data_report(manifest, results, args.output_dir))
    return results


def _load_tokenizer(path: str) -> Tokenizer:
    """Load a tokenizer, check it against its record, and log how it was changed."""
    from bigbird_ja.text.load import read_tokenizer
    from bigbird_ja.text.tokenizer_training import ModelFiles

    tokenizer = read_tokenizer(path)
    tokenizer.encode("")  # refuses what cannot encode
    if path.endswith(".model"):
        ModelFiles(path.removesuffix(".model")).check_model(tokenizer)
    for name, change in tokenizer.changes.items():
        log(f"{tokenizer.source}: {name}: {change}")
    return tokenizer


def _length_problem(config: Config, seq_length: int) -> str:
    """Describe why a config's attention cannot take sequences of this length; "" if it can."""
    from bigbird_ja.model import pattern

    try:
        pattern.is_full(config, seq_length)
    except ValueError as error:
        return str(error)
    return ""
