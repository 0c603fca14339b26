"""Verifies a data set and shows what is in it.

Reads every record of --data_dir (ten seconds to start, then some 20 MB a second; nothing is
changed): checksums, counts, lengths, ids against the tokenizer, and that every record predicts
something. Prints density, lengths, documents per sequence, tokens per epoch and a masked example.
Exit status 2 if anything is wrong, with one line for each problem.
"""

from __future__ import annotations

from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags

EXAMPLE = "bigbird-ja check-data --data_dir data"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """Define this command's flags."""
    flags.path("data_dir", "Directory that `make-data` wrote, on disk or gs://.", required=True)
    flags.integer("examples", 1, "Masked examples to show.", low=0, high=1000)


def run(args: Args) -> dict[str, Any]:
    """Check, print, and fail with the list of problems if there are any."""
    from bigbird_ja.data import manifest as manifest_lib

    manifest = manifest_lib.load(args.data_dir)
    from bigbird_ja.data import inspect  # imports TensorFlow: only if there is data

    return inspect.inspect(manifest, args.data_dir, args.examples)
