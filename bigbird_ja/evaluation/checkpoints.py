"""Evaluation of a run's checkpoints on held-out records. Results of earlier calls are reused."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from bigbird_ja.data import check
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.errors import BadInput
from bigbird_ja.evaluation.masked_lm import choose_batch_size, evaluate_model
from bigbird_ja.evaluation.tensorboard import make_evaluation_file
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.model_dir.log_schema import Example, PredictionBucket
from bigbird_ja.model_dir.model import NO_CHECKPOINT, TrainedModel, load_run
from bigbird_ja.process.classify import classify
from bigbird_ja.process.console import Progress, log, table
from bigbird_ja.storage.ownership import Owned


@dataclass(frozen=True)
class EvaluationResult:
    """Evaluation of a checkpoint on held-out records."""

    step: int
    steps: list[int]  # All evaluated steps. The other fields describe the last one.
    masked_lm_loss: float  # Nats per prediction.
    masked_lm_accuracy: float
    perplexity: float | None
    by_position: list[PredictionBucket]  # Positions count from the start of the sequence.
    by_distance: list[PredictionBucket]  # Distances to the token's nearest visible occurrence.
    predictions: int
    sequences: int
    bits_per_character: float | None = None
    next_sentence_loss: float | None = None
    next_sentence_accuracy: float | None = None
    examples: list[Example] | None = None  # Masked words with the model's guesses.
    data_fingerprint: str = ""
    max_batches: int | None = None
    seconds: float | None = None
    time: float | None = None  # UNIX seconds.


def evaluate(
    *,
    model_dir: str | os.PathLike[str],
    data_dir: str | os.PathLike[str],
    step: int | str = "latest",
    max_batches: int | None = None,
    on_result: Callable[[Mapping[str, Any]], None] = lambda result: None,
) -> EvaluationResult:
    """Measure masked-LM loss and accuracy on held-out records.

    The masks are the same for every model. Each result is added to MODEL_DIR/eval.jsonl and, for
    TensorBoard, to MODEL_DIR/eval/. If eval.jsonl already contains a result of the checkpoint for
    the same data and `max_batches`, that result is returned.

    Args:
        model_dir: folder of the run, on disk or gs://.
        data_dir: data set with held-out records, on disk or gs://.
        step: global step of the checkpoint, "latest" or "all".
        max_batches: maximum number of batches, or None for all records. A batch contains at most 32
            records and, if it contains several, at most 16,384 tokens.
        on_result: callback that receives each result as a dict, before the result is recorded.

    Returns:
        The result of the last evaluated checkpoint.

    Raises:
        BadInput: The checkpoint does not exist, or the data set does not suit the model.
    """
    model_dir, data_dir = os.fspath(model_dir), os.fspath(data_dir)
    manifest = check.check_files(data_dir, splits=("eval",))
    check.check_held_out(manifest, data_dir)
    steps = _choose_steps(model_dir, str(step))
    # If a checkpoint was evaluated on this data before, `eval.jsonl` contains a line about it.
    lines = run_log.read_evaluations(model_dir)
    wanted = (manifest.fingerprint, max_batches)
    before: dict[int, Mapping[str, Any]] = {
        line["step"]: line
        for line in lines
        if (line.get("data_fingerprint"), line.get("max_batches")) == wanted
    }
    result: Mapping[str, Any] = {}
    for chosen in steps:
        if chosen in before:
            result = before[chosen]
            log(f"checkpoint {chosen} was evaluated on this data before: see eval.jsonl")
            on_result(result)
            continue
        model = _load(model_dir, chosen, data_dir, manifest)
        result = _measure(model, data_dir, manifest, max_batches)
        on_result(result)
        _record(model_dir, result)
    names = {field.name for field in fields(EvaluationResult)}
    stated = {name: value for name, value in result.items() if name in names}
    return EvaluationResult(**{"perplexity": None, **stated, "steps": steps})


def _choose_steps(model_dir: str, step: str) -> list[int]:
    """Return the steps of the checkpoints that `step` selects.

    `step` is a number, "latest" or "all".

    Raises:
        BadInput: There is no checkpoint, or no checkpoint of that step.
    """
    steps = CheckpointStore(model_dir).list_steps()
    if not steps:
        raise BadInput(f"{model_dir} {NO_CHECKPOINT}")
    chosen = {"all": steps, "latest": steps[-1:], **{str(number): [number] for number in steps}}
    if step not in chosen:
        raise BadInput(
            f"{model_dir} contains no checkpoint of step {step}: set `step` to one"
            f" of {', '.join(map(str, steps))}, 'latest' or 'all'"
        )
    return chosen[step]


def _load(model_dir: str, step: int, data_dir: str, manifest: Manifest) -> TrainedModel:
    """Load the model of a checkpoint, and check that it suits the data.

    Raises:
        BadInput: The sequences are too long for the model, or were made with another tokenizer.
    """
    model = load_run(model_dir, step)
    longest = model.config.model.max_position_embeddings or 0
    if longest < manifest.seq_length:
        raise BadInput(
            f"{data_dir} contains sequences of {manifest.seq_length:,} tokens, but the model in"
            f" {model_dir} accepts at most {longest:,}: give a data set of shorter sequences"
        )
    trained, made = model.tokenizer.sha256, manifest.tokenizer_sha256
    if made and trained != made:
        raise BadInput(
            f"{data_dir} was made with another tokenizer (SHA-256 {made[:12]}) than the"
            f" model in {model_dir} ({trained[:12]}): give data made with the model's tokenizer"
        )
    if model.meta.data_fingerprint != manifest.fingerprint:
        log(
            f"note: {data_dir} is not the data set that {model_dir} was trained on, so the"
            " model may have seen its held-out records in training"
        )
    return model


def _measure(
    model: TrainedModel, data_dir: str, manifest: Manifest, max_batches: int | None
) -> dict[str, Any]:
    """Evaluate a model on the held-out records."""
    from bigbird_ja.model.forward import Forward

    total = -(-manifest.eval.sequences // choose_batch_size(manifest.seq_length))
    with Progress(min(total, max_batches or total), "batches") as progress:
        measured = evaluate_model(
            Forward(model.config, model.data, model.params),
            data_dir,
            manifest,
            max_batches=max_batches,
            tick=lambda: progress.update(1),
        )
    assert measured is not None  # A single process gets the results of all batches.
    return {"step": model.meta.step, "time": round(time.time(), 3), **measured}


def _record(model_dir: str, result: Mapping[str, Any]) -> None:
    """Record a result in MODEL_DIR, if that is the folder of a run.

    If the storage fails, only a warning is logged.
    """
    try:
        if owned := Owned.load(model_dir):
            run_log.append_eval(model_dir, dict(result))
            owned.overwrite(*make_evaluation_file(result["step"], result, result["time"]))
    # Do not fail, since the result is already printed, and a rerun would take minutes.
    except Exception as error:
        known = classify(error)
        if known is None:
            raise
        log(f"warning: the result of step {result['step']} could not be recorded: {known}")


def format_result(result: Mapping[str, Any]) -> str:
    """Format a result as tables."""
    rows = [
        ("masked-LM loss (nats)", result["masked_lm_loss"]),
        ("masked-LM accuracy (%)", _to_percent(result["masked_lm_accuracy"])),
        ("perplexity", result.get("perplexity")),
        ("bits per character", result.get("bits_per_character")),
    ]
    if "next_sentence_accuracy" in result:
        rows.append(("next-sentence accuracy (%)", _to_percent(result["next_sentence_accuracy"])))
    parts = [
        f"step {result['step']:,}: {result.get('predictions', 0):,} predictions in"
        f" {result.get('sequences', 0):,} held-out sequences",
        table(rows, ["measure", "value"]),
    ]
    for key, title in (
        ("by_position", "position in the sequence"),
        ("by_distance", "distance to the same visible token"),
    ):
        cells = [
            (name_row(row), row["loss"], _to_percent(row["accuracy"]), row["count"])
            for row in result.get(key, [])
        ]
        if cells:
            parts += ["", table(cells, [title, "loss", "accuracy %", "predictions"])]
    return "\n".join(parts)


def _to_percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share


def name_row(row: Mapping[str, Any]) -> str:
    """Return the label of a bucket of positions or distances, such as "16-31".

    The bucket without bounds, for tokens that are visible nowhere else, has the label
    "nowhere else".
    """
    if row["from"] is None or row["to"] is None:
        return "nowhere else"
    return f"{row['from']}-{row['to'] - 1}"
