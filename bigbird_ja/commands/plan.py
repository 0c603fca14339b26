"""tokens, steps, hours and money, before anything is rented

  bigbird-ja plan --config base-4096 --data_dir gs://MY-BUCKET/data --plot plan.png

Reads a config and, where given, a data set's manifest, `preflight --output` figures and a table of
prices. Writes nothing but the plot. Takes a second; --simulate some twenty.

Hours are of rented time with saves, restarts and the work that preemptions repeat; they rest on the
rate of training (preflight figures, else an assumed share of the peak, printed), on the rate of
preemptions and on a dated table of prices. The last two are yours to correct.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.command_flags import Flags
from bigbird_ja.config.schema import RUN_SETTINGS

if TYPE_CHECKING:
    from bigbird_ja.cloud.cost import Overheads
    from bigbird_ja.cloud.plan import DataFacts, Row
    from bigbird_ja.config import Config
    from bigbird_ja.preflight.rates import ChipResult

EXAMPLE = "bigbird-ja plan --config base-4096"
SETTINGS = RUN_SETTINGS

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
    flags.text("bucket_region", "Where data and checkpoints lie, such as us-central1 or us.")
    flags.text("zone", "Where the machine is.")
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

    from bigbird_ja import plotting
    from bigbird_ja.cloud import accelerators, cost, plan, prices

    plotting.check(args.plot, "--plot")
    plotting.check(args.simulate_plot, "--simulate_plot")
    if args.zone:
        accelerators.check_zone(args.zone)
    config, data = _read(args)
    steps = plan.steps_for(config, args.tokens, args.epochs, data)
    table = prices.load(args.prices)
    overheads = _overheads(args, config)
    chips = _preflight_chips(args, config)
    rows = plan.make_rows(
        config, steps, data, table, overheads,
        bucket_region=args.bucket_region, zone=args.zone, preflight_chips=chips, mfu=args.mfu,
    )  # fmt: skip
    per_step = cost.tokens_per_step(config)
    batch = config.training.global_batch_size
    result: dict[str, Any] = {
        "tokens_per_step": per_step,
        "steps_per_epoch": data.sequences / batch if data.sequences else None,
        "steps": steps,
        "tokens": steps * per_step,
        "epochs": steps * batch / data.sequences if data.sequences else None,
        "assumption": data.assumption,
        "prices_as_of": str(table.as_of),
        "prices_age_days": table.age_days(datetime.date.today()),
        "rows": plan.as_json(rows),
    }
    print(_text(result, rows, overheads, table.describe_age(datetime.date.today())))
    if args.plot:
        from bigbird_ja.cloud import plots

        plots.cost_against_time(rows, args.plot, f"{steps:,} steps of {per_step:,} tokens")
        print(f"plot: {args.plot}")
    if args.simulate or args.simulate_plot:
        result["simulation"] = _simulate(args, config)
    return result


def _read(args: absl_flags.FlagValues) -> tuple[Config, DataFacts]:
    from bigbird_ja import command_flags, storage
    from bigbird_ja import config as config_lib
    from bigbird_ja.cloud import plan
    from bigbird_ja.console import log

    config, overrides = command_flags.resolve(args)
    for warning in config_lib.warnings(config):
        log(f"warning: {warning}")
    if not args.data_dir:
        config = config_lib.without_data_set(config)
        return config, plan.estimated_data(config)
    from bigbird_ja.data import manifest as manifest_lib

    manifest = manifest_lib.load(args.data_dir)
    where = storage.join(args.data_dir, "manifest.json")
    config = config_lib.with_data_set(config, manifest.fixed(), overrides, where)
    return config, plan.manifest_data(manifest)


def _overheads(args: absl_flags.FlagValues, config: Config) -> Overheads:
    from bigbird_ja.cloud.cost import Overheads

    minutes = config.checkpoints.save_every_minutes or 60.0
    return Overheads(
        args.preemptions_per_hour,
        minutes * 60,
        args.save_seconds,
        args.restart_minutes * 60,
        args.absent_minutes * 60,
    )


def _preflight_chips(args: absl_flags.FlagValues, config: Config) -> list[ChipResult]:
    from bigbird_ja.console import log
    from bigbird_ja.errors import BadInput

    if not args.preflight:
        return []
    from bigbird_ja.preflight import rates

    chips = rates.load(args.preflight)
    for chip in chips:
        if chip.get("seq_length") not in (None, config.data.seq_length):
            raise BadInput(
                f"--preflight {args.preflight} is of sequences of {chip['seq_length']} tokens, the"
                f" config of {config.data.seq_length}: run preflight with this config"
            )
        batch = chip.get("batch_per_core")
        wanted = config.training.global_batch_size // config.tpu.num_cores
        if batch is not None and batch * config.training.gradient_accumulation_steps != wanted:
            log(f"note: preflight had {batch} sequences per core and micro-batch ({chip['chip']})")
    return chips


def _text(result: dict[str, Any], rows: list[Row], overheads: Overheads, prices_age: str) -> str:
    from bigbird_ja.cloud import cost
    from bigbird_ja.console import human_count, human_time, table

    lines = [
        f"{result['steps']:,} steps of {result['tokens_per_step']:,} tokens:"
        f" {human_count(result['tokens'])} tokens"
    ]
    if result["epochs"] is not None:
        lines[0] += f", {result['epochs']:.1f} epochs of {result['steps_per_epoch']:,.0f} steps"
    if result["assumption"]:
        lines.append(result["assumption"])
    lines.append("")
    shown = [
        (
            row.accelerator, row.pricing.replace("_", " "), f"{row.tokens_per_second:,.0f}",
            row.rate_source, _number(row.hours, ",.1f"),
            human_time(row.wall_hours * 3600) if row.wall_hours is not None else "never",
            _number(row.preemptions, ",.0f"), f"{row.usd_per_hour:.2f}",
            _number(row.cost_usd, ",.0f"), row.note,
        )
        for row in rows
    ]  # fmt: skip
    header = (
        "machine", "pricing", "tokens/s", "rate from", "rented h", "done after", "preempted",
        "$/h", "cost $", "note",
    )  # fmt: skip
    lines += [table(shown, header), ""]
    lines.append(
        f"spot: {overheads.preemptions_per_hour:g} preemptions per hour, each costs half of the"
        f" {overheads.checkpoint_interval / 60:g} minutes between checkpoints and"
        f" {overheads.restart_seconds / 60:g} minutes of restart; cost includes storage and egress;"
        f" at this rate the best interval is {cost.best_interval(overheads) / 60:.0f} minutes"
    )
    lines.append(prices_age)
    return "\n".join(lines)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _simulate(args: absl_flags.FlagValues, config: Config) -> dict[str, Any]:
    from bigbird_ja.cloud import plots, simulate
    from bigbird_ja.console import log, table
    from bigbird_ja.errors import BadInput

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
