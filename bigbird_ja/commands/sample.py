"""Write a deterministic, generated Japanese corpus in Wiki40b layout.

The corpus has encyclopedia articles of a few hundred to tens of thousands of characters, with
quotations, numbers, nested brackets, and facts that are repeated hundreds to thousands of tokens
later. The same seed gives the same articles on every machine.

Reads nothing. Writes --output. Takes a second for each 20 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags

if TYPE_CHECKING:
    from bigbird_ja.text.articles import SampleResult

EXAMPLE = "bigbird-ja sample --output sample.jsonl.gz --documents 2000 --seed 1"


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.path(
        "output", "File to write, on disk or gs://: .jsonl, .jsonl.gz or .txt.", required=True
    )
    flags.integer("documents", 2000, "Number of articles.", unit="articles", low=1, high=10**9)
    flags.integer("seed", 1, "Random seed.", low=-(2**63), high=2**63 - 1)
    length = "Mean length of an article."
    flags.integer("mean_length", 3000, length, unit="characters", low=250, high=40_000)
    facts = "Facts per 1,000 characters that are repeated far away."
    flags.number("facts_per_1000_characters", 1.0, facts, low=0.0, high=20.0)
    flags.switch("overwrite", "Move a generated corpus of other settings to OUTPUT.replaced-N.")


def run(args: Args) -> SampleResult:
    """Write the corpus, unless the output contains it already."""
    from bigbird_ja.process.console import format_bytes
    from bigbird_ja.text.articles import sample

    result = sample(
        output=args.output,
        documents=args.documents,
        seed=args.seed,
        mean_length=args.mean_length,
        facts_per_1000_characters=args.facts_per_1000_characters,
        overwrite=args.overwrite,
    )
    print(f"{result.output}: {result.documents:,} articles, {format_bytes(result.bytes)}")
    return result
