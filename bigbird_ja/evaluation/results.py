"""Results of an evaluation for people: tables, TensorBoard, the curve of the probe.

TensorBoard's files go to `MODEL_DIR/eval/`, which it shows as another run, so that evaluating an
older checkpoint later hides nothing; they are written locally and stored whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process.console import table
from bigbird_ja.storage import plotting
from bigbird_ja.storage.disk import scratch_directory

FOLDER = "eval"
_CURVES = (  # of the probe: key, label, colour, style
    ("model", "whole sequence", "#1f6feb", "o-"),
    ("window", "same weights, {window} tokens", "#d1242f", "s--"),
    ("unigram", "best constant guess", "#6e7781", "^:"),
)


def as_text(result: Mapping[str, Any]) -> str:
    """The tables that `evaluate` prints."""
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
        ("by_sub_corpus", "corpus"),
    ):
        cells = [
            (_name(row), row["loss"], _percent(row["accuracy"]), row["count"])
            for row in result.get(key, [])
        ]
        if cells:
            parts += ["", table(cells, [title, "loss", "accuracy %", "predictions"])]
    return "\n".join(parts)


def probe_as_text(probe: Mapping[str, Any]) -> str:
    """The probe's table: share of the names' tokens that each guess gets right, in per cent."""
    columns = ("model", "window", "unigram", "model_names")
    rows = [
        (_name(row), row["count"], *(_percent(row[key]) for key in columns))
        for row in probe["by_distance"]
    ]
    window = f"{probe['window_tokens']} tokens %"
    header = ["tokens back", "names", "model %", window, "constant %", "model, whole names %"]
    return f"\nprobe: {probe['cases']:,} masked names\n" + table(rows, header)


def draw_probe(probe: Mapping[str, Any], path: str, title: str) -> None:
    """Draws accuracy against distance as a PNG file, on disk or gs://."""
    rows = probe["by_distance"]
    figure = plotting.new_figure(7.5, 4.5)
    axes = figure.add_subplot()
    for key, label, colour, style in _CURVES:
        values = [100.0 * row[key] for row in rows]
        text = label.format(window=probe["window_tokens"])
        axes.plot(range(len(rows)), values, style, color=colour, label=text, linewidth=2)
    labels = [f"{_name(row)}\nn={row['count']}" for row in rows]
    axes.set_xticks(range(len(rows)), labels, fontsize=8)
    axes.set_ylim(-2, 102)
    axes.set_xlabel("distance to the nearest earlier mention (tokens)")
    axes.set_ylabel("masked tokens of the name filled in (%)")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    plotting.legend_below(figure)
    plotting.save(figure, path, dpi=130)


def write_tensorboard(model_dir: str, step: int, result: Mapping[str, Any]) -> None:
    """Adds one evaluation: `eval/...` scalars, `eval/by_position/...`, and `eval/examples`."""
    import tensorflow as tf

    with scratch_directory() as scratch:
        # The same name if the evaluation is repeated, another one for each step.
        writer = tf.summary.create_file_writer(scratch, filename_suffix=f".step-{step}")
        with writer.as_default(step=step):
            for tag, value in scalars(result).items():
                tf.summary.scalar(tag, value)
            if result.get("examples"):
                tf.summary.text("eval/examples", examples_as_markdown(result["examples"]))
        writer.close()
        folder = storage.join(model_dir, FOLDER)
        storage.make_directory(folder)
        for name in sorted(os.listdir(scratch)):
            storage.upload(os.path.join(scratch, name), storage.join(folder, name))


def scalars(result: Mapping[str, Any]) -> dict[str, float]:
    """Tag -> value for every number of a result: buckets' accuracies, corpora's losses."""
    values = {
        f"eval/{name}": float(value)
        for name, value in result.items()
        if isinstance(value, (int, float)) and name not in ("step", "time", "max_batches")
    }
    for group in ("by_position", "by_distance"):
        for row in result.get(group, []):
            label = "none" if row["from"] is None else f"{row['from']:05d}"
            values[f"eval/{group}/{label}"] = float(row["accuracy"])
    for row in result.get("by_sub_corpus", []):
        values[f"eval/by_corpus/{row['name']}"] = float(row["loss"])
    return values


def examples_as_markdown(examples: Sequence[Mapping[str, Any]]) -> str:
    """A table for TensorBoard's text plugin."""
    lines = ["| | before | truth | guess | | after |", "|---|---|---|---|---|---|"]
    for example in examples:
        sign = "✓" if example["guess"] == example["truth"] else ""
        truth, guess = f"**{example['truth']}**", f"**{example['guess']}**"
        cells = [sign, f"…{example['before']}", truth, guess]
        cells += [f"{example['probability']:.0%}", f"{example['after']}…"]
        lines.append("| " + " | ".join(cell.replace("|", "¦") for cell in cells) + " |")
    return "\n".join(lines)


def _name(row: Mapping[str, Any]) -> str:
    """A corpus, or a bucket's bounds."""
    if "name" in row:
        return str(row["name"])
    if row["from"] is None or row["to"] is None:
        return "nowhere else"
    return f"{row['from']}-{row['to'] - 1}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share
