"""masked-LM loss and accuracy on held-out records

  bigbird-ja evaluate --model_dir out/model --data_dir out/data
  bigbird-ja evaluate --model_dir gs://BUCKET/run --data_dir gs://BUCKET/data --watch

Reads checkpoints of MODEL_DIR and the eval split of DATA_DIR, with masks that are the same for
every model. Prints a table; adds a line to MODEL_DIR/eval.jsonl and TensorBoard files to
MODEL_DIR/eval/. A checkpoint that was evaluated on this data before is not evaluated again.
by_position counts from the start of the sequence; by_distance from the masked token to the nearest
visible one of the same piece.

--probe asks whether the long context helps: names stated again thousands of tokens later are masked
there; filled in by the model, by the same weights with 512 tokens, and by the best constant guess.

A base model on a CPU takes some ten seconds per sequence of 4,096 (--max_batches limits them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags

from bigbird_ja.errors import BadInput

if TYPE_CHECKING:
    from bigbird_ja.evaluation.session import Session

EXAMPLE = "bigbird-ja evaluate --model_dir out/model --data_dir out/data"


def define_flags(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_string(
        "model_dir", None, "Folder of the run, on disk or gs://.", flag_values=values
    )
    flags.DEFINE_string(
        "data_dir", None, "Data set with an eval split, on disk or gs://.", flag_values=values
    )
    flags.DEFINE_string(
        "step",
        "latest",
        "Which checkpoint: a global step, 'latest' or 'all'.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "watch",
        False,
        "Evaluates each checkpoint as it appears; ends when training has finished, or without a"
        " sign of life for --stale_minutes.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "stale_minutes",
        60.0,
        "Minutes without a heartbeat after which --watch ends.",
        lower_bound=0.0,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "max_batches",
        None,
        "Stops after so many batches (16,384 tokens each, 32 records at most); none: all records.",
        lower_bound=1,
        flag_values=values,
    )
    _define_probe_flags(values)


def _define_probe_flags(values: flags.FlagValues) -> None:
    flags.DEFINE_bool("probe", False, "Runs the long-context probe.", flag_values=values)
    flags.DEFINE_multi_string(
        "probe_input",
        [],
        "Text to probe on instead of the held-out records: a SRC as for make-data (repeatable).",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "probe_names",
        "facts",
        ["facts", "rare"],
        "What to mask: the restated facts of the generated corpus, or in any text rare names that"
        " one document repeats.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "probe_cases", 2000, "Most names to mask.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_string("plot", None, "PNG file for the probe's curve.", flag_values=values)


def run(args: flags.FlagValues) -> dict[str, Any]:
    """Evaluates one checkpoint, all of them, or each as it appears."""
    from bigbird_ja import plotting
    from bigbird_ja.data import verify
    from bigbird_ja.text import corpus

    for name in ("model_dir", "data_dir"):
        if not getattr(args, name):
            raise BadInput(f"--{name} is missing: see `bigbird-ja evaluate --help`")
    if args.plot and not args.probe:
        raise BadInput("--plot draws the probe's curve: add --probe")
    plotting.check(args.plot, "--plot")
    if args.probe_input:
        corpus.open_corpus(args.probe_input)  # a name that is wrong is said before any work
    manifest = verify.fast_check(args.data_dir, splits=("eval",))
    from bigbird_ja.evaluation.session import ProbeRequest, Session

    probe = ProbeRequest(tuple(args.probe_input), args.probe_names, args.probe_cases, args.plot)
    session = Session(
        model_dir=args.model_dir,
        data_dir=args.data_dir,
        manifest=manifest,
        max_batches=args.max_batches,
        probe=probe if args.probe else None,
    )
    if args.watch:
        return _watch(session, args.stale_minutes)
    results = [session.evaluate(step) for step in session.choose(args.step)]
    return {**results[-1], "steps": [result["step"] for result in results]}


def _watch(session: Session, stale_minutes: float) -> dict[str, Any]:
    from bigbird_ja.console import log
    from bigbird_ja.evaluation import watch

    result: dict[str, Any] = {}
    steps = []
    for step in watch.follow(
        session.steps, session.heartbeat, (), log=log, stale_minutes=stale_minutes
    ):
        found = session.evaluate_if_there(step)
        if found is not None:
            result = found
            steps.append(step)
    if not steps:
        raise BadInput(f"{session.model_dir}: no checkpoint appeared: is training running?")
    return {**result, "steps": steps}
