"""Train and compare the runs of scripts/recipes.yaml.

    python -m scripts.learn recipe --work_dir DIR          # `make bench-recipe WORK_DIR=DIR`
    python -m scripts.learn recipe --work_dir DIR --kept   # shows the finished runs, trains none
    python -m scripts.learn recipe --work_dir DIR --anew   # also repeats the published runs

Each run is a sequence of `bigbird-ja` commands: sample (or real text), tokenize, make-data,
pretrain, evaluate. Rerun the same command after an interruption: `pretrain` continues an
interrupted run, and a finished run is not repeated. WORK_DIR contains the runs and their results.
docs/images contains the published results, with the settings and the commit of each run. So if a
seed is added, only the runs of that seed are trained. Start a long bench in a clone of the
repository in which nobody changes the code meanwhile, and commit the results there.

The table shows each seed's held-out loss, and each recipe's difference from the recipe that its key
`from` names (else from the first recipe). Differences are paired by seed. With three seeds or more,
differences have confidence intervals by Student's t, which hold for all rows together. The picture
shows the losses during training. If the bench has the key `evaluations`, these are losses on
held-out records, and the table shows after how many steps a recipe reaches the first recipe's final
loss. Table and picture also show the losses of predictions by n-gram counts, which are stored in
the repository. The program that computed them is in commit 485a8350.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from bigbird_ja.model_dir import log
from bigbird_ja.process import console
from bigbird_ja.settings.resolve import base_layers, given_layers, resolve_config
from bigbird_ja.settings.values import flatten
from bigbird_ja.settings.variants import OPTIONS
from scripts import compare
from testkit import ROOT
from testkit.configs import read_sets

TEXT = "BIGBIRD_JA_REAL_TEXT"
# With few facts in an article, the previous mention of a name is often far away.
PROBE_TEXT = ("--documents=600", "--seed=99", "--mean_length=5000", "--facts_per_1000_characters=3")
# Environment variables that limit a run to one core. A small model is not faster on two cores.
ONE_CORE = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
SHARE = re.compile(r"\{share:([0-9.]+)\}")
# Batches in each evaluation during training. The evaluation after training reads all held-out
# records.
EVAL_BATCHES = 16


@dataclass(frozen=True)
class Run:
    """One recipe with one seed.

    Attributes:
        name: name of the recipe in recipes.yaml.
        recipe: the recipe's entry in recipes.yaml, with inherited settings.
        seed: seed of initial weights, random attention blocks and the order of the data.
        steps: training steps, 0 for the preset's number.
    """

    name: str
    recipe: Mapping[str, Any] = field(compare=False)
    seed: int
    steps: int

    @property
    def title(self) -> str:
        """Title of the run's curve."""
        return f"{self.name}, seed {self.seed}" + (f", {self.steps} steps" if self.steps else "")

    @property
    def folder(self) -> str:
        """Name of the run's folder and files below WORK_DIR."""
        return re.sub(r"[^a-z0-9.]+", "-", self.title.lower()).strip("-")


def command(*arguments: str) -> dict[str, Any]:
    """Run `bigbird-ja` with --json and return its results."""
    return run_module("bigbird_ja", *arguments, "--json")


def run_module(module: str, *arguments: str) -> dict[str, Any]:
    """Run a program, and return the JSON of its last line of output.

    Raises:
        SystemExit: The program failed. The message contains its standard error.
    """
    words = [sys.executable, "-m", module, *arguments]
    console.log(f"$ {shlex.join(words)}")
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"{module} {arguments[0]} ended with {done.returncode}: {done.stderr}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def settings_file(preset: str, path: pathlib.Path, sets: Iterable[str]) -> str:
    """Write a file for --config with the preset and further settings. Return its path."""
    words = [sys.executable, "-m", "bigbird_ja", "config", preset, *(f"--set={s}" for s in sets)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(subprocess.run(words, stdout=subprocess.PIPE, cwd=ROOT, check=True).stdout)
    return str(path)


def filled(settings: Iterable[str], steps: int) -> list[str]:
    """Replace a text such as `{share:0.1}` in settings by that fraction of `steps`."""
    return [SHARE.sub(lambda m: str(round(float(m[1]) * steps)), item) for item in settings]


def text_of(bench: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 of the real text, or the flags that generate the text.

    Returns:
        The text's identity, or None if the bench needs real text and the environment variable
            BIGBIRD_JA_REAL_TEXT is not set.
    """
    if bench["text"] != "real":
        return " ".join(bench["text"])
    path = os.environ.get(TEXT)
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest() if path else None


def make_data(bench: Mapping[str, Any], work: pathlib.Path) -> dict[str, str]:
    """Build the corpus, the tokenizer and the data sets.

    Returns:
        Folder of each data set, by its name.
    """
    text = os.environ.get(TEXT, "") if bench["text"] == "real" else str(work / "corpus.jsonl")
    if not text:
        raise SystemExit(f"{TEXT} names no text: set it to a .jsonl.gz file of real text")
    if bench["text"] != "real":
        command("sample", f"--output={text}", *bench["text"])
    data = {}
    for name, sets in bench.get("data", {"data": ()}).items():
        settings = filled([*bench.get("sets", ()), *sets], 100)
        config = settings_file(bench["preset"], work / f"{name}.yaml", settings)
        common = [f"--config={config}", f"--input={text}"]
        command("tokenize", *common, f"--output_prefix={work / 'tokenizer'}")
        data[name] = str(work / name)
        tokenizer = f"--tokenizer={work / 'tokenizer'}.model"
        command("make-data", *common, tokenizer, f"--output_dir={data[name]}")
    return data


def runs_of(bench: Mapping[str, Any]) -> list[Run]:
    """List all runs of a bench, ordered by seed.

    A recipe inherits the settings of the recipe named by its `from`.
    """
    entries: dict[str, dict[str, Any]] = {}
    for name, entry in bench["runs"].items():
        own = {"seeds": bench.get("seeds", 1), "steps": bench.get("steps", 0), **(entry or {})}
        base = entries[own["from"]] if "from" in own else {}
        entries[name] = {**own, "sets": [*base.get("sets", ()), *own.get("sets", ())]}
    return [
        Run(name, entry, seed, entry["steps"])
        for seed in range(max(entry["seeds"] for entry in entries.values()))
        for name, entry in entries.items()
        if seed < entry["seeds"]
    ]


def settings_of(bench: Mapping[str, Any], run: Run) -> list[str]:
    """List all settings of a run that differ from the preset."""
    sets = filled([*bench.get("sets", ()), *run.recipe["sets"]], run.steps)
    own = [f"training.seed={run.seed}", f"data.seed={run.seed}", "training.log_every_steps=5"]
    # Disable the watchdog, since a step may take long on a busy machine.
    own += ["training.stall_minutes=0"]
    if "model.architecture=modernbert" not in sets:
        own += [f"model.pattern_seed={run.seed}"]
    if run.steps:
        own += [f"training.num_train_steps={run.steps}"]
    if "evaluations" in bench:
        own += [f"training.eval_every_steps={run.steps // bench['evaluations']}"]
        own += [f"training.eval_max_batches={EVAL_BATCHES}"]
    data = bench["data"][run.recipe["data"]] if "data" in bench else ()
    return [*sets, *data, *own]


def resolved_settings(bench: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return all settings of a run by key.

    A setting that the package no longer accepts is included with the value in the recipe.
    """
    given = read_sets(settings_of(bench, run))
    # Earlier versions of the package accepted `model.initializer` for a ModernBERT, too.
    is_modernbert = given.get("model.architecture") == "modernbert"
    removed = {"model.initializer"} & given.keys() if is_modernbert else set()
    left = {key: value for key, value in given.items() if key not in removed}
    config, _ = resolve_config([*base_layers(bench["preset"]), *given_layers(left)])
    return flatten(config) | {key: given[key] for key in removed}


def identity(bench: Mapping[str, Any], run: Run) -> str:
    """Hash the settings of a run that differ from the defaults.

    A setting that is added to the package later has its default, so the hash stays the same.
    """
    made = resolved_settings(bench, run)
    ours = {key: value for key, value in made.items() if value != OPTIONS[key].default}
    return hashlib.sha256(json.dumps(ours, sort_keys=True).encode()).hexdigest()[:16]


def kept_result(
    bench: Mapping[str, Any], work: pathlib.Path, published: Mapping[str, Any], run: Run
) -> dict[str, Any] | None:
    """Return the stored result of a run with the same settings, or None.

    The result is in WORK_DIR or in the repository.
    """
    path = work / "runs" / f"{run.folder}.json"
    there = json.loads(path.read_text("utf-8")) if path.exists() else {}
    settings = identity(bench, run)
    results = (there, published.get(run.title, {}))
    return next((kept for kept in results if kept.get("settings") == settings), None)


def train(
    bench: Mapping[str, Any], work: pathlib.Path, data: Mapping[str, str], run: Run
) -> dict[str, Any]:
    """Train and evaluate a run.

    Raises:
        SystemExit: A command failed. `pretrain` fails if the run in WORK_DIR has other settings.
    """
    folder = work / "runs" / run.folder
    path, config = (folder.with_name(f"{run.folder}.{end}") for end in ("json", "yaml"))
    settings_file(bench["preset"], config, settings_of(bench, run))
    places = [f"--model_dir={folder}", f"--data_dir={data[run.recipe.get('data', 'data')]}"]
    start = (run.recipe.get("init_from"), run.seed)
    sources = [work / "runs" / r.folder for r in runs_of(bench) if (r.name, r.seed) == start]
    if bench["preset"] == "probe-cpu":
        from scripts.probe import write_initial_weights

        sources = [folder.with_name(f"{run.folder}.first")]
        write_initial_weights(str(config), places[1].partition("=")[2], str(sources[0]))
    more = ["--mode=train_and_eval"] if "evaluations" in bench else []
    more += [f"--init_from={source}" for source in sources]
    trained = command("pretrain", f"--config={config}", *places, *more)
    evaluated = command("evaluate", *places)
    if asked := bench.get("probe"):
        text = work / "asked.jsonl"
        command("sample", f"--output={text}", *PROBE_TEXT)
        options = [places[0], f"--input={text}", f"--cases={asked['cases']}"]
        options += [f"--plot={asked['plot']}"] if "plot" in asked else []
        found = run_module("scripts.probe", *options)["by_distance"]
    if "evaluations" in bench:
        held_out = [e for e in log.read_evaluations(str(folder)) if e.get("max_batches")]
        curve: list[tuple[int, Any]] = [(e["step"], e["masked_lm_loss"]) for e in held_out]
    else:
        curve = [(line["step"], line["loss"]) for line in log.read_metrics(str(folder))]
    head = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    result = {
        "settings": identity(bench, run),
        "commit": subprocess.run(head, stdout=subprocess.PIPE, text=True, check=False).stdout[:-1],
        "steps": trained["global_step"],
        "loss": round(evaluated["masked_lm_loss"], 4),
        "recall": far_recall(found, asked["beyond"]) if asked else None,
        "curve": [(step, round(loss, 4)) for step, loss in curve],
    }
    path.write_text(json.dumps(result), "utf-8")
    console.log(f"{run.title}: held-out loss {result['loss']:.4f}")
    return result


def far_recall(rows: Sequence[Mapping[str, Any]], beyond: int) -> float:
    """Return the accuracy on masked names that were mentioned at least `beyond` tokens earlier."""
    far = [row for row in rows if row["from"] is not None and row["from"] >= beyond]
    return sum(row["model"] * row["count"] for row in far) / max(1, sum(r["count"] for r in far))


def table(
    results: Mapping[Run, Mapping[str, Any]], has_goal: bool, counted: Mapping[str, float]
) -> str:
    """Format a table with one row for each recipe, and the losses of n-gram counts below.

    With `has_goal` the table shows the steps to the final loss of the first recipe.
    """
    groups: dict[str, dict[int, Mapping[str, Any]]] = {}
    for run, result in results.items():
        groups.setdefault(run.name, {})[run.seed] = result
    losses = {name: {seed: r["loss"] for seed, r in ours.items()} for name, ours in groups.items()}
    first = next(iter(groups))
    bases = {run.name: run.recipe.get("from", first) for run in results}
    ends = [r["curve"][-1] for r in groups[first].values()] if has_goal else []
    goal = statistics.mean(loss for _, loss in ends) if ends else 0.0
    differences = compare.differences(
        {name: (losses[name], losses.get(bases[name], {})) for name in groups if name != first}
    )
    rows = []
    for name, ours in groups.items():
        reached = [compare.steps_to(r["curve"], goal) for r in ours.values()] if has_goal else []
        known = [step for step in reached if step is not None]
        rows.append(
            (
                name,
                f"{next(iter(ours.values()))['steps']:,}",
                " ".join(f"{losses[name][seed]:.4f}" for seed in sorted(ours)),
                differences.get(name, ""),
                f"{statistics.mean(known) / ends[0][0]:.0%}" if len(known) == len(ours) else "",
                " ".join(f"{r['recall']:.1%}" for r in ours.values() if r["recall"] is not None),
            )
        )
    rows += [(f"counting: {name}", "", f"{loss:.4f}", "", "", "") for name, loss in counted.items()]
    titles = "run", "steps", "held-out loss by seed", "difference", "steps to goal", "far recall"
    return console.table(rows, titles)


def main() -> None:
    """Train the missing runs, print the table, and draw the curves."""
    benches = yaml.safe_load((ROOT / "scripts" / "recipes.yaml").read_text("utf-8"))
    options = _options(benches)
    bench = benches[options.bench]
    work = pathlib.Path(options.work_dir or f"out/{options.bench}").resolve()
    os.environ.update(ONE_CORE)
    runs = runs_of(bench)
    path = ROOT / "docs" / "images" / f"{bench.get('picture', options.bench)}.json"
    published = compare.read_published(path, text_of(bench))
    known = {} if options.anew else published or {}
    results = {run: kept_result(bench, work, known, run) for run in runs}
    missing = [r for r in runs if not (results[r] or options.kept or "apart" in r.recipe)]
    data = make_data(bench, work) if missing else {}
    # Runs with `init_from` need the weights of other runs, so train them after all other runs.
    for is_later in (False, True):
        together = [run for run in missing if ("init_from" in run.recipe) == is_later]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            done = pool.map(lambda run: train(bench, work, data, run), together)
            results |= zip(together, done, strict=True)
    finished = {run: result for run, result in results.items() if result}
    if not finished:
        raise SystemExit(f"{work}: no run of {options.bench} is finished")
    counted = compare.read_published(path, text_of(bench), "counted") or {}
    print(table(finished, "evaluations" in bench, counted))
    if published is None:
        print(f"{path.relative_to(ROOT)} is of another text and stays as it is")
    elif "picture" in bench:
        merged = {**published, **{run.title: result for run, result in finished.items()}}
        merged = {t: r for t, r in merged.items() if compare.recipe_of(t) in bench["runs"]}
        if text := text_of(bench):
            compare.publish(path, text, merged, counted)
        drawn = {r.title: merged[r.title]["curve"] for r in runs_of(bench) if r.title in merged}
        compare.draw(path.with_suffix(".png"), bench["about"], drawn, counted)
        how = "written" if text else f"as it was ({TEXT} names no text)"
        print(f"{path.relative_to(ROOT)}: {how}; {path.stem}.png next to it is drawn")
    print("trained at commits", *sorted({result["commit"] for result in finished.values()}))


def _options(benches: Mapping[str, Any]) -> argparse.Namespace:
    about = "; ".join(f"{name}: {bench['about']}" for name, bench in benches.items())
    parser = argparse.ArgumentParser(description=about.replace("%", "%%"))
    parser.add_argument("bench", choices=list(benches))
    parser.add_argument("--work_dir", help="default: out/BENCH")
    parser.add_argument("--anew", action="store_true", help="repeat the repository's runs")
    parser.add_argument("--kept", action="store_true", help="train nothing: show the runs so far")
    return parser.parse_args()


if __name__ == "__main__":
    with console.print_log():
        main()
