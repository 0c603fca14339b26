"""The function `plan`: estimates for a run from its settings, data set and compiled step."""

import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.accelerators import environment
from bigbird_ja.accelerators.prices import load_prices
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import run_settings
from bigbird_ja.plan import estimate
from bigbird_ja.plan.estimate import Budget, Plan, Row
from bigbird_ja.preflight.results import PreflightResult, load_results
from bigbird_ja.process.console import log, warn
from bigbird_ja.settings.checks import list_config_warnings
from bigbird_ja.settings.data_facts import Data, derive_data
from bigbird_ja.settings.provenance import list_decided_by_data
from bigbird_ja.settings.resolve import (
    ConfigSource,
    base_layers,
    fit_to_data,
    given_layers,
    resolve_config,
)
from bigbird_ja.settings.variants import list_used_settings

# Additional rates of preemptions per hour, for which `plan` also shows the rented hours.
OTHER_PREEMPTIONS = (0.1, 1.0)


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """Steps and tokens of a run, and a row for each machine and pricing.

    Attributes:
        tokens_per_step: Tokens per optimizer step.
        steps_per_epoch: Steps per pass over the data set.
        steps: Steps of the run.
        tokens: Tokens of the run.
        epochs: Passes over the data set.
        assumption: Assumed data set, or None if one was given.
        compiler: Versions of the compiler's packages with which the rates were computed.
        rows: Estimates, cheapest first.
        cheapest: Cheapest rented machine that can finish, or None.
        preemptions_per_hour: Assumed preemptions of a spot machine.
        hours_by_preemptions: Rented hours of `cheapest` for each rate in `OTHER_PREEMPTIONS`, if
            `cheapest` is a spot machine.
        minutes_per_preemption: Minutes of repeated work and restart after a preemption.
        max_cost: Budget in US dollars, or None.
        max_cost_buys: Training that the budget pays for on each rented machine.
        prices_as_of: Oldest date of the prices.
        prices_age_days: Age of `prices_as_of` in days.
        prices_source: Source of the prices.
    """

    tokens_per_step: int
    steps_per_epoch: float
    steps: int
    tokens: int
    epochs: float
    assumption: str | None
    compiler: str
    rows: list[Row]
    cheapest: Row | None
    preemptions_per_hour: float
    hours_by_preemptions: dict[str, float | None]
    minutes_per_preemption: float
    max_cost: float | None
    max_cost_buys: list[Budget]
    prices_as_of: str
    prices_age_days: int
    prices_source: str


def plan(
    *,
    config: ConfigSource | None = None,
    overrides: Mapping[str, Any] | None = None,
    num_train_steps: int | None = None,
    data_dir: str | None = None,
    init_from: str | None = None,
    accelerator_types: Sequence[str] = (),
    preflight: str | None = None,
    price_file: str | None = None,
    max_cost: float | None = None,
    preemptions_per_hour: float = estimate.PREEMPTIONS_PER_HOUR,
) -> PlanResult:
    """Estimate tokens, hours and cost of a run on each machine.

    Args:
        config: Preset, YAML file or config.
        overrides: Values of settings, by key.
        num_train_steps: Steps of the run.
        data_dir: Data set of the run; by default the size of Wiki40b Japanese is assumed.
        init_from: Hugging Face folder to start from; its sizes replace the config's.
        accelerator_types: Machines to compare; by default one of each TPU generation and the free
            machines.
        preflight: Result file of `preflight`, for the rate of this run's step.
        price_file: YAML file that overrides built-in prices.
        max_cost: Budget in US dollars; the result contains the steps that it pays for.
        preemptions_per_hour: Expected preemptions of a spot machine.

    Raises:
        BadInput: A file cannot be read, the result of `preflight` is for another sequence length, a
            machine is unknown, or settings cannot be combined.
    """
    manifest = manifest_lib.load(data_dir) if data_dir else None
    layers = [
        *base_layers(config),
        *run_settings.plan_settings(init_from, manifest, data_dir or ""),
        *given_layers(overrides, {"training.num_train_steps": num_train_steps}),
    ]
    resolved, given = resolve_config(layers, list_used_settings("plan"))
    data: Data = manifest or derive_data(resolved)
    resolved = fit_to_data(resolved, data, given, data_dir or "")
    for line in list_decided_by_data(given, data) if manifest else ():
        log(line)
    warn(list_config_warnings(resolved, not init_from, given, data))
    run = Plan(resolved, data, preemptions_per_hour=preemptions_per_hour)
    if preflight:
        run = dataclasses.replace(run, results=_read_results(preflight, data.seq_length))
    about = _describe(run, manifest)
    prices, today = load_prices(price_file), datetime.date.today()
    region = storage.get_bucket_location(data_dir) if data_dir else None
    rows = estimate.make_rows(run, prices, accelerator_types, region or "")
    chosen = estimate.find_cheapest(rows)
    bought = estimate.make_budget_rows(run, rows, max_cost, about["epochs"]) if max_cost else []
    oldest = min((row.price_as_of for row in rows if row.price_as_of), default=str(prices.as_of))
    return PlanResult(
        **about,
        rows=rows,
        cheapest=chosen,
        preemptions_per_hour=preemptions_per_hour,
        hours_by_preemptions=estimate.list_hours_by_preemptions(run, chosen, OTHER_PREEMPTIONS),
        minutes_per_preemption=(run.checkpoint_interval / 2 + estimate.RESTART_SECONDS) / 60,
        max_cost=max_cost,
        max_cost_buys=bought,
        prices_as_of=oldest,
        prices_age_days=(today - datetime.date.fromisoformat(oldest)).days,
        prices_source=prices.source,
    )


def _describe(run: Plan, manifest: Manifest | None) -> dict[str, Any]:
    """Return the fields of the result that do not depend on machines."""
    data, training = run.data, run.config.training
    if manifest:
        sequences, assumption = sum(shard.records for shard in manifest.train_shards), None
    else:
        tokens = estimate.WIKI40B_JA_BYTES / estimate.BYTES_PER_TOKEN
        sequences = math.ceil(tokens / data.seq_length)
        assumption = (
            "without `data_dir`, Wiki40b Japanese is assumed:"
            f" {estimate.WIKI40B_JA_BYTES / 1e9:.1f} GB of text at {estimate.BYTES_PER_TOKEN:.0f}"
            f" bytes per token, in full sequences of {data.seq_length} tokens"
        )
    return {
        "tokens_per_step": estimate.count_tokens_per_step(run.config, data),
        "steps_per_epoch": sequences / training.global_batch_size,
        "steps": training.num_train_steps,
        "tokens": run.tokens,
        "epochs": training.num_train_steps * training.global_batch_size / sequences,
        "assumption": assumption,
        "compiler": environment.describe(run.results.versions),
    }


def _read_results(path: str, seq_length: int) -> PreflightResult:
    """Read a result file of `preflight`, and warn if rented machines use other compiler versions.

    Raises:
        BadInput: The file is missing, is not a result of `preflight`, or is for sequences of
            another length than `seq_length`.
    """
    results = load_results(path)
    for step in (*results.chips, *results.topologies):
        if step.seq_length != seq_length:
            raise BadInput(
                f"`preflight` {path} is for sequences of {step.seq_length} tokens, but the config"
                f" is for {seq_length}: run preflight with this config"
            )
    warn(f"{path}: {each}" for each in environment.list_compiler_warnings(results.versions))
    return results
