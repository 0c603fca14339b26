"""Prints a plan: the table of machines, and the machine to take."""

import datetime
import math
import textwrap
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from bigbird_ja import accelerators
from bigbird_ja.accelerators.prices import PRICINGS
from bigbird_ja.plan.hours import Overheads, best_interval
from bigbird_ja.plan.rows import Row
from bigbird_ja.process.console import human_count, human_time, table
from bigbird_ja.process.errors import BadInput

# BERT made some 40 passes over its text (Devlin et al., 2019); in left-to-right models a further
# pass is worth next to nothing after about as many (Muennighoff et al., 2023). Fresh masks stretch
# that, but nothing stretches it to a thousand.
NONSENSE_EPOCHS = 1000
_HEADER = ("machine", "tokens/s", "done after", "spot USD", "zone", "on demand USD")


def comparison(
    runs: Sequence[dict[str, Any]], rows: Sequence[Row], overheads: Overheads, prices_age: str
) -> str:
    """Describe the run, a table of machines, and the assumptions, in at most 79 columns.

    Args:
        runs: the results of each run, as `--json` prints them.
        rows: of the machines.
        overheads: of preemptions.
        prices_age: of the table of prices, in words.
    """
    about = [line for run in runs for line in _about(run, len(runs) > 1)]
    by_source = _by(rows, "rate_source")
    basis = [f"tokens/s by {source}: {machines}" for source, machines in by_source.items()]
    doubts = [f"{text}: {machines}" for text, machines in _by(rows, "note").items()]
    doubts += [f"{text}: {machines}" for text, machines in _by(rows, "unproven").items()]
    basis.append(
        f"spot: {overheads.preemptions_per_hour:g} preemptions per hour, each costs half of the"
        f" {overheads.checkpoint_interval / 60:g} minutes between checkpoints (best:"
        f" {best_interval(overheads) / 60:.0f}) and {overheads.restart_seconds / 60:g} minutes of"
        " restart; money includes storage and egress"
    )
    notes = [*basis, *doubts, "no row was timed on a rented machine yet", prices_age]
    paragraphs = [*about, "", _table(rows), "", *notes]
    return "\n".join(
        text if "\n" in text else textwrap.fill(text, 79, subsequent_indent="  ")
        for text in paragraphs
    )


def _about(run: dict[str, Any], is_one_of_several: bool) -> list[str]:
    """Describe one run: its steps and tokens, the assumption about its data, warnings."""
    name = f"{run['config'] or 'defaults'}: " if is_one_of_several else ""
    about = (
        f"{name}{run['steps']:,} steps of {run['tokens_per_step']:,} tokens:"
        f" {human_count(run['tokens'])} tokens"
    )
    if run["epochs"] is not None:
        of = "Wiki40b Japanese" if run["assumption"] else "the data set"
        count = f"{run['epochs']:,.1f}" if run["epochs"] >= 1 else f"{run['epochs']:.2g}"
        about += f" = {count} epochs of {of} ({run['steps_per_epoch']:,.0f} steps each)"
    warnings = [f"warning: {warning}" for warning in run["warnings"]]
    return [about, *filter(None, [run["assumption"]]), *warnings]


def verdict(
    rows: Sequence[Row], chosen: Row | None, finish_by: str | None, limit: float | None
) -> str:
    """Say `cheapest: v6e-8 spot, 27 dollars, 8.5 h, estimated`, and the command that rents it.

    Args:
        rows: of the machines.
        chosen: of `choose`.
        finish_by: the user's date, or None.
        limit: the user's US dollars, or None.
    """
    limits = f" by {finish_by}" if finish_by else ""
    limits += f" for at most {limit:,.2f} dollars" if limit is not None else ""
    if chosen is None:
        known = {"fastest": choose(rows, None, None), "cheapest": choose(rows, math.inf, None)}
        others = "; ".join(f"{how} {_outcome(row)}" for how, row in known.items() if row)
        text = f"no machine here is known to finish it{limits}" + (f": {others}" if others else "")
        return textwrap.fill(text, 79, subsequent_indent="  ")
    how = "fastest" if limit is not None and not finish_by else "cheapest"
    doubt = ", ".join(filter(None, ("estimated", chosen.unproven and "unproven", chosen.note)))
    machine = accelerators.launch_type(accelerators.find(chosen.accelerator))
    text = f"{how}{limits}: {_outcome(chosen)}, {doubt}"
    return (
        textwrap.fill(text, 79, subsequent_indent="  ") + "\n"
        f"  launch --accelerator_type {machine} --pricing {chosen.pricing} --zones {chosen.zone}"
    )


def _outcome(row: Row) -> str:
    """Say `v6e-8 spot, 27 dollars, 8.5 h`."""
    usd, pricing = row.cost_usd or 0.0, row.pricing.replace("_", " ")
    money = f"{usd:,.0f}" if usd >= 10 else f"{usd:,.2f}"
    return f"{row.accelerator} {pricing}, {money} dollars, {row.wall_hours or 0.0:,.1f} h"


def _table(rows: Sequence[Row]) -> str:
    """Make a line for each machine, spot and on demand side by side; then free machines."""
    rented: dict[str, dict[str, Row]] = {}
    free = []
    for row in rows:
        if row.pricing in PRICINGS:
            rented.setdefault(row.accelerator, {})[row.pricing] = row
        else:
            hours = "-" if row.hours is None else human_time(row.hours * 3600)
            rate = human_count(row.tokens_per_second)
            free.append((row.accelerator, rate, hours, "0.00", row.pricing, "-"))
    cells = []
    for name, by_pricing in rented.items():
        first = by_pricing.get("spot") or by_pricing["on_demand"]
        done = "never" if first.wall_hours is None else human_time(first.wall_hours * 3600)
        spot, demand = _money(by_pricing.get("spot")), _money(by_pricing.get("on_demand"))
        rate = human_count(first.tokens_per_second)
        cells.append((name, rate, done, spot, first.zone or "", demand))
    return table([*cells, *free], _HEADER)


def _money(row: Row | None) -> str:
    return "-" if row is None or row.cost_usd is None else f"{row.cost_usd:,.2f}"


def _by(rows: Sequence[Row], field: str) -> dict[str, str]:
    """Group machines by the text of a field."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        is_lent = field == "note" and row.pricing not in PRICINGS
        name = f"{row.pricing}'s {row.accelerator}" if is_lent else row.accelerator
        if text := getattr(row, field):
            names.setdefault(text, {})[name] = None
    return {text: ", ".join(machines) for text, machines in names.items()}


def hours_until(text: str, now: datetime.datetime) -> float:
    """Compute the hours from `now` to a time, or to the end of a date.

    Args:
        text: `2026-12-01`, `2026-12-01T18:00`; without a zone, `now`'s.
        now: with a time zone.

    Raises:
        BadInput: neither, or past.
    """
    try:
        end = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(
            f"--finish_by {text}: a date such as 2026-12-01, or a time such as 2026-12-01T18:00"
        ) from error
    if "T" not in text and ":" not in text:
        end += datetime.timedelta(days=1)
    if end.tzinfo is None:
        end = end.replace(tzinfo=now.tzinfo)
    hours = (end - now).total_seconds() / 3600
    if hours <= 0:
        raise BadInput(f"--finish_by {text} is past: it is {now:%Y-%m-%d %H:%M} now")
    return hours


def choose(rows: Sequence[Row], hours: float | None, max_cost: float | None) -> Row | None:
    """Choose the cheapest row that is done in time; without a time, the fastest within the budget.

    Args:
        rows: of the machines.
        hours: until it must be done; None: any.
        max_cost: US dollars; None: any.

    Returns:
        None where no row qualifies. Free machines never do: they have no date of completion.
    """
    able = [
        row
        for row in rows
        if row.runs
        and row.cost_usd is not None
        and row.wall_hours is not None
        and row.wall_hours <= (math.inf if hours is None else hours)
        and row.cost_usd <= (math.inf if max_cost is None else max_cost)
    ]
    keys = ("wall_hours", "cost_usd") if hours is None else ("cost_usd", "wall_hours")
    return min(able, key=attrgetter(*keys), default=None)


def warnings_of_length(epochs: float | None, steps: int) -> list[str]:
    """Warn where the run repeats its text far too often."""
    if epochs is None or epochs < NONSENSE_EPOCHS:
        return []
    return [
        f"{steps:,} steps are {epochs:,.0f} epochs, which is nonsense: the model would see every"
        f" text {epochs:,.0f} times (BERT: some 40 times): take more text, or fewer steps by"
        " --epochs or --tokens"
    ]
