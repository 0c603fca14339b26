"""What learns better? Trains and compares the runs of scripts/recipes.yaml.

    python -m scripts.learn recipe      # `make bench-recipe`; the other names: --help

Everything is done by the commands themselves, each run in a process of its own: sample or real
text, tokenize, make-data, pretrain, evaluate. An interrupted run is continued by `pretrain`, a
finished one is not made again, so the same command goes on at any point; WORK_DIR holds it all.

Prints each seed's held-out loss, the difference from the first run's with a 95 % confidence
interval (paired by seed, Student's t), and draws the training curves. With --priced each run whose
step costs more or less is trained once more for as many steps as the first run's money buys: cycles
of a step of base-4096 with these settings on v5e (`bigbird-ja preflight`, machine code if any).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from bigbird_ja.process import console

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = "BIGBIRD_JA_REAL_TEXT"
# Articles with few facts, so that many names were last stated far away.
ASKED = ("--documents=600", "--seed=99", "--mean_length=5000", "--facts_per_1000_characters=3")
# A model this small does not fill two cores.
ONE_CORE = {
    "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}  # fmt: skip
WIDTH = 25  # logged steps that a drawn loss is averaged over


@dataclass(frozen=True)
class Run:
    """One recipe from one seed.

    Attributes:
        name: of the recipe in recipes.yaml.
        recipe: its entry there.
        seed: draws weights, connections and the order of the data.
        steps: how long it trains.
    """

    name: str
    recipe: Mapping[str, Any] = field(compare=False)
    seed: int
    steps: int

    @property
    def title(self) -> str:
        """What its curve is called."""
        return f"{self.name}, seed {self.seed}" + (f", {self.steps} steps" if self.steps else "")

    @property
    def folder(self) -> str:
        """Its place below WORK_DIR."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def command(*arguments: str, threads: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs `bigbird-ja` with --json; returns its results.

    Raises:
        SystemExit: it failed; its log is on standard error.
    """
    console.log(f"$ bigbird-ja {shlex.join(arguments)}")
    done = subprocess.run(
        [sys.executable, "-m", "bigbird_ja", *arguments, "--json"],
        capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, **(threads or {})}, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"bigbird-ja {arguments[0]} ended with {done.returncode}: {done.stderr}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def settings_file(bench: Mapping[str, Any], path: pathlib.Path, sets: Sequence[str]) -> str:
    """Writes the preset with further settings as a file: commands take of it what they use."""
    done = subprocess.run(
        [sys.executable, "-m", "bigbird_ja", "config", bench["preset"],
         *(f"--set={item}" for item in (*bench.get("sets", ()), *sets))],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(done.stdout, "utf-8")
    return str(path)


def with_steps(bench: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """The bench with `{share:0.1}` in its settings replaced by that share of the steps."""
    return {**bench, "sets": [_filled(item, steps) for item in bench.get("sets", ())]}


def _filled(setting: str, steps: int) -> str:
    return re.sub(r"\{share:([0-9.]+)\}", lambda m: str(round(float(m[1]) * steps)), setting)


def make_data(bench: Mapping[str, Any], work: pathlib.Path) -> dict[str, str]:
    """Corpus, tokenizer and data sets; DATA_DIR by the data set's name."""
    if bench["text"] == "real":
        text = os.environ.get(TEXT, "")
        if not text:
            raise SystemExit(f"{TEXT} names no text: set it to a .jsonl.gz file of real text")
    else:
        text = str(work / "corpus.jsonl")
        command("sample", f"--output={text}", *bench["text"])
    data = {}
    for name, sets in (bench.get("data") or {"data": ()}).items():
        config = settings_file(with_steps(bench, 100), work / f"{name}.yaml", sets)
        common = [f"--config={config}", f"--input={text}"]
        command("tokenize", *common, f"--output_prefix={work / 'tokenizer'}")
        data[name] = str(work / name)
        command(
            "make-data", *common, f"--tokenizer={work / 'tokenizer'}.model",
            f"--output_dir={data[name]}",
        )  # fmt: skip
    return data


def measure(bench: Mapping[str, Any], work: pathlib.Path, data_dir: str, run: Run) -> dict:
    """Trains and evaluates one run, or reads what is kept of it."""
    folder = work / "runs" / run.folder
    kept = folder.with_suffix(".json")
    if kept.exists():
        return dict(json.loads(kept.read_text("utf-8")))
    seeds = [f"{key}={run.seed}" for key in ("training.seed", "model.pattern_seed", "data.seed")]
    length = [f"training.num_train_steps={run.steps}"] if run.steps else []
    sets = [_filled(item, run.steps) for item in run.recipe.get("sets", ())]
    config = settings_file(
        with_steps(bench, run.steps), folder.with_suffix(".yaml"),
        [*(bench.get("data") or {}).get(run.recipe.get("data"), ()), *seeds, *length,
         "training.log_every_steps=5", *sets],
    )  # fmt: skip
    start = run.recipe.get("init_from")
    source = [r for r in runs_of(bench, bench.get("seeds", 1)) if r.name == start]
    init = [f"--init_from={work / 'runs' / source[run.seed].folder}"] if source else []
    trained = command(
        "pretrain", f"--config={config}", f"--data_dir={data_dir}", f"--model_dir={folder}", *init,
        threads=ONE_CORE,
    )  # fmt: skip
    asked = ["evaluate", f"--model_dir={folder}", f"--data_dir={data_dir}"]
    probe = bench.get("probe")
    if probe:
        text = work / "asked.jsonl"
        command("sample", f"--output={text}", *ASKED)
        asked += ["--probe", f"--probe_input={text}", f"--probe_cases={probe['cases']}"]
        asked += [f"--plot={probe['plot']}"] if "plot" in probe else []
    evaluated = command(*asked, threads=ONE_CORE)
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    result = {
        "steps": trained["global_step"],
        "loss": evaluated["masked_lm_loss"],
        "accuracy": evaluated["masked_lm_accuracy"],
        "recall": far_recall(evaluated["probe"]["by_distance"], probe["beyond"]) if probe else None,
        "curve": [(line["step"], round(line["loss"], 4)) for line in map(json.loads, lines)],
    }
    kept.write_text(json.dumps(result), "utf-8")
    console.log(f"{run.title}: held-out loss {result['loss']:.4f}")
    return result


def far_recall(rows: Sequence[Mapping[str, Any]], beyond: int) -> float:
    """Share of the tokens of names filled in that were last stated at least so many tokens away."""
    far = [row for row in rows if row["from"] is not None and row["from"] >= beyond]
    return sum(row["model"] * row["count"] for row in far) / max(1, sum(r["count"] for r in far))


@functools.lru_cache(maxsize=64)
def cycles(price: tuple[str, ...]) -> tuple[float, float]:
    """Cycles of a step of base-4096 with these settings on v5e, and of one on short sequences."""
    sets = [f"--set={item}" for item in price]
    (chip,) = command("preflight", "--config=base-4096", "--chip=v5e", *sets)["chips"]
    steps = (chip, chip.get("first_phase", chip))
    basis = "code_cycles" if all(step.get("code_cycles") for step in steps) else "priced_cycles"
    return steps[0][basis], steps[1][basis]


def relative_price(recipe: Mapping[str, Any], first: Mapping[str, Any]) -> float:
    """What a step of the recipe costs, as a multiple of the first one's."""
    if not recipe.get("price") or not first.get("price"):
        return 1.0
    whole, short = cycles(tuple(recipe["price"]))
    text = " ".join(recipe.get("sets", ()))
    share = re.search(r"first_seq_length_steps=\{share:([0-9.]+)\}", text)
    part = float(share[1]) if share else 0.0
    return (part * short + (1 - part) * whole) / cycles(tuple(first["price"]))[0]


def runs_of(bench: Mapping[str, Any], seeds: int, only: Sequence[str] = ()) -> list[Run]:
    """All runs at equal tokens, those of one seed after the other."""
    chosen = {
        name: recipe or {}
        for index, (name, recipe) in enumerate(bench["runs"].items())
        if index == 0 or not only or name in only
    }
    return [
        Run(name, recipe, seed, recipe.get("steps", bench.get("steps", 0)))
        for seed in range(seeds)
        for name, recipe in chosen.items()
        if seed < recipe.get("seeds", seeds)
    ]


def difference(ours: Sequence[float], base: Sequence[float]) -> str:
    """Mean paired difference with its 95 % confidence interval, in words."""
    from scipy import stats

    pairs = [one - other for one, other in zip(ours, base, strict=False)]
    mean = statistics.mean(pairs)
    if len(pairs) < 2:
        return f"{mean:+.4f}"
    error = statistics.stdev(pairs) / len(pairs) ** 0.5
    margin = float(stats.t.ppf(0.975, len(pairs) - 1)) * error
    verdict = "" if abs(mean) <= margin else " better" if mean < 0 else " worse"
    return f"{mean:+.4f} ± {margin:.4f}{verdict}"


def table(results: Mapping[Run, Mapping[str, Any]]) -> str:
    """A row for each recipe and number of steps."""
    by: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for run, result in results.items():
        by.setdefault((run.name, run.steps), []).append(result)
    first = next(iter(by.values()))
    base = [result["loss"] for result in first]
    rows = []
    for (name, steps), ours in by.items():
        losses = [result["loss"] for result in ours]
        recalls = [result["recall"] for result in ours if result["recall"] is not None]
        rows.append(
            (
                name, f"{steps or ours[0]['steps']:,}", " ".join(f"{x:.4f}" for x in losses),
                "" if ours is first else difference(losses, base),
                " ".join(f"{x:.1%}" for x in recalls) or "-",
            )
        )  # fmt: skip
    return console.table(
        rows, ("run", "steps", "held-out loss by seed", "difference", "far recall")
    )


def draw(path: pathlib.Path, title: str, curves: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Training loss of every run, a running mean, one colour for each recipe."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    names = list(dict.fromkeys(title.partition(", seed")[0] for title in curves))
    for name, points in curves.items():
        steps, losses = np.array(points, float).T
        recipe = name.partition(", seed")[0]
        width = min(WIDTH, len(losses))
        axes.plot(
            steps[width - 1 :], np.convolve(losses, np.ones(width) / width, mode="valid"),
            color=f"C{names.index(recipe) % 10}", lw=1.1,
            ls=("-", "--", ":")[names.index(recipe) % 3],
            label=recipe if name == next(n for n in curves if n.startswith(recipe)) else None,
        )  # fmt: skip
    axes.set(xlabel="step", ylabel="masked-LM loss in training")
    axes.set_title(textwrap.fill(title, 80), fontsize=10)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)


def main() -> int:
    """Trains what is not there yet, prints the table, draws the curves."""
    benches = yaml.safe_load((ROOT / "scripts" / "recipes.yaml").read_text("utf-8"))
    options = _options(benches)
    bench = benches[options.bench]
    steps = {"steps": options.steps} if options.steps else {}
    bench = {**bench, **steps}
    picture = ROOT / "docs" / "images" / f"{bench.get('picture', options.bench)}.png"
    curves_file = picture.with_suffix(".json")
    if options.redraw:
        draw(picture, bench["about"], json.loads(curves_file.read_text("utf-8")))
        return 0
    work = pathlib.Path(options.work_dir or f"out/{options.bench}").resolve()
    data = make_data(bench, work)
    runs = runs_of(bench, options.seeds or bench.get("seeds", 1), options.only)
    first = runs[0]
    if options.priced:
        paid = {run: round(run.steps / relative_price(run.recipe, first.recipe)) for run in runs}
        runs += [Run(r.name, r.recipe, r.seed, n) for r, n in paid.items() if n != r.steps]
    results: dict[Run, dict[str, Any]] = {}
    later = [run for run in runs if run.recipe.get("init_from")]
    for together in ([run for run in runs if run not in later], later):
        with concurrent.futures.ThreadPoolExecutor(options.jobs or os.cpu_count()) as pool:
            call = functools.partial(measure, bench, work)
            names = [run.recipe.get("data", next(iter(data))) for run in together]
            results |= dict(
                zip(together, pool.map(call, [data[n] for n in names], together), strict=True)
            )
    print(table(results))
    if "picture" in bench and not options.steps:
        curves = {run.title: results[run]["curve"] for run in runs}
        curves_file.write_text(json.dumps(curves) + "\n", "utf-8")
        draw(picture, bench["about"], curves)
        print(f"drawn: {picture.relative_to(ROOT)}")
    print(json.dumps([{"run": r.title, **results[r], "curve": None} for r in runs]))
    return 0


def _options(benches: Mapping[str, Any]) -> argparse.Namespace:
    about = "; ".join(f"{name}: {bench['about']}" for name, bench in benches.items())
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("bench", choices=list(benches))
    parser.add_argument("--work_dir", help="default: out/BENCH")
    parser.add_argument("--only", action="append", default=[], help="runs beside the first")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--steps", type=int, help="other than the bench's: draws no picture")
    parser.add_argument("--jobs", type=int, help="runs at a time (default: one for each core)")
    parser.add_argument("--priced", action="store_true", help="at equal price, too")
    parser.add_argument("--redraw", action="store_true", help="draw the kept curves again")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
