"""tokens, steps, hours and money, before anything is rented

  bigbird-ja plan --config base-4096 --data_dir gs://MY-BUCKET/data --plot plan.png
  bigbird-ja plan --config base-4096 --preflight slices.json --finish_by 2026-12-24 --max_cost 300

Reads a config and, where given, a data set's manifest, `preflight --output` figures and a table of
prices. Writes only the plot. Takes a second.

Hours are of rented time with saves, restarts and the work that preemptions repeat. They depend on
the rate of training, on the rate of preemptions and on a dated table of prices by chip and zone.
Correct the last two by flags. The rate is 0.6 of what preflight counts by machine code, where there
is any (v5e, v6e), else the rate by the compiler's priced cycles; the other one stands below.

Compares one machine of each TPU from v2 to v7x, every slice in --preflight, and the free machines
of Kaggle and Colab. --finish_by picks the cheapest that is done by then, --max_cost alone the
fastest within it; both go by expected hours, which bad luck can exceed.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli import command_flags
from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import PLAN_SETTINGS

if TYPE_CHECKING:
    from bigbird_ja.plan.rows import DataFacts, Figures
    from bigbird_ja.settings.data import Data
    from bigbird_ja.settings.schema import Config

EXAMPLE = "bigbird-ja plan --config base-4096"
SETTINGS = PLAN_SETTINGS


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    flags.path("data_dir", "Data set of `make-data`.", none="estimated from Wiki40b's size")
    flags.number(
        "tokens", None, "Token budget: plans so many steps.", low=1, high=1e18,
        excludes=("epochs", "num_train_steps"),
    )  # fmt: skip
    flags.number(
        "epochs", None, "Epochs of the data set: plans so many steps.", low=0.001, high=1e9,
        excludes=("tokens", "num_train_steps"),
    )  # fmt: skip
    flags.setting("training.num_train_steps")
    flags.text(
        "finish_by", "Date (its end) or time to be done by, such as 2026-12-24T18:00.", filled=True
    )
    flags.number(
        "max_cost", None, "The most that it may cost.", unit="US dollars", above=0, high=1e9,
        none="any",
    )  # fmt: skip
    flags.text(
        "accelerator_type", "Compares these alone: v3-8, v5e-32.", many=True,
        none="one machine of each TPU",
    )  # fmt: skip
    flags.path("preflight", "FILE of `preflight --output`: rates from the real compiler.")
    flags.number(
        "mfu", None, "Share of the peak rate where preflight says nothing.", low=0.001, high=1.0,
        none="by machine",
    )  # fmt: skip
    flags.path("price_file", "YAML file over the built-in table of prices.")
    flags.number("preemptions_per_hour", 0.25, "Of a spot machine.", low=0.0, high=1000)
    flags.text(
        "bucket_region", "Where data and checkpoints lie, such as us-central1 or us.", filled=True
    )
    flags.words(
        "zones", [], "Where the machine may be.", none="the cheapest for each, beside the bucket"
    )
    flags.path("plot", "PNG of cost against time.")


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Plans."""
    import datetime

    from bigbird_ja.accelerators import hardware, prices
    from bigbird_ja.plan import comparison, rows
    from bigbird_ja.storage import outputs

    if args.plot:
        outputs.check_output_file(args.plot, "--plot")
    now = datetime.datetime.now().astimezone()
    hours = comparison.hours_until(args.finish_by, now) if args.finish_by else None
    table = prices.load(args.price_file)
    for zone in args.zones:
        table.check_zone(zone)
    config, data, epoch = _read(args)
    steps = rows.steps_for(config, data, args.tokens, args.epochs, epoch)
    overheads = rows.Overheads(
        args.preemptions_per_hour, 60 * (config.checkpoints.save_every_minutes or 60.0)
    )
    planned = rows.Run(
        config, data, steps, epoch, table, overheads, args.bucket_region, args.zones,
        _figures(args, config, data), args.mfu, _measure_here(time.perf_counter),
    )  # fmt: skip
    names = args.accelerator_type
    made = rows.make_rows(planned, names)
    batch, per_step = config.training.global_batch_size, rows.tokens_per_step(config, data)
    epochs = steps * batch / epoch.sequences if epoch.sequences else None
    result: dict[str, Any] = {
        "tokens_per_step": per_step,
        "steps_per_epoch": epoch.sequences / batch if epoch.sequences else None,
        "steps": steps,
        "tokens": steps * per_step,
        "epochs": epochs,
        "assumption": epoch.assumption,
        "warnings": comparison.warnings_of_length(epochs, steps),
        "rows": [dataclasses.asdict(row) for row in made],
        "prices_as_of": str(table.as_of),
        "prices_age_days": table.age_days(now.date()),
    }
    age = f"{table.describe_age(now.date())} ({table.source})"
    chosen = cheapest = comparison.choose(made, math.inf, None)
    result["cheapest"] = None if cheapest is None else dataclasses.asdict(cheapest)
    if hours is not None or args.max_cost is not None:
        chosen = comparison.choose(made, hours, args.max_cost)
        result["choice"] = None if chosen is None else dataclasses.asdict(chosen)
    print(comparison.verdict(made, chosen, args.finish_by, args.max_cost))
    print(comparison.comparison(result, made, overheads, age))
    offered = {row.accelerator for row in made}
    wanted = names or hardware.USUAL
    if absent := [name for name in wanted if hardware.find(name).name not in offered]:
        print(f"not offered in {', '.join(args.zones)}: {', '.join(absent)}")
    if args.plot:
        comparison.plot(made, args.plot, f"{steps:,} steps of {per_step:,} tokens")
        print(f"plot: {args.plot}")
    return result


def _measure_here(clock: Callable[[], float]) -> float:
    """FLOP/s of this machine's float32 matrix products: the best of some 0.2 seconds."""
    import numpy as np

    side, best, start = 768, float("inf"), clock()
    ones = np.ones((side, side), np.float32)
    while clock() - start < 0.2:
        before = clock()
        ones @ ones
        best = min(best, clock() - before)
    return 2 * side**3 / best


def _read(args: absl_flags.FlagValues) -> tuple[Config, Data, DataFacts]:
    from bigbird_ja import storage
    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.plan import rows
    from bigbird_ja.settings.data import requested_data
    from bigbird_ja.settings.resolve import fit_to_data
    from bigbird_ja.settings.values import config_warnings

    config, overrides = command_flags.resolve(args)
    set_keys = {override.key for override in overrides if override.source == "--set"}
    for flag in ("tokens", "epochs"):
        if args[flag].present and "training.num_train_steps" in set_keys:
            raise BadInput(f"--{flag} and --set training.num_train_steps: give one of them")
    for warning in config_warnings(config):
        log(f"warning: {warning}")
    if not args.data_dir:
        data = requested_data(config)
        return fit_to_data(config, data, overrides), data, rows.estimated_data(data)
    manifest = manifest_lib.load(args.data_dir)
    where = storage.join(args.data_dir, "manifest.json")
    config = fit_to_data(config, manifest, overrides, where)
    return config, manifest, rows.manifest_data(manifest)


def _figures(args: absl_flags.FlagValues, config: Config, data: Data) -> Figures:
    from bigbird_ja.plan.rows import Figures

    if not args.preflight:
        return Figures()
    from bigbird_ja.preflight import figures

    results = figures.load(args.preflight)
    training = config.training
    for entry in (*results.chips, *results.topologies):
        if entry.get("seq_length") not in (None, data.seq_length):
            raise BadInput(
                f"--preflight {args.preflight} is of sequences of {entry['seq_length']} tokens, the"
                f" config of {data.seq_length}: run preflight with this config"
            )
        devices = int(entry.get("devices") or config.tpu.num_cores)
        batch, wanted = entry.get("batch_per_core"), training.global_batch_size // devices
        if batch is not None and batch * training.gradient_accumulation_steps != wanted:
            where = entry.get("topology") or entry["chip"]
            log(f"note: preflight had {batch} sequences per core and micro-batch ({where})")
    return Figures(results.chips, results.topologies)
