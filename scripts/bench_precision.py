"""Does bfloat16 learn as float32 does, and do the kernels as XLA's way does? `make bench-precision`
(twenty minutes on two cores), `make bench-kernel-losses` (ten).

Masked-LM loss over 1,000 steps on generated text, of the tiny preset and of the long-context
probe's model, which learns to copy in that time: in float32 from several seeds, whose spread is the
noise, and in bfloat16 (activations; master weights stay float32) from the same seeds. Prints the
mean distance of bfloat16 from float32 at the same seed as a ratio of the mean distance between
float32 seeds, and draws docs/images/precision.png. The curves are kept beside the picture
(precision.json); `--redraw` draws them again without training.

`--of kernels`: the tiny preset, by XLA's way and with attention as kernels, which Pallas'
interpreter runs; it wants jax 0.7 and TensorFlow 2.20 (.venv-newest).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bigbird_ja.process import tensorflow_env

tensorflow_env.prepare(os.environ)
os.environ["JAX_PLATFORMS"] = "cpu"  # jax, which has the kernels, is not to look for a TPU

import matplotlib  # noqa: E402

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from bigbird_ja.model import implementation  # noqa: E402
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
Runs = dict[str, list[np.ndarray]]  # by way, one curve per seed


@dataclass(frozen=True)
class Comparison:
    """Two ways to compute the same: the reference first, each with its setting."""

    picture: str
    tasks: tuple[Task, ...]
    ways: Mapping[str, str]
    steps: int


COMPARISONS: Mapping[str, Comparison] = {
    "precision": Comparison(
        "precision",
        (TINY, COPYING),
        {"float32": "training.dtype=float32", "bfloat16": "training.dtype=bfloat16"},
        steps=1000,
    ),
    "kernels": Comparison(
        "kernel-losses",
        (TINY,),
        {
            "XLA's way": "model.attention_implementation=xla",
            "kernels": "model.attention_implementation=kernel",
        },
        steps=300,
    ),
}


def curve(data_dir: str, task: Task, setting: str, seed: int, steps: int) -> list[float]:
    """The loss at each step of one run."""
    chosen = (f"training.seed={seed}", f"training.num_train_steps={steps}")
    config = implementation.resolved(config_for(data_dir, task, setting, *chosen), "cpu", None)
    losses: list[float] = []
    with implementation.traced_for(config, "cpu"):
        train(config, training_batches(config, data_dir), lambda _, m: losses.append(m["loss"]))
    return rounded(losses)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Mean absolute distance after the warm-up."""
    return float(np.abs(one - other)[WARM_UP:].mean())


def compared(task: Task, runs: Runs) -> dict[str, Any]:
    """How far the other way moves the curve, and how far another seed does."""
    reference, _ = runs.values()
    noise = [distance(a, b) for a, b in itertools.combinations(reference, 2)]
    change = [distance(a, b) for a, b in zip(*runs.values(), strict=True)]
    final = {way: [float(c[-1]) for c in curves] for way, curves in runs.items()}
    found = {"noise": float(np.mean(noise)), "change": float(np.mean(change))}
    return {"task": task.name, **found, "ratio": found["change"] / found["noise"], "final": final}


def draw(path: str, results: dict[Task, Runs]) -> None:
    """Both ways' curves, a panel per task."""
    figure, panels = plt.subplots(
        1, len(results), figsize=(5.5 * len(results), 4), layout="constrained", squeeze=False
    )
    for axes, (task, runs) in zip(panels[0], results.items(), strict=True):
        styles = (("tab:blue", "-"), ("tab:orange", "--"))  # where they coincide, both are seen
        for (color, line), (way, curves) in zip(styles, runs.items(), strict=True):
            for index, values in enumerate(curves):
                axes.plot(values, line, color=color, lw=1.1, label=None if index else way)
        axes.set(title=f"masked-LM loss, {task.name}", xlabel="step", ylabel="loss")
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def runs(
    options: argparse.Namespace, comparison: Comparison
) -> dict[str, tuple[Callable[..., Any], tuple]]:
    """What is trained, by name."""
    return {
        name_of(task, way, seed): (curve, (data_dir, task, setting, seed, options.steps))
        for task in comparison.tasks
        for data_dir in [generated_data(os.path.join(options.work_dir, task.preset), task)]
        for seed, (way, setting) in itertools.product(range(options.seeds), comparison.ways.items())
    }


def name_of(task: Task, way: str, seed: int) -> str:
    """What a run is called where its curve is kept."""
    return f"{task.name}, {way}, seed {seed}"


def main() -> int:
    """Trains all, prints the ratios, draws the plot; 1 where the other way leaves the noise."""
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument("--of", choices=sorted(COMPARISONS), default="precision")
    comparison = COMPARISONS[chosen.parse_known_args()[0].of]
    parser = arguments(
        __doc__.splitlines()[0], comparison.picture, seeds=2, steps=comparison.steps, parent=chosen
    )
    options = parser.parse_args()
    losses = learn(options, lambda: runs(options, comparison))
    reference, other = comparison.ways
    results = {
        task: {
            way: [smooth(losses[name_of(task, way, seed)], WIDTH) for seed in range(options.seeds)]
            for way in comparison.ways
        }
        for task in comparison.tasks
    }
    draw(options.plot, results)
    found = [compared(task, runs) for task, runs in results.items()]
    for line in found:
        print(
            f"{line['task']}: between seeds of {reference} {line['noise']:.4f}; {other} from"
            f" {reference} {line['change']:.4f}, {line['ratio']:.2g} x as far"
        )
    print(json.dumps({"tasks": found, "plot": options.plot}))
    return int(any(line["ratio"] > 1 for line in found))


if __name__ == "__main__":
    sys.exit(main())
