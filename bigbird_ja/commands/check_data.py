"""Verify a data set and show its contents.

Reads every record of --data_dir and writes nothing. Checks checksums, counts, lengths, ids against
the tokenizer, and that every record has a prediction. Prints density, lengths, documents per
sequence, tokens per epoch and a masked example. Exits with 2 and a line per problem if anything is
wrong. Takes ten seconds to start, then a second for each 20 MB.
"""

from __future__ import annotations

from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags

EXAMPLE = "bigbird-ja check-data --data_dir data"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """Define this command's flags."""
    flags.path("data_dir", "Data set of `make-data`, on disk or gs://.", required=True)
    flags.integer("examples", 1, "Number of masked examples to show.", low=0, high=1000)


def run(args: Args) -> dict[str, Any]:
    """Check, print, and fail with the list of problems if there are any."""
    from bigbird_ja.data.inspect import inspect

    return inspect(args.data_dir, args.examples)
