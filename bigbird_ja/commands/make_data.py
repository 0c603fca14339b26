"""Turn a corpus into sharded TFRecords and manifest.json, on disk or gs://.

Reads the corpus once, as a stream. Writes equal, globally shuffled shards, the tokenizer model and,
last, manifest.json, the single source of truth for lengths, ids, counts and checksums. After a
kill, rerun the same command: it continues, and the output is identical. A second `make-data` on
the same directory at the same time is refused. --runner ray tokenizes on several machines. Takes a
second for each 20 to 32 MB of text on two cores, and 1 GB of memory per process for each TB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.common_flags import collect_corpus_parameters, define_corpus_flags
from bigbird_ja.cli.config import collect_setting_parameters
from bigbird_ja.settings.variants import OPTIONS, list_used_settings

if TYPE_CHECKING:
    from bigbird_ja.data.inspect import DataSetResult

EXAMPLE = (
    "bigbird-ja make-data --input tfds:wiki40b/ja:train --tokenizer tok/ja.model"
    " --output_dir gs://my-bucket/data"
)

# Settings of the model are used only to check that the model supports the sequence length.
SETTINGS = list_used_settings("make-data")


def define_flags(flags: Flags) -> None:
    """Define this command's flags, most of which are settings."""
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
        "Write the feature `input_mask`, too, which BERT's own reader needs (static masks only).",
    )
    flags.switch(
        "strip_markers",
        "Remove the markers of Wiki40b (_START_ARTICLE_ and so on) from the text; _NEWLINE_"
        " becomes a line break.",
        default=None,
        none="on if the tokenizer has no tokens for them",
    )
    flags.switch(
        "overwrite",
        "Move an existing data set to NAME.replaced-N when the new one is packed; discard"
        " unfinished work of other settings.",
    )


def run(args: Args) -> DataSetResult:
    """Make the data set, and print a report."""
    from bigbird_ja.data import manifest
    from bigbird_ja.data.inspect import format_report
    from bigbird_ja.data.make_data import make_data

    result = make_data(
        **collect_corpus_parameters(args),
        tokenizer=args.tokenizer,
        output_dir=args.output_dir,
        **collect_setting_parameters(args),
        num_workers=args.num_workers,
        runner=args.runner,
        input_mask=args.input_mask,
        strip_markers=args.strip_markers,
        overwrite=args.overwrite,
    )
    print(format_report(manifest.load(args.output_dir), result, args.output_dir))
    return result
