"""Verify a data set and show its contents.

Reads every record of --data_dir and writes nothing. Verifies checksums, counts and lengths, that
the tokenizer contains all token ids, and that every record has a prediction. Prints density,
lengths, documents per sequence, tokens per epoch and a masked example. If anything is wrong, prints
a line for each problem and exits with 2. Takes ten seconds to start, then a second for each 20 MB.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags

if TYPE_CHECKING:
    from bigbird_ja.data.inspect import DataCheckResult

EXAMPLE = "bigbird-ja check-data --data_dir data"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """Define this command's flags."""
    flags.path("data_dir", "Data set of `make-data`, on disk or gs://.", required=True)
    flags.integer("examples", 1, "Number of masked examples to show.", low=0, high=1000)


def run(args: Args) -> DataCheckResult:
    """Check the data set, and print its contents."""
    from bigbird_ja.data import inspect, manifest

    result = inspect.check_data(data_dir=args.data_dir)
    stated = manifest.load(args.data_dir)
    print(inspect.format_report(stated, result, args.data_dir))
    color = sys.stdout.isatty()
    for line in inspect.format_examples(stated, args.data_dir, args.examples, color):
        print(line)
    return result
