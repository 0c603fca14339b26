"""Estimate tokens, steps, hours and cost, before anything is rented.

  bigbird-ja plan --config base-4096 --data_dir gs://MY-BUCKET/data
  bigbird-ja plan --config base-4096 --preflight slices.json
  bigbird-ja plan --config modernbert-1024 --config modernbert-8192
  bigbird-ja plan --config continue-8192 --init_from encoder --max_cost 5

Reads a config and, if given, the config.json of --init_from, a data set's manifest, results of
`preflight --output` and a table of prices. Writes nothing. Takes a second.

Several --config are successive runs, each from the weights of the one before; the table shows their
sum. --data_dir and --preflight are then given once for each, in the same order, or not at all. With
--init_from all runs have the sizes of that encoder. --max_cost also shows how many steps, tokens
and epochs that budget pays for on each machine.

Hours are rented time, including saves, restarts and work that is repeated after preemptions. The
training rate is estimated from machine code (v5e, v6e), scaled by how close published runs on real
chips came (docs/lab/clock.md), or else from the compiler's priced cycles; the table says which, and
shows the interval. Costs are the machine's only: the storage of a base model costs less than a
dollar a month, and traffic within a region is free.

Compares one machine of each TPU from v2 to v7x, every slice in --preflight, and the free machines
of Kaggle and Colab. Zones are those that `launch` tries by default: the region and the continent of
--data_dir, or the US without it, since traffic from another continent costs more than a cheaper
zone saves. The price is that of the most expensive of them.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bigbird_ja import storage
from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import resolve
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.checks import config_warnings
from bigbird_ja.settings.data_facts import Data, requested_data
from bigbird_ja.settings.provenance import decided_by_data
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.schema import used_by
from bigbird_ja.storage import hub

if TYPE_CHECKING:
    from bigbird_ja.plan.estimate import Plan

EXAMPLE = "bigbird-ja plan --config base-4096"
SETTINGS = used_by("plan")
MANY_CONFIGS = True


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    guess = "estimated from Wiki40b's size"
    flags.path("data_dir", "Data set of `make-data`, one for each --config.", many=True, none=guess)
    flags.path(
        "init_from",
        "Hugging Face folder to start from, as in `pretrain`: its sizes replace the config's.",
    )
    flags.setting("training.num_train_steps")
    alone, usual = (
        "Accelerator type to compare, such as v5e-8 or v5e-32 (repeatable).",
        "one machine of each TPU",
    )
    flags.text("accelerator_type", alone, many=True, none=usual)
    rates = (
        "Results of `preflight --output`, one file for each --config: rates from the real compiler."
    )
    flags.path("preflight", rates, many=True)
    flags.path("price_file", "YAML file that overrides built-in prices.")
    budget = "Budget; a table shows the steps that it pays for."
    flags.number("max_cost", None, budget, unit="US dollars", low=0.01, high=1e9, none="no budget")
    flags.number(
        "preemptions_per_hour",
        0.25,
        "Expected preemptions of a spot machine per hour.",
        low=0.0,
        high=1000,
    )


def run(args: Args) -> dict[str, Any]:
    """Plan one run or several successive runs."""
    from bigbird_ja.accelerators.prices import load_prices
    from bigbird_ja.plan import estimate, show

    names = args.config or [None]
    _check_several(args, len(names))
    pairs = [_plan(args, number, name) for number, name in enumerate(names)]
    plans, runs = [each for each, _ in pairs], [about for _, about in pairs]
    listed, today = load_prices(args.price_file), datetime.date.today()
    region = storage.bucket_location(args.data_dir[0]) if args.data_dir else None
    made = estimate.make_rows(plans, listed, args.accelerator_type, region or "")
    chosen = estimate.cheapest(made)
    bought = estimate.bought(plans[0], runs[0], made, args.max_cost) if args.max_cost else []
    print(show.verdict(chosen, [row for row in made if row.is_free]))
    if bought:
        print(f"\n{show.affordable(bought, args.max_cost)}\n")
    print(show.describe(plans, runs, made, listed.describe_age(today)))
    return {
        **({"max_cost_buys": bought} if bought else {}),
        **(runs[0] if len(runs) == 1 else {**_summed(runs), "runs": runs}),
        "rows": [dataclasses.asdict(row) for row in made],
        "cheapest": None if chosen is None else dataclasses.asdict(chosen),
        "prices_as_of": str(listed.as_of),
        "prices_age_days": listed.age_days(today),
    }


def _check_several(args: Args, count: int) -> None:
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


def _plan(args: Args, number: int, name: str | None) -> tuple[Plan, dict[str, Any]]:
    """Read one config, with its data set or an estimate of one; return the run and its results."""
    from bigbird_ja.accelerators import environment
    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.huggingface import run_settings
    from bigbird_ja.plan import estimate

    source = args.init_from and hub.fetched(args.init_from, "--init_from")
    place = args.data_dir[number] if args.data_dir else ""
    manifest = manifest_lib.load(place) if place else None
    adopted = []
    if source and manifest:
        adopted = run_settings.adopted_settings(source, manifest, place)
    elif source:
        adopted = run_settings.stated_settings(source)
    config, overrides = resolve(args, adopted, name)
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
    for warning in config_warnings(config, not source, overrides, data):
        log(f"warning: {warning}")
    planned = estimate.Plan(config, data, preemptions_per_hour=args.preemptions_per_hour)
    if args.preflight:
        path = args.preflight[number]
        planned = dataclasses.replace(planned, results=estimate.load_results(path))
        _check_length(planned, path)
        for warning in environment.compiler_warnings(planned.results.versions):
            log(f"warning: {path}: {warning}")
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
