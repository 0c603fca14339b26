"""Measure masked-LM loss and accuracy on held-out records.

  bigbird-ja evaluate --model_dir out/model --data_dir out/data
  bigbird-ja evaluate --model_dir gs://BUCKET/run --data_dir gs://BUCKET/data --step all

Reads checkpoints of MODEL_DIR and the eval split of DATA_DIR, with masks that are the same for
every model. Prints a table; adds a line to MODEL_DIR/eval.jsonl and TensorBoard files to
MODEL_DIR/eval/. A checkpoint is evaluated once on the same data. by_position counts from the start
of the sequence; by_distance from the masked token to the nearest visible one of the same piece.

A base model on a CPU takes some ten seconds per sequence of 4,096 (--max_batches limits them).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.process.console import Progress, log, table
from bigbird_ja.process.errors import BadInput

if TYPE_CHECKING:
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.evaluation import TrainedModel

EXAMPLE = "bigbird-ja evaluate --model_dir out/model --data_dir out/data"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.path("model_dir", "Folder of the run, on disk or gs://.", required=True)
    flags.path("data_dir", "Data set with an eval split, on disk or gs://.", required=True)
    flags.text("step", "Which checkpoint: a global step, 'latest' or 'all'.", default="latest")
    flags.integer(
        "max_batches",
        None,
        "Stop after this many batches (16,384 tokens each, at most 32 records).",
        low=1,
        high=10**9,
        none="all records",
    )


def run(args: Args) -> dict[str, Any]:
    """Evaluate one checkpoint, or all of them."""
    from bigbird_ja.data import check

    # Before any work: a wrong name is refused at once.
    manifest, _ = check.fast_check(args.data_dir, splits=("eval",))
    from bigbird_ja.run import log as run_log

    steps = _steps(args)
    # A checkpoint that was evaluated on this data before has a line in `eval.jsonl`.
    lines = run_log.read_evaluations(args.model_dir)
    wanted = (manifest.fingerprint, args.max_batches)
    before: dict[int, Mapping[str, Any]] = {
        line["step"]: line
        for line in lines
        if (line.get("data_fingerprint"), line.get("max_batches")) == wanted
    }
    results: list[Mapping[str, Any]] = []
    for step in steps:
        result = before.get(step)
        if result is None:
            result = _measure(_load(args, step, manifest), args, manifest)
        else:
            log(f"checkpoint {step} was evaluated on this data before: see eval.jsonl")
        print(as_text(result))
        results.append(result)
    return {**results[-1], "steps": [result["step"] for result in results]}


def _steps(args: Args) -> list[int]:
    """Return the steps that `--step` means.

    Raises:
        BadInput: no checkpoint, or not that one.
    """
    from bigbird_ja.run.checkpoints import CheckpointStore
    from bigbird_ja.run.model import NO_CHECKPOINT

    steps = CheckpointStore(args.model_dir).steps()
    if not steps:
        raise BadInput(f"{args.model_dir}: {NO_CHECKPOINT}")
    chosen = {"all": steps, "latest": steps[-1:], **{str(step): [step] for step in steps}}
    if args.step not in chosen:
        raise BadInput(
            f"--step {args.step}: no checkpoint of step {args.step} in {args.model_dir}: give one"
            f" of {', '.join(map(str, steps))}, 'latest' or 'all'"
        )
    return chosen[args.step]


def _load(args: Args, step: int, manifest: Manifest) -> TrainedModel:
    """Load the model.

    Raises:
        BadInput: it was made for other data than this.
    """
    from bigbird_ja.evaluation import load_run

    model = load_run(args.model_dir, step)
    longest = model.config.model.max_position_embeddings or 0
    if longest < manifest.seq_length:
        raise BadInput(
            f"{args.data_dir} has sequences of {manifest.seq_length:,} tokens, the model in"
            f" {args.model_dir} takes {longest:,}"
        )
    trained, made = model.tokenizer.sha256, manifest.tokenizer_sha256
    if made and trained != made:
        raise BadInput(
            f"{args.data_dir} was made with another tokenizer (SHA-256 {made[:12]}) than the"
            f" model in {args.model_dir} ({trained[:12]}): give data made with that one"
        )
    if model.meta.data_fingerprint != manifest.fingerprint:
        log(
            f"note: {args.data_dir} is not the data set that {args.model_dir} was trained on:"
            " its held-out records may be among the training records of that one"
        )
    return model


def _measure(model: TrainedModel, args: Args, manifest: Manifest) -> dict[str, Any]:
    """Evaluate, and record it where `pretrain` has marked MODEL_DIR."""
    from bigbird_ja import evaluation
    from bigbird_ja.model.forward import Forward
    from bigbird_ja.run import log as run_log
    from bigbird_ja.storage.ownership import Owned

    total = -(-manifest.eval.sequences // evaluation.batch_size(manifest.seq_length))
    with Progress(min(total, args.max_batches or total), "batches") as progress:
        measured = evaluation.evaluate_model(
            Forward(model.config, model.data, model.params),
            args.data_dir,
            manifest,
            max_batches=args.max_batches,
            tick=lambda: progress.update(1),
        )
    assert measured is not None  # this process has all parts
    result = {"step": model.meta.step, "time": round(time.time(), 3), **measured}
    if Owned.load(args.model_dir):
        run_log.append_eval(args.model_dir, result)
        evaluation.write_tensorboard(args.model_dir, model.meta.step, result, result["time"])
    return result


def as_text(result: Mapping[str, Any]) -> str:
    """Write the tables that are printed."""
    rows = [
        ("masked-LM loss (nats)", result["masked_lm_loss"]),
        ("masked-LM accuracy (%)", _percent(result["masked_lm_accuracy"])),
        ("perplexity", result.get("perplexity")),
        ("bits per character", result.get("bits_per_character")),
    ]
    if "next_sentence_accuracy" in result:
        rows.append(("next-sentence accuracy (%)", _percent(result["next_sentence_accuracy"])))
    parts = [
        f"step {result['step']:,}: {result.get('predictions', 0):,} predictions in"
        f" {result.get('sequences', 0):,} held-out sequences",
        table(rows, ["measure", "value"]),
    ]
    for key, title in (
        ("by_position", "position in the sequence"),
        ("by_distance", "tokens to the nearest visible same piece"),
    ):
        cells = [
            (row_name(row), row["loss"], _percent(row["accuracy"]), row["count"])
            for row in result.get(key, [])
        ]
        if cells:
            parts += ["", table(cells, [title, "loss", "accuracy %", "predictions"])]
    return "\n".join(parts)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share


def row_name(row: Mapping[str, Any]) -> str:
    """Name a row of `evaluation.summarise` by its bucket's bounds, both inclusive."""
    if row["from"] is None or row["to"] is None:
        return "nowhere else"
    return f"{row['from']}-{row['to'] - 1}"
