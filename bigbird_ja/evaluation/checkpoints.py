"""Evaluation of a run's checkpoints, each once on the same data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from bigbird_ja.data.manifest import Manifest
from bigbird_ja.errors import BadInput
from bigbird_ja.evaluation.masked_lm import batch_size, evaluate_model
from bigbird_ja.evaluation.tensorboard import evaluation_file
from bigbird_ja.model.forward import Forward
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.model_dir.model import NO_CHECKPOINT, TrainedModel, load_run
from bigbird_ja.process.classify import classify
from bigbird_ja.process.console import Progress, log, table
from bigbird_ja.storage.ownership import Owned


def evaluate(
    model_dir: str, step: str, data_dir: str, manifest: Manifest, max_batches: int | None
) -> dict[str, Any]:
    """Evaluate one checkpoint or all of them, print each result, and return the last one's.

    Args:
        model_dir: folder of the run.
        step: a global step, "latest" or "all".
        data_dir: folder of a data set with held-out records.
        manifest: manifest of that data set.
        max_batches: maximum number of batches; None for all records.

    Raises:
        BadInput: no such checkpoint, or the data set was made for another model.
    """
    steps = _chosen_steps(model_dir, step)
    # A checkpoint that was evaluated on this data before has a line in `eval.jsonl`.
    lines = run_log.read_evaluations(model_dir)
    wanted = (manifest.fingerprint, max_batches)
    before: dict[int, Mapping[str, Any]] = {
        line["step"]: line
        for line in lines
        if (line.get("data_fingerprint"), line.get("max_batches")) == wanted
    }
    results: list[Mapping[str, Any]] = []
    for chosen in steps:
        result = before.get(chosen)
        if result is None:
            model = _load(model_dir, chosen, data_dir, manifest)
            result = _measure(model, data_dir, manifest, max_batches)
            print(as_text(result))
            _record(model_dir, result)
        else:
            log(f"checkpoint {chosen} was evaluated on this data before: see eval.jsonl")
            print(as_text(result))
        results.append(result)
    return {**results[-1], "steps": [result["step"] for result in results]}


def _chosen_steps(model_dir: str, step: str) -> list[int]:
    """Return the steps that `--step` means.

    Raises:
        BadInput: no checkpoint, or not that one.
    """
    steps = CheckpointStore(model_dir).steps()
    if not steps:
        raise BadInput(f"{model_dir}: {NO_CHECKPOINT}")
    chosen = {"all": steps, "latest": steps[-1:], **{str(number): [number] for number in steps}}
    if step not in chosen:
        raise BadInput(
            f"--step {step}: no checkpoint of step {step} in {model_dir}: give one"
            f" of {', '.join(map(str, steps))}, 'latest' or 'all'"
        )
    return chosen[step]


def _load(model_dir: str, step: int, data_dir: str, manifest: Manifest) -> TrainedModel:
    """Load the model.

    Raises:
        BadInput: a model for other data.
    """
    model = load_run(model_dir, step)
    longest = model.config.model.max_position_embeddings or 0
    if longest < manifest.seq_length:
        raise BadInput(
            f"{data_dir} has sequences of {manifest.seq_length:,} tokens, the model in"
            f" {model_dir} takes {longest:,}"
        )
    trained, made = model.tokenizer.sha256, manifest.tokenizer_sha256
    if made and trained != made:
        raise BadInput(
            f"{data_dir} was made with another tokenizer (SHA-256 {made[:12]}) than the"
            f" model in {model_dir} ({trained[:12]}): give data made with that one"
        )
    if model.meta.data_fingerprint != manifest.fingerprint:
        log(
            f"note: {data_dir} is not the data set that {model_dir} was trained on:"
            " its held-out records may be among the training records of that one"
        )
    return model


def _measure(
    model: TrainedModel, data_dir: str, manifest: Manifest, max_batches: int | None
) -> dict[str, Any]:
    """Evaluate a model on the held-out records."""
    total = -(-manifest.eval.sequences // batch_size(manifest.seq_length))
    with Progress(min(total, max_batches or total), "batches") as progress:
        measured = evaluate_model(
            Forward(model.config, model.data, model.params),
            data_dir,
            manifest,
            max_batches=max_batches,
            tick=lambda: progress.update(1),
        )
    assert measured is not None  # this process has all parts
    return {"step": model.meta.step, "time": round(time.time(), 3), **measured}


def _record(model_dir: str, result: Mapping[str, Any]) -> None:
    """Record a result in MODEL_DIR if `pretrain` made it; log a failure of its storage."""
    try:
        if owned := Owned.load(model_dir):
            run_log.append_eval(model_dir, dict(result))
            owned.overwrite(*evaluation_file(result["step"], result, result["time"]))
    except Exception as error:  # computed in minutes, and printed already
        known = classify(error)
        if known is None:
            raise
        log(f"warning: the result of step {result['step']} is not recorded: {known}")


def as_text(result: Mapping[str, Any]) -> str:
    """Return the tables of a result."""
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
        ("by_distance", "distance to the same visible token"),
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
    """Name a row of `masked_lm.summarize` by its bucket's bounds, both inclusive."""
    if row["from"] is None or row["to"] is None:
        return "nowhere else"
    return f"{row['from']}-{row['to'] - 1}"
