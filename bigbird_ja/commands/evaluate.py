"""masked-LM loss and accuracy on held-out records

  bigbird-ja evaluate --model_dir out/model --data_dir out/data
  bigbird-ja evaluate --model_dir gs://BUCKET/run --data_dir gs://BUCKET/data --watch

Reads checkpoints of MODEL_DIR and the eval split of DATA_DIR, with masks that are the same for
every model. Prints a table; adds a line to MODEL_DIR/eval.jsonl and TensorBoard files to
MODEL_DIR/eval/. A checkpoint that was evaluated on this data before is not evaluated again.
by_position counts from the start of the sequence; by_distance from the masked token to the nearest
visible one of the same piece. Corpora that make-data mixed by weights get a row each.

--probe measures whether the long context helps: names that are repeated thousands of tokens later
are masked there, and filled in by the model, by the same weights with 512 tokens, and by the best
constant guess.

A base model on a CPU takes some ten seconds per sequence of 4,096 (--max_batches limits them).
"""

from __future__ import annotations

from typing import Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.commands import corpus_input

EXAMPLE = "bigbird-ja evaluate --model_dir out/model --data_dir out/data"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    flags.path(
        "model_dir", "Folder of the run, or exported folder, on disk or gs://.", required=True
    )
    flags.path("data_dir", "Data set with an eval split, on disk or gs://.", required=True)
    flags.text(
        "step", "Which checkpoint: a global step, 'latest' or 'all'.", default="latest",
        excludes="watch",
    )  # fmt: skip
    flags.switch(
        "watch",
        "Evaluates each checkpoint as it appears; ends when training has finished, or without a"
        " heartbeat for --stale_minutes.",
    )
    flags.number(
        "stale_minutes", 60.0, "Ends after so long without a heartbeat.", unit="minutes",
        low=0.0, high=1e6, needs="watch",
    )  # fmt: skip
    flags.integer(
        "max_batches", None,
        "Stops after so many batches (16,384 tokens each, 32 records at most).",
        low=1, high=10**9, none="all records",
    )  # fmt: skip
    flags.switch("probe", "Runs the long-context probe.")
    flags.path(
        "probe_input", "Text to probe on: a SRC as for make-data.", many=True,
        none="the held-out records", needs="probe",
    )  # fmt: skip
    corpus_input.define_txt_documents(flags, needs="probe_input")
    flags.choice(
        "probe_names", ("facts", "rare"),
        "What to mask: the restated facts of the generated corpus, or in any text rare names that"
        " one document repeats.", needs="probe",
    )  # fmt: skip
    flags.integer("probe_cases", 2000, "Most names to mask.", low=1, high=10**7, needs="probe")
    flags.path("plot", "PNG file for the probe's curve.", needs="probe")


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Evaluates one checkpoint, all of them, or each as it appears."""
    from bigbird_ja.data import verify
    from bigbird_ja.storage import outputs
    from bigbird_ja.text.corpus import open_corpus

    if args.plot:
        outputs.check_output_file(args.plot, "--plot")
    # Before any work: a wrong name is refused at once.
    corpus = open_corpus(args.probe_input, None, args.txt_documents) if args.probe_input else None
    manifest, _ = verify.fast_check(args.data_dir, splits=("eval",))
    from bigbird_ja.evaluation.evaluator import Evaluator, ProbeRequest

    probe = ProbeRequest(corpus, args.probe_names, args.probe_cases, args.plot)
    evaluator = Evaluator(
        args.model_dir, args.data_dir, manifest, args.max_batches, probe if args.probe else None
    )
    if args.watch:
        results = evaluator.watch(args.stale_minutes)
    else:
        results = [evaluator.evaluate(step) for step in evaluator.choose(args.step)]
    return {**results[-1], "steps": [result["step"] for result in results]}
