"""What does a recipe do to far recall? The second half of `make bench-recipe`.

A model of real text that two cores can train fills in no names, so the long-context probe is asked
of the model that learns to copy (configs/probe-cpu.yaml, on generated articles of 1,024 tokens in
16 blocks): with its own recipe, and with one thing of it at a time changed. That recipe has
`mimetic` first values and documents that do not see each other, as without the former nothing is
learnt in this time (docs/design/long-context.md). Everything is trained for the same steps.

Measured afterwards: the share of the tokens of names filled in that were last stated beyond the
window of blocks. Every run is kept in WORK_DIR/runs.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys

from bigbird_ja.process import tensorflow_env

tensorflow_env.prepare(os.environ)

from bigbird_ja.process import console  # noqa: E402
from scripts import bench_patterns  # noqa: E402
from scripts.learning import (  # noqa: E402
    COPYING,
    config_for,
    generated_data,
    run_kept,
    train_in_phases,
)

BASELINE = "its own recipe"
SHORT = 128  # an eighth, as 512 of 4,096: two blocks
FALLING = ("training.masked_lm_prob=0.3", "training.final_masked_lm_prob=0.15")
RECIPES: dict[str, tuple[str, ...]] = {
    BASELINE: (),
    "30 % masked": FALLING[:1],
    "30 -> 15 % masked": FALLING,
    "wsd": ("training.schedule=wsd",),
    "30 -> 15 % masked, wsd": (*FALLING, "training.schedule=wsd"),
    "short first": (f"training.first_seq_length={SHORT}",),
    "documents seen": ("model.attend_across_documents=true",),
}
SHORT_SHARE = 0.9  # of the steps


def run(data_dir: str, recipe: str, seed: int, steps: int, count: int) -> float:
    """Far recall at the end."""
    seeds = [f"training.seed={seed}", f"model.pattern_seed={seed}", f"data.seed={seed}"]
    sets = [*RECIPES[recipe], f"training.num_train_steps={steps}"]
    if recipe == "short first":
        sets.append(f"training.first_seq_length_steps={round(steps * SHORT_SHARE)}")
    config = config_for(data_dir, COPYING, *seeds, *sets)
    params = train_in_phases(config, data_dir, lambda *_: None)
    return round(bench_patterns.far_recall(data_dir, config, params, count), 4)


def main() -> int:
    """Trains what is not there yet and prints the table."""
    options = _options()
    data_dir = generated_data(options.work_dir, COPYING)
    kept_in = pathlib.Path(options.work_dir) / "runs"
    chosen = [name for name in RECIPES if not options.only or name in (BASELINE, *options.only)]
    runs = {}
    for seed in range(options.seeds):
        for name in chosen:
            words = "-".join(name.replace("%", "").replace("->", "to").split())
            file = kept_in / f"{words}-{options.steps}-{seed}-{options.cases}.json"
            runs[name, seed] = (file, run, (data_dir, name, seed, options.steps, options.cases))
    found = run_kept(
        runs,
        options.processes,
        lambda which, one, left: console.log(
            f"{which[0]}, seed {which[1]}: far recall {one:.1%}, {left} to come"
        ),
    )
    rows = []
    for name in chosen:
        recalls, base = (
            [found[which, seed] for seed in range(options.seeds)] for which in (name, BASELINE)
        )
        ratio = statistics.mean(recalls) / max(statistics.mean(base), 1e-9)
        rows.append((name, " ".join(f"{value:.1%}" for value in recalls), f"{ratio:.2f} x"))
    print(console.table(rows, ("recipe", "far recall, by seed", "ratio")))
    print(json.dumps({f"{name}, seed {seed}": one for (name, seed), one in found.items()}))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work_dir", default="out/recipe-probe")
    parser.add_argument("--only", action="append", choices=list(RECIPES), default=[])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--processes", type=int, help="at a time; the machine's cores by default")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
