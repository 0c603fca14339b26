"""Measure masked-LM loss and accuracy on held-out records.

  bigbird-ja evaluate --model_dir out/model --data_dir out/data
  bigbird-ja evaluate --model_dir gs://BUCKET/run --data_dir gs://BUCKET/data --step all

Reads checkpoints of MODEL_DIR and the eval split of DATA_DIR; the masks are the same for every
model. Prints a table; adds a line to MODEL_DIR/eval.jsonl and TensorBoard files to MODEL_DIR/eval/.
A checkpoint that was already evaluated on these records is not evaluated again. In the results,
by_position counts tokens from the start of the sequence. by_distance counts tokens from the masked
token to the nearest visible occurrence of the same token.

A base model on a CPU takes about ten seconds per sequence of 4,096 tokens; --max_batches limits the
number of sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags

if TYPE_CHECKING:
    from bigbird_ja.evaluation.checkpoints import EvaluationResult

EXAMPLE = "bigbird-ja evaluate --model_dir out/model --data_dir out/data"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.path("model_dir", "Folder of the run, on disk or gs://.", required=True)
    flags.path("data_dir", "Data set with an eval split, on disk or gs://.", required=True)
    flags.text(
        "step", "Checkpoint to evaluate: a global step, 'latest' or 'all'.", default="latest"
    )
    flags.integer(
        "max_batches",
        None,
        "Maximum number of batches, each of at most 32 records and about 16,384 tokens.",
        low=1,
        high=10**9,
        none="all records",
    )


def run(args: Args) -> EvaluationResult:
    """Evaluate one checkpoint, or all of them, and print each result."""
    from bigbird_ja.evaluation import checkpoints

    return checkpoints.evaluate(
        model_dir=args.model_dir,
        data_dir=args.data_dir,
        step=args.step,
        max_batches=args.max_batches,
        on_result=lambda result: print(checkpoints.format_result(result)),
    )
