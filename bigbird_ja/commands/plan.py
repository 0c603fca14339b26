"""Print tokens, steps, hours and money, before anything is rented.

  bigbird-ja plan --config base-4096 --data_dir gs://MY-BUCKET/data
  bigbird-ja plan --config base-4096 --preflight slices.json --finish_by 2026-12-24 --max_cost 300
  bigbird-ja plan --config modernbert-1024 --config modernbert-8192

Reads a config and, where given, a data set's manifest, `preflight --output` figures and a table of
prices. Writes nothing. Takes a second.

Several --config are runs one after the other, of which each goes on from the one before: a table of
the sum. --data_dir and --preflight then are given once for each, in the same order, or not at all.

Hours are of rented time with saves, restarts and the work that preemptions repeat. They depend on
the rate of training, on the rate of preemptions and on a dated table of prices by chip and zone.
Correct the last two by flags. The rate is 0.6 of what preflight counts by machine code, where there
is any (v5e, v6e), else the rate by the compiler's priced cycles; the table says which.

Compares one machine of each TPU from v2 to v7x, every slice in --preflight, and the free machines
of Kaggle and Colab. --finish_by picks the cheapest that is done by then, --max_cost alone the
fastest within it; both go by expected hours, which bad luck can exceed.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli import command_flags
from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import used_by

if TYPE_CHECKING:
    from bigbird_ja.accelerators.prices import Prices
    from bigbird_ja.plan.hours import Figures
    from bigbird_ja.plan.rows import DataFacts, Row
    from bigbird_ja.settings import Data
    from bigbird_ja.settings.schema import Config

EXAMPLE = "bigbird-ja plan --config base-4096"
SETTINGS = used_by("plan")
MANY_CONFIGS = True


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    guess, steps = "estimated from Wiki40b's size", ("tokens", "epochs", "num_train_steps")
    tokens: dict[str, Any] = {"low": 1, "high": 1e18, "excludes": steps[1:]}
    epochs: dict[str, Any] = {"low": 0.001, "high": 1e9, "excludes": (steps[0], steps[2])}
    usd: dict[str, Any] = {"unit": "US dollars", "above": 0, "high": 1e9, "none": "any"}
    share: dict[str, Any] = {"low": 0.001, "high": 1.0, "none": "by machine"}
    flags.path("data_dir", "Data set of `make-data`, one for each --config.", many=True, none=guess)
    flags.number("tokens", None, "Token budget: plans so many steps.", **tokens)
    flags.number("epochs", None, "Epochs of the data set: plans so many steps.", **epochs)
    flags.setting("training.num_train_steps")
    date = "Date (its end) or time to be done by, such as 2026-12-24T18:00."
    flags.text("finish_by", date, filled=True)
    flags.number("max_cost", None, "The most that it may cost.", **usd)
    alone, usual = "Compares these alone: v3-8, v5e-32.", "one machine of each TPU"
    flags.text("accelerator_type", alone, many=True, none=usual)
    rates = "FILE of `preflight --output`, one for each --config: rates from the real compiler."
    flags.path("preflight", rates, many=True)
    flags.number("mfu", None, "Share of the peak rate where preflight says nothing.", **share)
    flags.path("price_file", "YAML file over the built-in table of prices.")
    flags.number("preemptions_per_hour", 0.25, "Of a spot machine.", low=0.0, high=1000)
    region = "Where data and checkpoints lie, such as us-central1 or us."
    flags.text("bucket_region", region, filled=True)
    nearest = "the cheapest for each, beside the bucket"
    flags.words("zones", [], "Where the machine may be.", none=nearest)


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Plan one run, or several one after the other."""
    import datetime

    from bigbird_ja import accelerators
    from bigbird_ja.accelerators import prices
    from bigbird_ja.plan import comparison
    from bigbird_ja.plan.hours import Overheads
    from bigbird_ja.plan.rows import add_rows

    now = datetime.datetime.now().astimezone()
    hours = comparison.hours_until(args.finish_by, now) if args.finish_by else None
    table = prices.load(args.price_file)
    for zone in args.zones:
        table.check_zone(zone)
    runs, parts = _plan_each(args, table)
    result = runs[0] if len(runs) == 1 else {**_sum(runs), "runs": runs}
    made = add_rows(parts, [run["tokens"] for run in runs])
    result |= {
        "rows": [dataclasses.asdict(row) for row in made],
        "prices_as_of": str(table.as_of),
        "prices_age_days": table.age_days(now.date()),
    }
    chosen = cheapest = comparison.choose(made, math.inf, None)
    result["cheapest"] = None if cheapest is None else dataclasses.asdict(cheapest)
    if hours is not None or args.max_cost is not None:
        chosen = comparison.choose(made, hours, args.max_cost)
        result["choice"] = None if chosen is None else dataclasses.asdict(chosen)
    age = f"{table.describe_age(now.date())} ({table.source})"
    overheads = Overheads(args.preemptions_per_hour, runs[0]["checkpoint_seconds"])
    print(comparison.verdict(made, chosen, args.finish_by, args.max_cost))
    print(comparison.comparison(runs, made, overheads, age))
    offered = {row.accelerator for row in made}
    wanted = args.accelerator_type or accelerators.USUAL
    if absent := [name for name in wanted if accelerators.find(name).name not in offered]:
        print(f"not offered in {', '.join(args.zones)}: {', '.join(absent)}")
    return result


def _plan_each(
    args: absl_flags.FlagValues, table: Prices
) -> tuple[list[dict[str, Any]], list[list[Row]]]:
    """Plan each config; return its results, and its rows."""
    from bigbird_ja.plan import comparison, hours, rows

    names, here = command_flags.configs(args), _measure_here(time.perf_counter)
    _check_several(args, len(names))
    runs, parts = [], []
    for number, name in enumerate(names):
        config, data, epoch = _read(args, number, name)
        steps = rows.steps_for(config, data, args.tokens, args.epochs, epoch)
        interval = 60 * (config.checkpoints.save_every_minutes or 60.0)
        planned = rows.Plan(
            config,
            data,
            steps,
            epoch,
            table,
            hours.Overheads(args.preemptions_per_hour, interval),
            args.bucket_region,
            args.zones,
            _figures(args, number, config, data),
            args.mfu,
            here,
        )
        parts.append(rows.make_rows(planned, args.accelerator_type))
        batch, per_step = config.training.global_batch_size, hours.tokens_per_step(config, data)
        epochs = steps * batch / epoch.sequences if epoch.sequences else None
        runs.append(
            {
                "config": name,
                "tokens_per_step": per_step,
                "steps_per_epoch": epoch.sequences / batch if epoch.sequences else None,
                "steps": steps,
                "tokens": steps * per_step,
                "epochs": epochs,
                "assumption": epoch.assumption,
                "checkpoint_seconds": interval,
                "warnings": comparison.warnings_of_length(epochs, steps),
                "rows": [dataclasses.asdict(row) for row in parts[-1]],
            }
        )
    return runs, parts


def _check_several(args: absl_flags.FlagValues, count: int) -> None:
    """Refuse flags that do not go with so many configs.

    Raises:
        BadInput: one for each is needed, or a number of steps that all would share.
    """
    for flag in ("data_dir", "preflight"):
        given: list[str] = args[flag].value or []
        if given and len(given) != count:
            raise BadInput(
                f"--{flag} is there {len(given)} times, --config {count} times: give one for each,"
                " in the same order, or none"
            )
    for flag in ("tokens", "epochs", "num_train_steps"):
        if count > 1 and args[flag].value is not None:
            raise BadInput(f"--{flag} and several --config: each config has its own steps")


def _sum(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add up the results of several runs; None where no sum has a meaning."""
    per_step = {run["tokens_per_step"] for run in runs}
    return {
        "tokens_per_step": per_step.pop() if len(per_step) == 1 else None,
        "steps_per_epoch": None,
        "steps": sum(run["steps"] for run in runs),
        "tokens": sum(run["tokens"] for run in runs),
        "epochs": None,
        "assumption": "; ".join(filter(None, (run["assumption"] for run in runs))) or None,
        "warnings": [warning for run in runs for warning in run["warnings"]],
    }


def _measure_here(clock: Callable[[], float]) -> float:
    """Measure FLOP/s of this machine's float32 matrix products: the best of some 0.2 seconds."""
    import numpy as np

    side, best, start = 768, float("inf"), clock()
    ones = np.ones((side, side), np.float32)
    while clock() - start < 0.2:
        before = clock()
        ones @ ones
        best = min(best, clock() - before)
    return 2 * side**3 / best


def _read(
    args: absl_flags.FlagValues, number: int, name: str | None
) -> tuple[Config, Data, DataFacts]:
    """Read one config, and its data set or an estimate of one."""
    from bigbird_ja import storage
    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.plan import rows
    from bigbird_ja.settings import requested_data
    from bigbird_ja.settings.resolve import fit_to_data
    from bigbird_ja.settings.values import config_warnings

    config, overrides = command_flags.resolve(args, config_name=name)
    set_keys = {override.key for override in overrides if override.source == "--set"}
    for flag in ("tokens", "epochs"):
        if args[flag].present and "training.num_train_steps" in set_keys:
            raise BadInput(f"--{flag} and --set training.num_train_steps: give one of them")
    for warning in config_warnings(config):
        log(f"warning: {warning}")
    data_dir = args.data_dir[number] if args.data_dir else None
    if data_dir is None:
        data = requested_data(config)
        return fit_to_data(config, data, overrides), data, rows.estimated_data(data)
    manifest = manifest_lib.load(data_dir)
    where = storage.join(data_dir, "manifest.json")
    config = fit_to_data(config, manifest, overrides, where)
    return config, manifest, rows.manifest_data(manifest)


def _figures(args: absl_flags.FlagValues, number: int, config: Config, data: Data) -> Figures:
    """Read the figures of `preflight` for one config."""
    from bigbird_ja.plan.hours import Figures

    if not args.preflight:
        return Figures()
    from bigbird_ja.preflight import figures

    path = args.preflight[number]
    results = figures.load(path)
    training = config.training
    for entry in (*results.chips, *results.topologies):
        if entry.get("seq_length") not in (None, data.seq_length):
            raise BadInput(
                f"--preflight {path} is of sequences of {entry['seq_length']} tokens, the"
                f" config of {data.seq_length}: run preflight with this config"
            )
        devices = int(entry.get("devices") or config.tpu.num_cores)
        batch, wanted = entry.get("batch_per_core"), training.global_batch_size // devices
        if batch is not None and batch * training.gradient_accumulation_steps != wanted:
            where = entry.get("topology") or entry["chip"]
            log(f"note: preflight had {batch} sequences per core and micro-batch ({where})")
    return Figures(results.chips, results.topologies)
