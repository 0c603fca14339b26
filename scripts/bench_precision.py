"""Does bfloat16 learn as float32 does? `make bench-precision` (twenty minutes on two cores).

Masked-LM loss over 1,000 steps on generated text, of the tiny preset and of the long-context
probe's model, which learns to copy in that time: in float32 from several seeds, whose spread is the
noise, and in bfloat16 (activations; master weights stay float32) from the same seeds. Prints the
mean distance of bfloat16 from float32 at the same seed as a ratio of the mean distance between
float32 seeds, and draws docs/images/precision.png. The curves are kept beside the picture
(precision.json); `--redraw` draws them again without training.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from bigbird_ja import tensorflow_env

tensorflow_env.prepare(os.environ)

import matplotlib  # noqa: E402

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from scripts.learning import (  # noqa: E402
    COPYING,
    TINY,
    Task,
    arguments,
    config_for,
    generated_data,
    learn,
    rounded,
    smooth,
    train,
    training_batches,
)

WARM_UP = 100  # steps that all curves share with their starting point
WIDTH = 25  # of the running mean, in steps
TASKS = (TINY, COPYING)
DTYPES = ("float32", "bfloat16")
Runs = dict[str, list[np.ndarray]]  # by dtype, one curve per seed


def curve(data_dir: str, task: Task, dtype: str, seed: int, steps: int) -> list[float]:
    """The loss at each step of one run."""
    chosen = (f"training.seed={seed}", f"training.num_train_steps={steps}")
    config = config_for(data_dir, task, f"training.dtype={dtype}", *chosen)
    losses: list[float] = []
    train(config, training_batches(config, data_dir), lambda _, m: losses.append(m["loss"]))
    return rounded(losses)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Mean absolute distance after the warm-up."""
    return float(np.abs(one - other)[WARM_UP:].mean())


def compared(task: Task, runs: Runs) -> dict[str, Any]:
    """How far bfloat16 moves the curve, and how far another seed does."""
    noise = [distance(a, b) for a, b in itertools.combinations(runs["float32"], 2)]
    change = [distance(a, b) for a, b in zip(*runs.values(), strict=True)]
    final = {dtype: [float(c[-1]) for c in curves] for dtype, curves in runs.items()}
    found = {"noise": float(np.mean(noise)), "change": float(np.mean(change))}
    return {"task": task.name, **found, "ratio": found["change"] / found["noise"], "final": final}


def draw(path: str, results: dict[Task, Runs]) -> None:
    """Both dtypes' curves, a panel per task."""
    figure, panels = plt.subplots(1, len(results), figsize=(11, 4), layout="constrained")
    for axes, (task, runs) in zip(panels, results.items(), strict=True):
        styles = (("tab:blue", "-"), ("tab:orange", "--"))  # where they coincide, both are seen
        for (color, line), (dtype, curves) in zip(styles, runs.items(), strict=True):
            for index, values in enumerate(curves):
                axes.plot(values, line, color=color, lw=1.1, label=None if index else dtype)
        axes.set(title=f"masked-LM loss, {task.name}", xlabel="step", ylabel="loss")
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def runs(options: argparse.Namespace) -> dict[str, tuple[Callable[..., Any], tuple]]:
    """What is trained, by name."""
    return {
        name_of(task, dtype, seed): (curve, (data_dir, task, dtype, seed, options.steps))
        for task in TASKS
        for data_dir in [generated_data(os.path.join(options.work_dir, task.preset), task)]
        for seed, dtype in itertools.product(range(options.seeds), DTYPES)
    }


def name_of(task: Task, dtype: str, seed: int) -> str:
    """What a run is called where its curve is kept."""
    return f"{task.name}, {dtype}, seed {seed}"


def main() -> int:
    """Trains all, prints the ratios, draws the plot; 1 where bfloat16 leaves the noise."""
    options = arguments(__doc__.splitlines()[0], "precision", seeds=2, steps=1000).parse_args()
    losses = learn(options, lambda: runs(options))
    results = {
        task: {
            dtype: [
                smooth(losses[name_of(task, dtype, seed)], WIDTH) for seed in range(options.seeds)
            ]
            for dtype in DTYPES
        }
        for task in TASKS
    }
    draw(options.plot, results)
    found = [compared(task, runs) for task, runs in results.items()]
    for line in found:
        print(
            f"{line['task']}: between seeds of float32 {line['noise']:.4f}; bfloat16 from float32"
            f" {line['change']:.4f}, {line['ratio']:.2f} x as far"
        )
    print(json.dumps({"tasks": found, "plot": options.plot}))
    return int(any(line["ratio"] > 1 for line in found))


if __name__ == "__main__":
    sys.exit(main())
