"""Runs that `plan` compares machines for: settings, data set and compiled steps of each."""

import dataclasses
import datetime
import math
from collections.abc import Callable, Sequence
from typing import Any

from absl.flags import FlagValues

from bigbird_ja import storage
from bigbird_ja.accelerators import environment
from bigbird_ja.accelerators.prices import load_prices
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import run_settings
from bigbird_ja.plan import estimate, show
from bigbird_ja.plan.estimate import Plan
from bigbird_ja.process.console import log, warn
from bigbird_ja.settings.checks import config_warnings
from bigbird_ja.settings.data_facts import Data, requested_data
from bigbird_ja.settings.provenance import Layer, Override, decided_by_data
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.schema import Config
from bigbird_ja.storage import hub

# From the settings of --init_from and one --config to the config, and all overrides.
ResolveOne = Callable[[Sequence[Layer], str | None], tuple[Config, list[Override]]]


def plan(args: FlagValues, resolve: ResolveOne) -> dict[str, Any]:
    """Print time and cost of one run or several successive ones; return the `--json` results.

    Args:
        args: flags of `plan`.
        resolve: returns the config of one --config, and the values that were set, in order.

    Raises:
        BadInput: flags that can't be combined, or a file that can't be read or doesn't fit.
    """
    names = args.config or [None]
    _check_several(args, len(names))
    pairs = [_read(args, resolve, number, name) for number, name in enumerate(names)]
    plans, runs = [each for each, _ in pairs], [about for _, about in pairs]
    listed, today = load_prices(args.price_file), datetime.date.today()
    region = storage.bucket_location(args.data_dir[0]) if args.data_dir else None
    made = estimate.make_rows(plans, listed, args.accelerator_type, region or "")
    chosen = estimate.cheapest(made)
    budget_rows = (
        estimate.budget_rows(plans[0], runs[0], made, args.max_cost) if args.max_cost else []
    )
    print(show.verdict(chosen, [row for row in made if row.is_free]))
    if budget_rows:
        print(f"\n{show.affordable(budget_rows, args.max_cost)}\n")
    print(show.describe(plans, runs, made, listed.describe_age(today)))
    return {
        **({"max_cost_buys": budget_rows} if budget_rows else {}),
        **(runs[0] if len(runs) == 1 else {**_summed(runs), "runs": runs}),
        "rows": [dataclasses.asdict(row) for row in made],
        "cheapest": None if chosen is None else dataclasses.asdict(chosen),
        "prices_as_of": str(listed.as_of),
        "prices_age_days": listed.age_days(today),
    }


def _check_several(args: FlagValues, count: int) -> None:
    """Refuse flags that can't be combined with this number of configs.

    Raises:
        BadInput: a flag is not given once for each, or belongs to one run only.
    """
    for flag in ("data_dir", "preflight"):
        given: list[str] = args[flag].value or []
        if given and len(given) != count:
            raise BadInput(
                f"--{flag} is there {len(given)} times, --config {count} times: give one for each,"
                " in the same order, or none"
            )
    if count > 1 and args.num_train_steps is not None:
        raise BadInput("--num_train_steps and several --config: each config has its own steps")
    if count > 1 and args.max_cost is not None:
        raise BadInput("--max_cost and several --config: give one, a budget belongs to one run")


def _read(
    args: FlagValues, resolve: ResolveOne, number: int, name: str | None
) -> tuple[Plan, dict[str, Any]]:
    """Read one --config and its data set, if given; return the run and its `--json` results."""
    source = args.init_from and hub.fetched(args.init_from, "--init_from")
    place = args.data_dir[number] if args.data_dir else ""
    manifest = manifest_lib.load(place) if place else None
    adopted = []
    if source and manifest:
        adopted = run_settings.adopted_settings(source, manifest, place)
    elif source:
        adopted = run_settings.stated_settings(source)
    config, overrides = resolve(adopted, name)
    data: Data = manifest or requested_data(config)
    config = fit_to_data(config, data, overrides, place)
    if manifest:
        for line in decided_by_data(overrides, data):
            log(line)
        sequences, assumption = sum(shard.records for shard in manifest.train_shards), None
    else:
        tokens = estimate.WIKI40B_JA_BYTES / estimate.BYTES_PER_TOKEN
        sequences = math.ceil(tokens / data.seq_length)
        assumption = (
            f"no --data_dir: assuming Wiki40b Japanese, {estimate.WIKI40B_JA_BYTES / 1e9:.1f} GB of"
            f" text at {estimate.BYTES_PER_TOKEN:.0f} bytes per token, in full sequences of"
            f" {data.seq_length}"
        )
    warn(config_warnings(config, not source, overrides, data))
    planned = Plan(config, data, preemptions_per_hour=args.preemptions_per_hour)
    if args.preflight:
        path = args.preflight[number]
        planned = dataclasses.replace(planned, results=estimate.load_results(path))
        _check_length(planned, path)
        warn(f"{path}: {each}" for each in environment.compiler_warnings(planned.results.versions))
    steps, batch = config.training.num_train_steps, config.training.global_batch_size
    about = {
        "config": name,
        "tokens_per_step": estimate.tokens_per_step(config, data),
        "steps_per_epoch": sequences / batch,
        "steps": steps,
        "tokens": planned.tokens,
        "epochs": steps * batch / sequences,
        "assumption": assumption,
        "compiler": environment.describe(planned.results.versions),
    }
    return planned, about


def _summed(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add up the results of several runs; None if no sum has a meaning."""
    per_step = {run["tokens_per_step"] for run in runs}
    return {
        "tokens_per_step": per_step.pop() if len(per_step) == 1 else None,
        "steps_per_epoch": None,
        "steps": sum(run["steps"] for run in runs),
        "tokens": sum(run["tokens"] for run in runs),
        "epochs": None,
        "assumption": "; ".join(filter(None, (run["assumption"] for run in runs))) or None,
        "compiler": "; ".join(dict.fromkeys(run["compiler"] for run in runs)),
    }


def _check_length(run: Plan, path: str) -> None:
    """Check that results of `preflight` are of sequences as long as the run's.

    Raises:
        BadInput: they are of another length.
    """
    length = run.data.seq_length
    for step in (*run.results.chips, *run.results.topologies):
        if step.get("seq_length", length) != length:
            raise BadInput(
                f"--preflight {path} is of sequences of {step['seq_length']} tokens, the config of"
                f" {length}: run preflight with this config"
            )
