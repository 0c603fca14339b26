"""Does `rolled` learn as well as `independent`? `make bench-patterns` (an hour on two cores).

The long-context probe's model and corpus (configs/probe-cpu.yaml) at 1,024 tokens in 16 blocks,
trained from several seeds with either pattern; everything but the random connections is the same.
Two things are compared:

- the masked-LM loss over the steps;
- far recall: names of articles of their own, last stated beyond the window of blocks, masked and
  filled in again (`evaluation/probe.py`). A control without random blocks sees such a place through
  global blocks alone: what it does not reach, the random connections are worth.

Prints final losses and recall with their spread over seeds, each as a ratio against `independent`,
and draws docs/images/patterns.png. Curves and recall are kept beside the picture (patterns.json);
`--redraw` draws them again without training.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja.process import tensorflow_env

tensorflow_env.prepare(os.environ)

import matplotlib  # noqa: E402

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from bigbird_ja.evaluation import probe  # noqa: E402
from bigbird_ja.evaluation.forward import Forward  # noqa: E402
from bigbird_ja.process import console  # noqa: E402
from bigbird_ja.settings.schema import Config  # noqa: E402
from bigbird_ja.text import articles, tokenizer  # noqa: E402
from scripts.learning import (  # noqa: E402
    COPYING,
    arguments,
    config_for,
    generated_data,
    learn,
    rounded,
    smooth,
    train,
    training_batches,
)

CONTROL = "no random blocks"  # from one seed: what it does not reach is far more than seeds differ
# `rolled` with num_random_blocks=3 sees two tiles of two blocks, so `independent` gets four.
PATTERNS = {
    "independent": ["model.random_pattern=independent", "model.num_random_blocks=4"],
    "rolled": ["model.random_pattern=rolled", "model.num_random_blocks=3"],
    CONTROL: ["model.random_pattern=independent", "model.num_random_blocks=0"],
}
WIDTH = 50  # of the running mean, in steps
FAR_BLOCKS = 3  # from here on the window of three blocks never reaches


def asked_names(data_dir: str, config: Config, count: int) -> list[probe.Case]:
    """Names of articles that no model was trained on, last stated beyond the window."""
    pieces = tokenizer.load(os.path.join(data_dir, "tokenizer.model"))
    texts = articles.documents(600, seed=99, mean_length=5000, facts=3.0)
    records = list(probe.documents_as_ids(texts, pieces, config.make_data.seq_length))
    cases = probe.find_cases(records, pieces, probe.generated_names)
    return [c for c in cases if c.distance >= FAR_BLOCKS * config.model.block_size][:count]


def run(data_dir: str, name: str, seed: int, steps: int, count: int) -> dict[str, Any]:
    """The loss at each step, and the share of the names' tokens filled in at the end."""
    config = config_of(data_dir, name, seed, steps)
    losses: list[float] = []
    params = train(
        config, training_batches(config, data_dir), lambda _, m: losses.append(m["loss"])
    )
    recall = far_recall(data_dir, config, params, count)
    return {"losses": rounded(losses), "recall": round(recall, 4)}


def far_recall(
    data_dir: str, config: Config, params: Mapping[str, tf.Variable], count: int
) -> float:
    """Share of the tokens of names, last stated beyond the window, that a model fills in."""
    cases = asked_names(data_dir, config, count)
    forward = Forward(config, {name: value.numpy() for name, value in params.items()})
    guesses = probe.predict(forward, cases, batch_size=8)
    return float(np.mean([tokens.mean() for tokens in probe.right_tokens(cases, guesses)]))


def config_of(data_dir: str, name: str, seed: int, steps: int) -> Config:
    """The config of one run; a seed draws weights, connections and the order of the data."""
    chosen = [f"training.seed={seed}", f"model.pattern_seed={seed}", f"data.seed={seed}"]
    chosen += [f"training.num_train_steps={steps}"]
    return config_for(data_dir, COPYING, *PATTERNS[name], *chosen)


def draw(path: str, losses: dict[str, list], recalls: dict[str, list[float]]) -> None:
    """Loss curves, one per seed, and the recall of each run."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    styles = (("tab:blue", "-"), ("tab:orange", "--"), ("tab:gray", ":"))
    for place, ((color, line), name) in enumerate(zip(styles, PATTERNS, strict=True)):
        for index, curve in enumerate(losses[name]):
            label = None if index else name
            left.plot(smooth(curve, WIDTH), line, color=color, lw=1.2, label=label)
        found = [100 * value for value in recalls[name]]
        right.bar(place, statistics.mean(found), color=color, alpha=0.4)
        right.plot([place] * len(found), found, "o", color=color)
    left.set(title="masked-LM loss, running mean of 50 steps", xlabel="step", ylabel="loss")
    figure.legend(loc="outside lower center", ncols=len(PATTERNS), frameon=False)
    left.grid(alpha=0.3)
    right.set_xticks(range(len(PATTERNS)), list(PATTERNS))
    right.set(title="far recall, each seed and the mean", ylabel="tokens of names filled in (%)")
    right.set_ylim(0, 100)
    figure.savefig(path, dpi=110)


def runs(options: argparse.Namespace) -> dict[str, tuple[Callable[..., Any], tuple]]:
    """What is trained, by name."""
    data_dir = generated_data(options.work_dir, COPYING)
    return {
        name_of(name, seed): (run, (data_dir, name, seed, options.steps, options.cases))
        for seed, name in seeds_and_patterns(options.seeds)
    }


def seeds_and_patterns(seeds: int) -> list[tuple[int, str]]:
    """The seed and the pattern of each run."""
    return [
        (seed, name)
        for seed, name in itertools.product(range(seeds), PATTERNS)
        if name != CONTROL or seed == 0
    ]


def name_of(pattern: str, seed: int) -> str:
    """What a run is called where its curve is kept."""
    return f"{pattern}, seed {seed}"


def main() -> int:
    """Trains all, prints the table, draws the plot; 1 where `rolled` learns less well."""
    parser = arguments(__doc__.splitlines()[0], "patterns", seeds=3, steps=1800)
    parser.add_argument("--cases", type=int, default=400)
    options = parser.parse_args()
    found = learn(options, lambda: runs(options))
    losses: dict[str, list] = {name: [] for name in PATTERNS}
    recalls: dict[str, list[float]] = {name: [] for name in PATTERNS}
    for seed, name in seeds_and_patterns(options.seeds):
        one = found[name_of(name, seed)]
        losses[name].append(one["losses"])
        recalls[name].append(one["recall"])
        console.log(
            f"seed {seed}  {name}: loss {smooth(one['losses'], WIDTH)[-1]:.4f},"
            f" recall {one['recall']:.1%}"
        )
    final = report(losses, recalls)
    draw(options.plot, losses, recalls)
    print(f"drawn: {options.plot}")
    print(json.dumps({"losses": final, "recalls": recalls}))
    return int(not is_as_good(final, recalls))


def is_as_good(final: dict[str, list[float]], recalls: dict[str, list[float]]) -> bool:
    """Whether `rolled` lies within the spread of `independent`'s seeds, or is better."""
    spread = max(final["independent"]) - min(final["independent"])
    worse = statistics.mean(final["rolled"]) - statistics.mean(final["independent"])
    spread_recall = max(recalls["independent"]) - min(recalls["independent"])
    missing = statistics.mean(recalls["independent"]) - statistics.mean(recalls["rolled"])
    return worse <= spread and missing <= spread_recall


def report(losses: dict[str, list], recalls: dict[str, list[float]]) -> dict[str, list[float]]:
    """Prints the table; the final losses."""
    final = {name: [float(smooth(run, WIDTH)[-1]) for run in runs] for name, runs in losses.items()}
    rows = []
    for name in PATTERNS:
        row = [name]
        for found, digits in ((final, ".4f"), (recalls, ".1%")):
            ours, base = found[name], found["independent"][: len(found[name])]  # the same seeds
            spread = f" ± {statistics.pstdev(ours):{digits}}" if len(ours) > 1 else ""
            row.append(f"{statistics.mean(ours):{digits}}{spread}")
            row.append(f"{statistics.mean(ours) / max(statistics.mean(base), 1e-9):.3f} x")
        rows.append(tuple(row))
    print(console.table(rows, ("pattern", "masked-LM loss", "ratio", "far recall", "ratio")))
    return final


if __name__ == "__main__":
    sys.exit(main())
