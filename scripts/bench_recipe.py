"""What of the recipe is worth it? `make bench-recipe` (real text; hours on two cores).

A small model, from several seeds, trained on real Japanese text with one thing at a time changed:
the share of masked tokens, the first values, the schedule of the learning rate, whether packed
documents see each other, short sequences first. Everything else is the same, down to the seed.
Measured afterwards:

- the loss on held-out records, always with 15 % of the tokens masked;
- the long-context probe: names of the held-out text, masked from their second mention on.

Each is trained for the same number of tokens, and, where a step of it costs more or less, once more
for the same cost: for as many steps as the baseline's money buys. What a step costs is the priced
cycles of `base-4096` with that change on a TPU (`bigbird-ja preflight`), not of the small model;
by the compiler of this environment, which leaves attention to XLA, or of --preflight_python's.

Every finished run is kept in WORK_DIR/runs, every price in WORK_DIR/prices.json: stopped and
started again, it goes on. A smaller --steps or --seeds is a smaller experiment, not a worse one.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.process import tensorflow_env

tensorflow_env.prepare(os.environ)

import numpy as np  # noqa: E402

from bigbird_ja.data import manifest as manifest_lib  # noqa: E402
from bigbird_ja.data import pipeline  # noqa: E402
from bigbird_ja.evaluation import masked_lm, probe  # noqa: E402
from bigbird_ja.evaluation.forward import Forward  # noqa: E402
from bigbird_ja.process import console  # noqa: E402
from bigbird_ja.settings.schema import Config  # noqa: E402
from bigbird_ja.settings.values import flatten  # noqa: E402
from bigbird_ja.text import tokenizer  # noqa: E402
from scripts.learning import (  # noqa: E402
    Task,
    config_for,
    data_of,
    run_kept,
    train_in_phases,
)

TEXT = "BIGBIRD_JA_REAL_TEXT"
# 512 tokens in 32 blocks of 16; base-4096 has 64 of 64.
TASK = Task(
    "real text",
    "tiny-cpu",
    (
        "tokenize.vocab_size=6000",
        "tokenize.max_sentences=8000",
        "make_data.mask_unit=whole_word",
        "training.global_batch_size=4",
    ),
)
SHORT = 64  # an eighth, as 512 of 4,096
PRICED = "base-4096"  # the preset whose step is priced
CHIP = "v5e"
# The baseline's masks, whatever the preset's.
FIXED_RATE = ("training.masked_lm_prob=null", "training.final_masked_lm_prob=null")


@dataclass(frozen=True)
class Recipe:
    """One way to train.

    Attributes:
        name: for the table, --only and the files.
        sets: what differs from the baseline, `section.key=value`.
        priced: settings of `base-4096` by which its step has this recipe's price; None: the
            baseline's price, as the compiled step is the same.
        short: share of the steps that are on sequences of SHORT tokens.
    """

    name: str
    sets: tuple[str, ...]
    priced: tuple[str, ...] | None = None
    short: float = 0.0


BASELINE = Recipe("baseline", ())
RECIPES = (
    BASELINE,
    Recipe(
        "30 % masked",
        ("training.masked_lm_prob=0.3",),
        ("training.masked_lm_prob=0.3", FIXED_RATE[1]),
    ),
    Recipe(
        "30 -> 15 % masked",
        ("training.masked_lm_prob=0.3", "training.final_masked_lm_prob=0.15"),
        ("training.masked_lm_prob=0.3", "training.final_masked_lm_prob=0.15"),
    ),
    Recipe("mimetic", ("model.initializer=mimetic",)),
    Recipe("wsd", ("training.schedule=wsd",)),
    Recipe(
        "30 -> 15 % masked, wsd",
        (
            "training.masked_lm_prob=0.3",
            "training.final_masked_lm_prob=0.15",
            "training.schedule=wsd",
        ),
        ("training.masked_lm_prob=0.3", "training.final_masked_lm_prob=0.15"),
    ),
    Recipe(
        "documents apart",
        ("model.attend_across_documents=false",),
        (*FIXED_RATE, "model.attend_across_documents=false"),
    ),
    Recipe(
        "short first",
        (f"training.first_seq_length={SHORT}",),
        (*FIXED_RATE, "training.first_seq_length=512", "training.first_seq_length_steps=450000"),
        short=0.9,
    ),
)


@dataclass(frozen=True)
class Run:
    """One recipe, seed and number of steps."""

    recipe: Recipe
    seed: int
    steps: int

    def config(self, data_dir: str) -> Config:
        """A seed draws weights, connections and the order of the data."""
        seeds = [f"{key}={self.seed}" for key in ("training.seed", "model.pattern_seed")]
        length = [
            f"training.num_train_steps={self.steps}",
            f"training.warmup_steps={self.steps // 10}",
        ]
        if self.recipe.short:
            length.append(
                f"training.first_seq_length_steps={round(self.steps * self.recipe.short)}"
            )
        return config_for(
            data_dir, TASK, *seeds, f"data.seed={self.seed}", *length, *self.recipe.sets
        )


def measure(data_dir: str, run: Run, batches: int | None, cases: int) -> dict[str, Any]:
    """Trains and evaluates one run."""
    config = run.config(data_dir)
    curve: list[float] = []
    params = train_in_phases(config, data_dir, lambda _, m: curve.append(m["loss"]))
    forward = Forward(config, {name: value.numpy() for name, value in params.items()})
    manifest = manifest_lib.load(data_dir)
    found = masked_lm.evaluate_model(forward, data_dir, manifest, max_batches=batches)
    return {
        "recipe": run.recipe.name,
        "seed": run.seed,
        "steps": run.steps,
        "loss": found["masked_lm_loss"],
        "accuracy": found["masked_lm_accuracy"],
        "names": names_filled_in(forward, data_dir, manifest, cases),
        "curve": [round(value, 4) for value in curve],
    }


def names_filled_in(
    forward: Forward, data_dir: str, manifest: manifest_lib.Manifest, count: int
) -> float | None:
    """The probe's share of tokens of names filled in right; None where `count` is 0."""
    if not count:
        return None
    pieces = tokenizer.load(os.path.join(data_dir, "tokenizer.model"))
    batches = pipeline.eval_batches(manifest, data_dir, batch_size=8)
    records = list(probe.records_as_ids(batches, manifest.pad_id))
    cases = probe.find_cases(records, pieces, probe.repeated_names)
    chosen = np.random.Generator(np.random.PCG64(0)).permutation(len(cases))[:count]
    cases = [cases[i] for i in sorted(chosen)]
    guesses = probe.predict(forward, cases, batch_size=8)
    return float(np.mean([right.mean() for right in probe.right_tokens(cases, guesses)]))


def price(recipe: Recipe, options: argparse.Namespace) -> float:
    """What a step of the recipe costs, as a multiple of the baseline's; kept in prices.json."""
    if recipe.priced is None:
        return 1.0
    kept = pathlib.Path(options.work_dir) / "prices.json"
    prices: dict[str, list[float]] = json.loads(kept.read_text("utf-8")) if kept.exists() else {}

    def key(sets: Sequence[str]) -> str:
        return " ".join((PRICED, CHIP, *options.preflight_python, *sets))

    for sets in (FIXED_RATE, recipe.priced):
        if key(sets) not in prices:
            console.log(f"pricing {key(sets)} (minutes)")
            prices[key(sets)] = cycles_of_step(options.preflight_python, sets)
            kept.write_text(json.dumps(prices, indent=1), "utf-8")
    whole, short = prices[key(recipe.priced)]
    mean = recipe.short * short + (1 - recipe.short) * whole
    return mean / prices[key(FIXED_RATE)][0]


def cycles_of_step(python: Sequence[str], sets: Sequence[str]) -> list[float]:
    """Of a step of `base-4096` with these settings, and of one on short sequences: by machine code
    where the compiler lists it, else priced."""
    line = [*(python or [sys.executable]), "-m", "bigbird_ja", "preflight", f"--config={PRICED}"]
    line += [f"--chip={CHIP}", "--json", *(f"--set={item}" for item in sets)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"bigbird-ja preflight ended with {done.returncode}")
    (chip,) = json.loads(done.stdout)["chips"]
    steps = (chip, chip.get("first_phase", chip))
    basis = "code_cycles" if all(step.get("code_cycles") for step in steps) else "priced_cycles"
    return [step[basis] for step in steps]


def outcomes(
    runs: Sequence[Run], data_dir: str, options: argparse.Namespace
) -> dict[Run, dict[str, Any]]:
    """What came of each run, kept or measured now."""
    kept_in = pathlib.Path(options.work_dir) / "runs"
    evaluated = (options.eval_batches, options.cases)
    return run_kept(
        {
            run: (
                kept_in / f"{name_of(run, data_dir, options)}.json",
                measure,
                (data_dir, run, *evaluated),
            )
            for run in runs
        },
        options.processes,
        lambda run, found, left: console.log(
            f"{run.recipe.name}, seed {run.seed}, {run.steps} steps: {found['loss']:.4f},"
            f" {left} to come"
        ),
    )


def name_of(run: Run, data_dir: str, options: argparse.Namespace) -> str:
    """Of the run's file: another setting, data set, length or evaluation is another file."""
    depends = {
        **flatten(run.config(data_dir)),
        "data": manifest_lib.load(data_dir).fingerprint,
        "evaluated": [options.eval_batches, options.cases],
    }
    key = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()
    words = "-".join(run.recipe.name.replace("%", "").replace("->", "to").split())
    return f"{words}-{run.steps}-{run.seed}-{key[:12]}"


def rows_of(
    found: dict[Run, dict[str, Any]], seeds: int, steps: int
) -> list[tuple[Recipe, int, list[float], list[float], list[float]]]:
    """(recipe, steps, its losses, the baseline's of the same seeds, names filled in) of what is
    complete."""
    by = {(run.recipe, run.steps, run.seed): outcome for run, outcome in found.items()}
    rows = []
    for recipe, count in dict.fromkeys((run.recipe, run.steps) for run in found):
        ours = [by.get((recipe, count, seed)) for seed in range(seeds)]
        base = [by.get((BASELINE, steps, seed)) for seed in range(seeds)]
        if all(ours) and all(base):
            losses = [one["loss"] for one in ours if one]
            baseline = [one["loss"] for one in base if one]
            names = [one["names"] for one in ours if one and one["names"] is not None]
            rows.append((recipe, count, losses, baseline, names))
    return rows


def verdict(losses: Sequence[float], base: Sequence[float]) -> str:
    """ "better" or "worse" where every seed says so and the mean difference is beyond the seeds'
    spread; "-" otherwise."""
    differences = [ours - theirs for ours, theirs in zip(losses, base, strict=True)]
    mean = statistics.mean(differences)
    if len(losses) < 2 or abs(mean) <= max(statistics.stdev(losses), statistics.stdev(base)):
        return "-"
    if all(value < 0 for value in differences):
        return "better"
    return "worse" if all(value > 0 for value in differences) else "-"


def report(found: dict[Run, dict[str, Any]], options: argparse.Namespace) -> str:
    """The table."""
    seeds, steps = options.seeds, options.steps
    cells = []
    for recipe, count, losses, base, names in rows_of(found, seeds, steps):
        spread = statistics.stdev(losses) if seeds > 1 else 0.0
        mean, reference = statistics.mean(losses), statistics.mean(base)
        cost = "-"
        if options.priced or not recipe.priced:
            cost = f"{price(recipe, options) * count / steps:.2f} x"
        cells.append(
            (
                recipe.name,
                f"{count:,}",
                cost,
                f"{mean:.4f} ± {spread:.4f}",
                f"{mean - reference:+.4f}",
                f"{mean / reference:.4f} x",
                "" if recipe is BASELINE else verdict(losses, base),
                f"{statistics.mean(names):.1%}" if names else "-",
            )
        )
    header = ("recipe", "steps", "cost", "held-out loss", "difference", "ratio", "", "names")
    return console.table(cells, header)


def main() -> int:
    """Trains what is not there yet and prints the table."""
    options = _options()
    text = os.environ.get(TEXT)
    if not text:
        raise SystemExit(f"{TEXT} names no text: set it to a .jsonl.gz file of real text")
    data_dir = data_of(options.work_dir, TASK, text)
    chosen = [r for r in RECIPES if r is BASELINE or not options.only or r.name in options.only]
    seeds, steps = range(options.seeds), options.steps
    found = outcomes([Run(r, s, steps) for s in seeds for r in chosen], data_dir, options)
    if options.priced:
        equal = []
        for recipe in chosen:
            paid = round(steps / price(recipe, options))
            equal += [Run(recipe, seed, paid) for seed in seeds if paid != steps]
        found |= outcomes(equal, data_dir, options)
    print(report(found, options))
    print(json.dumps([{**dataclasses.asdict(run), **found[run], "curve": None} for run in found]))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work_dir", default="out/recipe")
    parser.add_argument("--only", action="append", help="recipes besides the baseline", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--eval_batches", type=int, help="of 16,384 held-out tokens; all of them")
    parser.add_argument("--cases", type=int, default=200, help="names that the probe asks for")
    parser.add_argument("--processes", type=int, help="at a time; the machine's cores by default")
    parser.add_argument(
        "--preflight_python",
        nargs=1,
        default=[],
        help="of another environment, whose compiler prices a step: .venv-newest/bin/python prices"
        " it by machine code, with attention in kernels",
    )
    parser.add_argument(
        "--nopriced", dest="priced", action="store_false", help="at equal tokens alone"
    )
    options = parser.parse_args()
    for name in options.only:
        if name not in {recipe.name for recipe in RECIPES}:
            parser.error(f"--only={name}: one of {', '.join(r.name for r in RECIPES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
