"""Does bfloat16 learn as float32 does? `make bench-precision` (about fifteen minutes).

The tiny preset's masked-LM loss over 1,000 steps on the generated corpus: in float32 from several
seeds, whose spread is the noise, and in bfloat16 (activations; master weights stay float32) from
the same seeds. Prints the mean distance of bfloat16 from float32 at the same seed as a ratio of the
mean distance between float32 seeds, and draws docs/images/precision.png.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys

from bigbird_ja import tensorflow_env

tensorflow_env.prepare(os.environ)

import matplotlib  # noqa: E402

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

from bigbird_ja import console  # noqa: E402
from scripts.learning import (  # noqa: E402
    config_for,
    generated_data,
    one_core_each,
    train,
    training_batches,
)

WARM_UP = 100  # steps that all curves share with their starting point
WIDTH = 25  # of the running mean, in steps


def curve(data_dir: str, dtype: str, seed: int, steps: int) -> np.ndarray:
    """The smoothed loss of one run."""
    # From random first values 1,000 steps teach little more than the pieces' frequency, which any
    # precision can hold.
    config = config_for(
        data_dir,
        "model.initializer=mimetic",
        "model.initializer_range=0.08",
        f"training.dtype={dtype}",
        f"training.seed={seed}",
        f"training.num_train_steps={steps}",
    )
    losses: list[float] = []
    train(config, training_batches(config, data_dir), lambda _, m: losses.append(m["loss"]))
    return np.convolve(losses, np.ones(WIDTH) / WIDTH, mode="valid")


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Mean absolute distance after the warm-up."""
    return float(np.abs(one - other)[WARM_UP:].mean())


def draw(path: str, runs: dict[str, list[np.ndarray]]) -> None:
    """Both dtypes' curves."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for color, (dtype, curves) in zip(("tab:blue", "tab:orange"), runs.items(), strict=True):
        for index, values in enumerate(curves):
            axes.plot(values, color=color, lw=1.1, label=None if index else dtype)
    axes.set(title="masked-LM loss, tiny preset", xlabel="step", ylabel="loss")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> int:
    """Trains all, prints the ratio, draws the plot; 1 where bfloat16 leaves the noise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work_dir", default="out/precision")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--plot", default="docs/images/precision.png")
    options = parser.parse_args()
    data_dir = generated_data(options.work_dir)
    runs: dict[str, list[np.ndarray]] = {"float32": [], "bfloat16": []}
    with one_core_each() as processes:
        pending = [
            (seed, dtype, processes.submit(curve, data_dir, dtype, seed, options.steps))
            for seed, dtype in itertools.product(range(options.seeds), runs)
        ]
        for seed, dtype, run in pending:
            runs[dtype].append(run.result())
            console.log(f"seed {seed}  {dtype}: loss {runs[dtype][-1][-1]:.4f}")
    noise = float(np.mean([distance(a, b) for a, b in itertools.combinations(runs["float32"], 2)]))
    change = float(np.mean([distance(a, b) for a, b in zip(*runs.values(), strict=True)]))
    draw(options.plot, runs)
    final = {dtype: [float(c[-1]) for c in curves] for dtype, curves in runs.items()}
    print(f"between seeds of float32: {noise:.4f}; bfloat16 from float32: {change:.4f}")
    print(f"bfloat16 moves the curve {change / noise:.2f} x as far as another seed does")
    print(json.dumps({"noise": noise, "change": change, "final": final, "plot": options.plot}))
    return int(change > noise)


if __name__ == "__main__":
    sys.exit(main())
