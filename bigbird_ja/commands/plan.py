"""Print tokens, steps, hours and money, before anything is rented.

  bigbird-ja plan --config base-4096 --data_dir gs://MY-BUCKET/data
  bigbird-ja plan --config base-4096 --preflight slices.json
  bigbird-ja plan --config modernbert-1024 --config modernbert-8192
  bigbird-ja plan --config continue-8192 --init_from encoder --max_cost 5

Reads a config and, where given, the config.json of --init_from, a data set's manifest, `preflight
--output` figures and a table of prices. Writes nothing. Takes a second.

Several --config are runs one after the other, each from the weights of the one before, with a
table of the sum. --data_dir and --preflight then are given once for each, in order, or not at all.
With --init_from all have the sizes of that encoder. --max_cost also shows how many steps, tokens
and epochs that money buys on each machine.

Hours are of rented time with saves, restarts and the work that preemptions repeat. The rate of
training is by machine code (v5e, v6e), as far as real chips reached it in steps of others
(docs/lab/clock.md), elsewhere by the compiler's priced cycles; the table says which, and gives the
interval. Money is of the machine alone: what a base model stores costs less than a dollar a month,
and traffic within a region nothing.

Compares one machine of each TPU from v2 to v7x, every slice in --preflight, and the free machines
of Kaggle and Colab. Zones are those that `launch` tries by default: in the region and on the
continent of --data_dir, without it in the US, since traffic from another continent costs more than
a cheaper zone there saves. A price is that of the dearest of them.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bigbird_ja import storage
from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import resolve
from bigbird_ja.process.console import human_count, log, table
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.checks import config_warnings
from bigbird_ja.settings.data_facts import Data, requested_data
from bigbird_ja.settings.provenance import decided_by_data
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.schema import used_by
from bigbird_ja.storage import hub

if TYPE_CHECKING:
    from bigbird_ja.plan.estimate import Plan, Results, Row

EXAMPLE = "bigbird-ja plan --config base-4096"
SETTINGS = used_by("plan")
MANY_CONFIGS = True
_WIDTH = 768  # hidden size of the models for which `accelerators` has shares of the peak
_HEADER = ("machine", "tokens/s", "done after", "spot USD", "zone", "on demand USD")


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    guess = "estimated from Wiki40b's size"
    flags.path("data_dir", "Data set of `make-data`, one for each --config.", many=True, none=guess)
    flags.path(
        "init_from",
        "Hugging Face folder as of `pretrain --init_from`: its sizes replace the config's.",
    )
    flags.setting("training.num_train_steps")
    alone, usual = "Compares only these: v5e-8, v5e-32.", "one machine of each TPU"
    flags.text("accelerator_type", alone, many=True, none=usual)
    rates = "FILE of `preflight --output`, one for each --config: rates from the real compiler."
    flags.path("preflight", rates, many=True)
    flags.path("price_file", "YAML file over the built-in table of prices.")
    budget = "Budget: the table shows what it buys."
    flags.number("max_cost", None, budget, unit="US dollars", low=0.01, high=1e9, none="no budget")
    flags.number("preemptions_per_hour", 0.25, "Of a spot machine.", low=0.0, high=1000)


def run(args: Args) -> dict[str, Any]:
    """Plan one run, or several one after the other."""
    from bigbird_ja import accelerators
    from bigbird_ja.plan import estimate

    names = args.config or [None]
    _check_several(args, len(names))
    pairs = [_plan(args, number, name) for number, name in enumerate(names)]
    plans, runs = [each for each, _ in pairs], [about for _, about in pairs]
    listed, today = accelerators.load_prices(args.price_file), datetime.date.today()
    region = storage.bucket_location(args.data_dir[0]) if args.data_dir else None
    made = estimate.make_rows(plans, listed, args.accelerator_type, region or "")
    chosen = estimate.cheapest(made)
    bought = _bought(plans[0], runs[0], made, args.max_cost) if args.max_cost else []
    print(_verdict(chosen, [row for row in made if _is_free(row)]))
    if bought:
        print(f"\n{_affordable(bought, args.max_cost)}\n")
    print(_describe(plans, runs, made, listed.describe_age(today)))
    return {
        **({"max_cost_buys": bought} if bought else {}),
        **(runs[0] if len(runs) == 1 else {**_sum(runs), "runs": runs}),
        "rows": [dataclasses.asdict(row) for row in made],
        "cheapest": None if chosen is None else dataclasses.asdict(chosen),
        "prices_as_of": str(listed.as_of),
        "prices_age_days": listed.age_days(today),
    }


def _check_several(args: Args, count: int) -> None:
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
    adopted = run_settings.stated_settings(source) if source else []
    config, overrides = resolve(args, adopted, name)
    data: Data
    if args.data_dir:
        data = manifest_lib.load(args.data_dir[number])
        if source:
            adopted = run_settings.adopted_settings(source, None, data, args.data_dir[number])
            config, overrides = resolve(args, adopted, name)
        config = fit_to_data(config, data, overrides, args.data_dir[number])
        for line in decided_by_data(overrides, data):
            log(line)
        sequences, assumption = sum(shard.records for shard in data.train_shards), None
    else:
        data = requested_data(config)
        config = fit_to_data(config, data, overrides)
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
        results = _results(args.preflight[number], data.seq_length)
        planned = dataclasses.replace(planned, results=results)
        for warning in environment.compiler_warnings(results.versions):
            log(f"warning: {args.preflight[number]}: {warning}")
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


def _results(path: str, seq_length: int) -> Results:
    """Read the results of `preflight` for sequences of that length."""
    from bigbird_ja.plan.estimate import load_results

    results = load_results(path)
    for step in (*results.chips, *results.topologies):
        if step.get("seq_length", seq_length) != seq_length:
            raise BadInput(
                f"--preflight {path} is of sequences of {step['seq_length']} tokens, the config of"
                f" {seq_length}: run preflight with this config"
            )
    return results


def _bought(
    run: Plan, about: dict[str, Any], rows: Sequence[Row], budget: float
) -> list[dict[str, Any]]:
    """Compute what a budget buys on each rented machine, most first."""
    from bigbird_ja.plan import estimate

    shares = [
        (estimate.affordable_share(run, row, budget), row) for row in rows if not _is_free(row)
    ]
    return [
        {
            **{"accelerator": row.accelerator, "pricing": row.pricing, "share": share},
            **{key: share * about[key] for key in ("steps", "tokens", "epochs")},
        }
        for share, row in sorted(shares, key=lambda pair: -(pair[0] or 0.0))
        if share is not None
    ]


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
        "compiler": "; ".join(dict.fromkeys(run["compiler"] for run in runs)),
    }


# --- for people: at most 79 columns -------------------------------------------------------------


def _affordable(bought: Sequence[dict[str, Any]], budget: float) -> str:
    """Format what a budget buys."""
    cells = [
        [each["accelerator"], each["pricing"].replace("_", " "), human_count(each["steps"])]
        + [human_count(each["tokens"]), _short(each["epochs"]), f"{each['share']:.0%}"]
        for each in bought
    ]
    header = (f"{budget:g} USD buy on", "pricing", "steps", "tokens", "epochs", "of the run")
    return table(cells, header)


def _verdict(chosen: Row | None, free: Sequence[Row]) -> str:
    """Name the free machines, then the cheapest one to rent, and how to rent it."""
    names = [f"{row.accelerator} of {row.pricing}, {_duration(row.hours_range)}" for row in free]
    lent = f"for nothing, session by session: {'; '.join(names)}"
    lent = textwrap.fill(lent, 79, subsequent_indent="  ") + "\n" if free else ""
    if chosen is None:
        return f"{lent}no machine here is known to finish it"
    usd, hours = chosen.cost_usd or 0.0, chosen.wall_hours or 0.0
    text = (
        f"cheapest to rent: {chosen.accelerator} {chosen.pricing.replace('_', ' ')},"
        f" {_short(usd)} ({_between(chosen.cost_usd_range)}) dollars,"
        f" {_short(hours)} ({_between(chosen.wall_hours_range)}) h,"
        f" {', '.join(filter(None, ('estimated', chosen.note)))}"
    )
    return (
        lent + textwrap.fill(text, 79, subsequent_indent="  ") + "\n"
        f"  launch --accelerator_type {chosen.accelerator} --pricing {chosen.pricing} \\\n"
        f"      --zones {','.join(chosen.zones)}"
    )


def _describe(
    plans: Sequence[Plan], runs: Sequence[dict[str, Any]], rows: Sequence[Row], prices_age: str
) -> str:
    """Describe the runs, a table of machines, and the assumptions."""
    from bigbird_ja.accelerators import measured
    from bigbird_ja.plan import estimate

    lost = (plans[0].checkpoint_interval / 2 + estimate.RESTART_SECONDS) / 60
    by_source = [f"by {text}: {names}" for text, names in _by(rows, "rate_source").items()]
    rented = [row for row in rows if not _is_free(row)]
    pages = dict.fromkeys(row.note.rpartition(": see ")[2] for row in rows if _is_free(row))
    width = min(each.config.model.hidden_size for each in plans)
    is_narrow = width < _WIDTH and any("MFU" in row.rate_source for row in rows)
    notes = [
        *([f"shares of the peak are of models {_WIDTH} wide: {width} reaches less"] * is_narrow),
        f"tokens/s {'; '.join(by_source)}; intervals: {measured.REACHED_RANGE[0]:g}-"
        f"{measured.REACHED_RANGE[1]:g} x machine code",
        f"compiled with {'; '.join(dict.fromkeys(run['compiler'] for run in runs))}",
        *(f"{text}: {names}" for text, names in _by(rented, "note").items()),
        f"spot: {plans[0].preemptions_per_hour:g} preemptions an hour, each costs {lost:g}"
        " minutes of work and restart",
        *([f"limits: {', '.join(pages)}"] if pages else []),
        prices_age,
    ]
    about = [line for run in runs for line in _about(run, len(runs) > 1)]
    return "\n".join(
        text if "\n" in text else textwrap.fill(text, 79, subsequent_indent="  ")
        for text in (*about, "", _table(rows), "", *notes)
    )


def _about(run: dict[str, Any], is_one_of_several: bool) -> list[str]:
    """Describe one run: its steps and tokens, and the assumption about its data."""
    name = f"{run['config'] or 'defaults'}: " if is_one_of_several else ""
    of = "Wiki40b Japanese" if run["assumption"] else "the data set"
    epochs = f"{run['epochs']:,.1f}" if run["epochs"] >= 1 else f"{run['epochs']:.2g}"
    about = (
        f"{name}{run['steps']:,} steps of {run['tokens_per_step']:,} tokens:"
        f" {human_count(run['tokens'])} tokens = {epochs} epochs of {of}"
        f" ({run['steps_per_epoch']:,.0f} steps each)"
    )
    return [about, *filter(None, [run["assumption"]])]


def _table(rows: Sequence[Row]) -> str:
    """Make a line for each machine, free ones first, spot and on demand side by side."""
    demanded = [row for row in rows if row.pricing == "on_demand"]
    on_demand = {row.accelerator: _between(row.cost_usd_range) for row in demanded}
    cells = []
    for row in rows:
        if row.pricing != "on_demand":
            demand = "-" if _is_free(row) else on_demand[row.accelerator]
            done = _duration(row.hours_range if _is_free(row) else row.wall_hours_range)
            rate, usd = human_count(row.tokens_per_second), _between(row.cost_usd_range)
            cells.append((row.accelerator, rate, done, usd, row.zone or row.pricing, demand))
    return table(cells, _HEADER)


def _is_free(row: Row) -> bool:
    return row.pricing not in ("spot", "on_demand")


def _duration(hours: tuple[float, float] | None) -> str:
    if hours is None:
        return "never"
    is_long = hours[0] >= 48
    return f"{_between((hours[0] / 24, hours[1] / 24))} d" if is_long else f"{_between(hours)} h"


def _between(ends: tuple[float, float] | None) -> str:
    """Write the least and the most that something takes: `9-12`, `0.82-1.10`."""
    if ends is None:
        return "-"
    return "-".join(map(_short, ends)) if ends[1] else "0"


def _short(value: float) -> str:
    """Write a number with two or three digits."""
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def _by(rows: Sequence[Row], field: str) -> dict[str, str]:
    """Group machines by the text of a field."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        text = getattr(row, field) or ""
        if text := text.partition("%, ")[2] or text:  # the share of the peak is each row's own
            names.setdefault(text, {})[row.accelerator] = None
    return {text: ", ".join(machines) for text, machines in names.items()}
