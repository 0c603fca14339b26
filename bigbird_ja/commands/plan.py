"""tokens, steps, hours and money, before anything is rented

  bigbird-ja plan --config base-4096 --data_dir gs://MY-BUCKET/data --plot plan.png
  bigbird-ja plan --config base-4096 --preflight slices.json --finish_by 2026-12-24 --max_cost 300

Reads a config and, where given, a data set's manifest, `preflight --output` figures and a table of
prices. Writes nothing but the plot. Takes a second; --simulate some twenty.

Hours are of rented time with saves, restarts and the work that preemptions repeat; they rest on the
rate of training (preflight figures, else an assumed share of the peak, printed), on the rate of
preemptions and on a dated table of prices by chip and zone. The last two are yours to correct.

Compares one machine of each TPU from v2 to v7x, every slice in --preflight, and what Kaggle and
Colab lend. --finish_by takes the cheapest that is done by then, --max_cost alone the fastest within
it; both hold expected hours, which a run of bad luck exceeds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.settings.schema import PLAN_SETTINGS

if TYPE_CHECKING:
    from bigbird_ja.plan.cost import Overheads
    from bigbird_ja.plan.rows import DataFacts, Figures, Row
    from bigbird_ja.settings.resolve import Override
    from bigbird_ja.settings.schema import Config

EXAMPLE = "bigbird-ja plan --config base-4096"
SETTINGS = PLAN_SETTINGS

_SIMULATED_MINUTES = (1.0, 2.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 60.0)


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    _define_run(flags)
    _define_simulation(flags)


def _define_run(flags: Flags) -> None:
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
        "accelerator_type", "Compares these alone: v3-8, v5e-32, A100.", many=True,
        none="one machine of each TPU",
    )  # fmt: skip
    flags.switch("gpus", "Compares GPUs of 2016 to 2020 too (K80, V100, A100).")
    flags.path("preflight", "FILE of `preflight --output`: rates from the real compiler.")
    flags.number(
        "mfu", None, "Share of the peak rate where preflight says nothing.", low=0.001, high=1.0,
        none="by machine",
    )  # fmt: skip
    flags.path("prices", "YAML file over the built-in table of prices.")
    flags.number("preemptions_per_hour", 0.25, "Of a spot machine.", low=0.0, high=1000)
    flags.number(
        "restart_minutes", 6.0, "From READY to the first step.", unit="minutes", low=0.0, high=1e5
    )
    flags.number(
        "absent_minutes", 5.0, "From a preemption to the next READY; not billed.", unit="minutes",
        low=0.0, high=1e5,
    )  # fmt: skip
    flags.number(
        "save_seconds", 15.0, "Training stands still so long for a checkpoint.", unit="seconds",
        low=0.0, high=86_400,
    )  # fmt: skip
    flags.text(
        "bucket_region", "Where data and checkpoints lie, such as us-central1 or us.", filled=True
    )
    flags.text(
        "zone",
        "Where the machine is.",
        filled=True,
        none="the cheapest for each, beside the bucket",
    )
    flags.path("plot", "PNG of cost against time.")


def _define_simulation(flags: Flags) -> None:
    needs = ("simulate", "simulate_plot")
    flags.switch(
        "simulate", "Runs `launch`'s supervisor against modelled preemptions, and reports useful"
        " time against the checkpoint interval.",
    )  # fmt: skip
    flags.number(
        "simulate_days", 60.0, "Of training in a simulated run.", unit="days", low=0.1, high=1000,
        needs=needs,
    )  # fmt: skip
    flags.integers(
        "seeds", [1, 2, 3], "Seeds of the simulation.", low=0, high=2**32 - 1, needs=needs
    )
    flags.path("simulate_plot", "PNG of useful time against checkpoint interval.")


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Plans."""
    import datetime

    from bigbird_ja.accelerators import hardware, prices
    from bigbird_ja.plan import cost, plan_text, verdict
    from bigbird_ja.plan import rows as plan
    from bigbird_ja.process.console import LiveLine
    from bigbird_ja.storage import plotting

    plotting.check(args.plot, "--plot")
    plotting.check(args.simulate_plot, "--simulate_plot")
    now = datetime.datetime.now().astimezone()
    hours = verdict.hours_until(args.finish_by, now) if args.finish_by else None
    table = prices.load(args.prices)
    if args.zone:
        table.check_zone(args.zone)
    config, data = _read(args)
    steps = plan.steps_for(config, args.tokens, args.epochs, data)
    overheads = _overheads(args, config)
    names = args.accelerator_type
    also = tuple(hardware.GPUS) if args.gpus else ()
    rows = plan.make_rows(
        plan.Run(
            config, steps, data, table, overheads, args.bucket_region, args.zone,
            _figures(args, config), args.mfu,
        ),
        names,
        also,
    )  # fmt: skip
    result = _result(config, steps, data, rows, verdict.nonsense)
    result["prices_as_of"] = str(table.as_of)
    result["prices_age_days"] = table.age_days(now.date())
    age = f"{table.describe_age(now.date())} ({table.source})"
    width = LiveLine(sys.stdout).columns()
    print(plan_text.comparison(result, rows, overheads, age, width))
    shown = {row.accelerator for row in rows}
    wanted = names or hardware.USUAL
    if absent := [name for name in wanted if hardware.find(name).name not in shown]:
        print(f"not to be had in {args.zone}: {', '.join(absent)}")
    if args.finish_by or args.max_cost is not None:
        chosen = verdict.choose(rows, hours, args.max_cost)
        result["choice"] = None if chosen is None else plan.as_json([chosen])[0]
        print("\n" + plan_text.choice(chosen, rows, args.finish_by, args.max_cost))
    if args.plot:
        from bigbird_ja.plan import plots

        per_step = cost.tokens_per_step(config)
        plots.cost_against_time(rows, args.plot, f"{steps:,} steps of {per_step:,} tokens")
        print(f"plot: {args.plot}")
    if args.simulate or args.simulate_plot:
        result["simulation"] = _simulate(args, config)
    return result


def _result(
    config: Config, steps: int, data: DataFacts, rows: list[Row], nonsense: Any
) -> dict[str, Any]:
    from bigbird_ja.plan import cost
    from bigbird_ja.plan import rows as plan

    per_step = cost.tokens_per_step(config)
    batch = config.training.global_batch_size
    epochs = steps * batch / data.sequences if data.sequences else None
    return {
        "tokens_per_step": per_step,
        "steps_per_epoch": data.sequences / batch if data.sequences else None,
        "steps": steps,
        "tokens": steps * per_step,
        "epochs": epochs,
        "assumption": data.assumption,
        "warnings": nonsense(epochs, steps),
        "rows": plan.as_json(rows),
    }


def _read(args: absl_flags.FlagValues) -> tuple[Config, DataFacts]:
    from bigbird_ja import storage
    from bigbird_ja.cli import command_flags
    from bigbird_ja.plan import rows as plan
    from bigbird_ja.process.console import log
    from bigbird_ja.settings.resolve import complete_config
    from bigbird_ja.settings.validate import config_warnings

    config, overrides = command_flags.resolve(args)
    _check_length(args, overrides)
    for warning in config_warnings(config):
        log(f"warning: {warning}")
    if not args.data_dir:
        config = complete_config(config, overrides)
        return config, plan.estimated_data(config)
    from bigbird_ja.data import manifest as manifest_lib

    manifest = manifest_lib.load(args.data_dir)
    where = storage.join(args.data_dir, "manifest.json")
    config = complete_config(config, overrides, manifest.as_settings(), where)
    return config, plan.manifest_data(manifest)


def _check_length(args: absl_flags.FlagValues, overrides: Sequence[Override]) -> None:
    """Refuses two lengths of the run of which one is a setting; flags exclude each other."""
    from bigbird_ja.process.errors import BadInput

    for flag in ("tokens", "epochs"):
        for override in overrides:
            is_steps = override.key == "training.num_train_steps"
            if args[flag].present and is_steps and override.source == "--set":
                raise BadInput(f"--{flag} and --set {override.key}: give one of them")


def _overheads(args: absl_flags.FlagValues, config: Config) -> Overheads:
    from bigbird_ja.plan.cost import Overheads

    minutes = config.checkpoints.save_every_minutes or 60.0
    return Overheads(
        args.preemptions_per_hour,
        minutes * 60,
        args.save_seconds,
        args.restart_minutes * 60,
        args.absent_minutes * 60,
    )


def _figures(args: absl_flags.FlagValues, config: Config) -> Figures:
    from bigbird_ja.plan.rows import Figures
    from bigbird_ja.process.console import log
    from bigbird_ja.process.errors import BadInput

    if not args.preflight:
        return Figures()
    from bigbird_ja.preflight import rates

    results = rates.load(args.preflight)
    training = config.training
    for entry in (*results.chips, *results.topologies):
        if entry.get("seq_length") not in (None, config.make_data.seq_length):
            raise BadInput(
                f"--preflight {args.preflight} is of sequences of {entry['seq_length']} tokens, the"
                f" config of {config.make_data.seq_length}: run preflight with this config"
            )
        devices = int(entry.get("devices") or config.tpu.num_cores)  # type: ignore[call-overload]
        batch, wanted = entry.get("batch_per_core"), training.global_batch_size // devices
        if batch is not None and batch * training.gradient_accumulation_steps != wanted:
            where = entry.get("topology") or entry["chip"]
            log(f"note: preflight had {batch} sequences per core and micro-batch ({where})")
    return Figures(results.chips, results.topologies)


def _simulate(args: absl_flags.FlagValues, config: Config) -> dict[str, Any]:
    from bigbird_ja.launch import simulate
    from bigbird_ja.plan import plots
    from bigbird_ja.process.console import log, table
    from bigbird_ja.process.errors import BadInput

    if not args.preemptions_per_hour:
        raise BadInput("--simulate needs --preemptions_per_hour above 0")
    mean_hours = 1 / args.preemptions_per_hour
    found = {}
    for model in simulate.MODELS:
        log(f"simulating {args.simulate_days:g} days of training, {model} preemptions")
        found[model] = simulate.sweep(
            model, mean_hours, args.simulate_days, _SIMULATED_MINUTES,
            args.seeds, args.save_seconds, args.restart_minutes * 60,
        )  # fmt: skip
    print(f"\nuseful share of rented time, one preemption in {mean_hours:g} h:")
    rows = [
        (f"{points[0].interval_minutes:g} min", *(f"{p.share:.1%}" for p in points))
        for points in zip(*found.values(), strict=True)
    ]
    print(table(rows, ("checkpoint every", *found)))
    best = {model: simulate.best(points).interval_minutes for model, points in found.items()}
    default = config.checkpoints.save_every_minutes
    print(f"best: {', '.join(f'{m}: {b:g} min' for m, b in best.items())}; config: {default:g} min")
    if args.simulate_plot:
        curves = {
            model: [(p.interval_minutes, p.share, p.lowest, p.highest) for p in points]
            for model, points in found.items()
        }
        plots.useful_share(curves, default, args.simulate_plot)
        print(f"plot: {args.simulate_plot}")
    return {
        "best_minutes": best,
        "points": {model: [vars(p) for p in points] for model, points in found.items()},
    }
