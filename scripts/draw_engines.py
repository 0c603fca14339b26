"""Draws the picture of docs/design/engines.md into docs/images/.

    .venv/bin/python -m scripts.draw_engines

The counts in it are of the program that is traced for the tiny preset.
"""

from __future__ import annotations

import os

import matplotlib

matplotlib.use("Agg")

from matplotlib import patches
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bigbird_ja.process import prepare_tensorflow
from bigbird_ja.settings.resolve import complete_config, resolve_config

_OUTPUT = os.path.join("docs", "images", "engines.png")
_TENSORFLOW, _JAX, _BOTH = "#f9dcc0", "#cfe0f1", "#ececea"


def main() -> None:
    """Writes engines.png."""
    prepare_tensorflow(os.environ)
    figure, axis = plt.subplots(figsize=(12, 6.4))
    axis.set(xlim=(0, 12), ylim=(0, 6.4))
    axis.axis("off")
    _trace(axis, *counts())
    _run(axis)
    handles = [
        patches.Patch(color=colour, label=label)
        for colour, label in (
            (_TENSORFLOW, "TensorFlow, on the host"), (_JAX, "JAX's runtime (PJRT)"),
            (_BOTH, "files of the run"),
        )
    ]  # fmt: skip
    figure.legend(handles=handles, loc="lower center", ncol=3, frameon=False)
    figure.savefig(_OUTPUT, dpi=110, bbox_inches="tight", metadata={"Software": ""})
    plt.close(figure)
    print(_OUTPUT)


def counts() -> tuple[int, int, int, int]:
    """Inputs and outputs of the two functions that are traced."""
    from bigbird_ja.train.program import Program

    settings = ["make_data.seq_length=256", "training.global_batch_size=1"]
    config = complete_config(resolve_config("tiny-cpu", settings)[0])
    program = Program(config, 1, 1)
    gradients, update = program.gradients(), program.update({})
    return (
        len(gradients.inputs), len(gradients.outputs), len(update.inputs), len(update.outputs)
    )  # fmt: skip


def _trace(axis: Axes, inputs: int, outputs: int, update_inputs: int, update_outputs: int) -> None:
    """Above: once per start."""
    axis.text(0.1, 6.15, "once, at the start", style="italic")
    row = 4.35
    _box(
        axis,
        0.1,
        row,
        2.5,
        1.5,
        _TENSORFLOW,
        "train/step.py\nloss, gradients, AdamW\nof one replica",
    )
    _box(
        axis, 3.3, row, 2.5, 1.5, _TENSORFLOW,
        "tf.function, traced and\nlowered to HLO\n"
        f"gradients: {inputs} in, {outputs} out\nupdate: {update_inputs} in, {update_outputs} out",
    )  # fmt: skip
    _box(axis, 6.5, row, 2.3, 1.5, _JAX, "HLO to StableHLO,\neach carried by\njax.export")
    _box(
        axis, 9.5, row, 2.4, 1.5, _JAX,
        "jit(shard_map(\n  gradients, psum,\n  update))\ncompiled for the devices",
    )  # fmt: skip
    for left, right in ((2.6, 3.3), (5.8, 6.5), (8.8, 9.5)):
        _arrow(axis, (left, row + 0.75), (right, row + 0.75))


def _run(axis: Axes) -> None:
    """Below: every step."""
    axis.text(0.1, 3.55, "every step", style="italic")
    row = 1.75
    _box(axis, 0.1, row, 2.5, 1.5, _TENSORFLOW, "tf.data\nmasked batches, each\nfrom (seed, step)")
    _box(axis, 3.3, row, 2.0, 1.5, _JAX, "a thread places\ntwo batches ahead")
    for number, left in enumerate((6.0, 7.65, 9.3)):
        name = f"device {number + 1}" if number < 2 else "..."
        _box(
            axis, left, row, 1.4, 1.5, _JAX,
            f"{name}\ngradients\n\nupdate" if number < 2 else name,
        )  # fmt: skip
    axis.annotate(
        "",
        (10.6, row + 0.64),
        (6.1, row + 0.64),
        arrowprops={"arrowstyle": "<->", "color": "#4c78a8"},
    )
    axis.text(10.75, row + 0.57, "psum", color="#4c78a8")
    _arrow(axis, (2.6, row + 0.75), (3.3, row + 0.75))
    _arrow(axis, (5.3, row + 0.75), (6.0, row + 0.75))
    _arrow(axis, (10.7, 4.35), (9.0, row + 1.5))
    _box(axis, 3.3, 0.35, 3.2, 0.9, _BOTH, "metrics.jsonl: fetched for\nlogged steps alone")
    _box(
        axis,
        7.2,
        0.35,
        3.6,
        0.9,
        _BOTH,
        "checkpoint: a copy on the device,\nwritten beside the next steps",
    )
    _arrow(axis, (6.5, row), (5.2, 1.25))
    _arrow(axis, (8.4, row), (8.9, 1.25))


def _box(
    axis: Axes, left: float, low: float, width: float, height: float, colour: str, text: str
) -> None:
    shape = patches.FancyBboxPatch(
        (left, low), width, height, boxstyle="round,pad=0,rounding_size=0.08", facecolor=colour,
        edgecolor="#666666", linewidth=0.8,
    )  # fmt: skip
    axis.add_patch(shape)
    axis.text(left + width / 2, low + height / 2, text, ha="center", va="center", fontsize=9.5)


def _arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#444444"})


if __name__ == "__main__":
    main()
