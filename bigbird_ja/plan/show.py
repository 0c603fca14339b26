"""Text of a plan for users, at most 79 columns wide."""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Sequence

from bigbird_ja.accelerators.prices import describe_age
from bigbird_ja.plan.estimate import Budget, Row
from bigbird_ja.plan.run import PlanResult
from bigbird_ja.process.console import format_count, table

_HEADER = ("machine", "tokens/s", "done after", "spot USD", "zone", "on demand USD")


def describe(result: PlanResult) -> str:
    """Describe a plan: the cheapest machine, the budget's steps, and all machines."""
    bought = result.max_cost_buys
    budget = (
        [f"\n{_format_budget(bought, result.max_cost)}\n"] if bought and result.max_cost else []
    )
    free = [row for row in result.rows if row.is_free]
    return "\n".join((_format_verdict(result.cheapest, free), *budget, _format_comparison(result)))


def _format_budget(bought: Sequence[Budget], budget: float) -> str:
    """Format a table of the training that a budget pays for."""
    cells = [
        [each.accelerator, each.pricing.replace("_", " "), format_count(each.steps)]
        + [format_count(each.tokens), _format_number(each.epochs), f"{each.share:.0%}"]
        for each in bought
    ]
    header = (f"{budget:g} USD buy on", "pricing", "steps", "tokens", "epochs", "of the run")
    return table(cells, header)


def _format_verdict(chosen: Row | None, free: Sequence[Row]) -> str:
    """Describe the free machines, the cheapest machine to rent, and its `launch` flags."""
    names = [
        f"{row.accelerator} of {row.pricing}, {_format_duration(row.hours_range)}" for row in free
    ]
    lent = f"free, in sessions of limited length: {'; '.join(names)}"
    lent = textwrap.fill(lent, 79, subsequent_indent="  ") + "\n" if free else ""
    if chosen is None:
        return f"{lent}none of these machines is known to finish the run"
    usd, hours = chosen.cost_usd or 0.0, chosen.wall_hours or 0.0
    text = (
        f"cheapest to rent: {chosen.accelerator} {chosen.pricing.replace('_', ' ')},"
        f" {_format_number(usd)} ({_format_range(chosen.cost_usd_range)}) dollars,"
        f" {_format_number(hours)} ({_format_range(chosen.wall_hours_range)}) h,"
        f" {', '.join(filter(None, ('estimated', chosen.note)))}"
    )
    return (
        lent + textwrap.fill(text, 79, subsequent_indent="  ") + "\n"
        f"  launch --accelerator_type {chosen.accelerator} --pricing {chosen.pricing} \\\n"
        f"      --zones {','.join(chosen.zones)}"
    )


def _format_comparison(result: PlanResult) -> str:
    """Describe the run, the machines and the assumptions."""
    rows = result.rows
    by_source = [
        f"by {text}: {names}" for text, names in _group_machines(rows, "rate_source").items()
    ]
    rented = [row for row in rows if not row.is_free]
    pages = dict.fromkeys(row.note.rpartition(": see ")[2] for row in rows if row.is_free)
    hours = _format_hours(result)
    of = "Wiki40b Japanese" if result.assumption else "the data set"
    epochs = f"{result.epochs:,.1f}" if result.epochs >= 1 else f"{result.epochs:.2g}"
    lines = [
        f"{result.steps:,} steps of {result.tokens_per_step:,} tokens:"
        f" {format_count(result.tokens)} tokens = {epochs} epochs of {of}"
        f" ({result.steps_per_epoch:,.0f} steps each)",
        *filter(None, [result.assumption]),
        "",
        _format_table(rows),
        "",
        f"tokens/s {'; '.join(by_source)}; intervals cover 80 % of published timings"
        " (docs/lab/clock.md)",
        f"compiled with {result.compiler}",
        *(f"{text}: {names}" for text, names in _group_machines(rented, "note").items()),
        f"spot: assumes {result.preemptions_per_hour:g} preemptions per hour, each of which costs"
        f" {result.minutes_per_preemption:g} minutes of work and restart"
        + (f"; the cheapest is rented for {', '.join(hours)}" if hours else ""),
        *([f"limits: {', '.join(pages)}"] if pages else []),
        *_format_ages(rented),
    ]
    return "\n".join(
        text
        if "\n" in text
        else textwrap.fill(text, 79, subsequent_indent="  ", break_on_hyphens=False)
        for text in lines
    )


def _format_hours(result: PlanResult) -> list[str]:
    """Format hours and cost of the cheapest machine, for several rates of preemptions."""
    price = (result.cheapest.usd_per_hour if result.cheapest else None) or 0.0
    return [
        f"{_format_number(hours)} h ({_format_number(hours * price)} USD) at {rate}"
        if hours
        else f"no finite time at {rate}"
        for rate, hours in result.hours_by_preemptions.items()
    ]


def _format_ages(rows: Sequence[Row]) -> list[str]:
    """Describe the age of the prices, with the machines' names if the prices have several dates."""
    today, dates = datetime.date.today(), _group_machines(rows, "price_as_of")
    return [
        describe_age(datetime.date.fromisoformat(date), today)
        + (f" ({names})" if len(dates) > 1 else "")
        for date, names in sorted(dates.items())
    ]


def _format_table(rows: Sequence[Row]) -> str:
    """Format a table of machines. Each line contains the spot and the on-demand cost."""
    demanded = [row for row in rows if row.pricing == "on_demand"]
    on_demand = {row.accelerator: _format_range(row.cost_usd_range) for row in demanded}
    cells = []
    for row in rows:
        if row.pricing != "on_demand":
            demand = "-" if row.is_free else on_demand[row.accelerator]
            done = _format_duration(row.hours_range if row.is_free else row.wall_hours_range)
            rate, usd = format_count(row.tokens_per_second), _format_range(row.cost_usd_range)
            cells.append((row.accelerator, rate, done, usd, row.zone or row.pricing, demand))
    return table(cells, _HEADER)


def _format_duration(hours: tuple[float, float] | None) -> str:
    if hours is None:
        return "never"
    is_long = hours[0] >= 48
    return (
        f"{_format_range((hours[0] / 24, hours[1] / 24))} d"
        if is_long
        else f"{_format_range(hours)} h"
    )


def _format_range(ends: tuple[float, float] | None) -> str:
    """Format an interval: `9-12`, `0.82-1.10`."""
    if ends is None:
        return "-"
    return "-".join(map(_format_number, ends)) if ends[1] else "0"


def _format_number(value: float) -> str:
    """Format a number, with more decimals for a smaller number: 1,234, 12.3 and 0.12."""
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def _group_machines(rows: Sequence[Row], field: str) -> dict[str, str]:
    """Group machines by the text in a field of their rows, such as "note".

    Returns:
        Names of the machines, joined by commas, for each text that is not empty.
    """
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        text = getattr(row, field) or ""
        if text:
            names.setdefault(text, {})[row.accelerator] = None
    return {text: ", ".join(machines) for text, machines in names.items()}
