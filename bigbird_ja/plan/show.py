"""Plans as text for users, at most 79 columns wide."""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Sequence

from bigbird_ja.accelerators.prices import describe_age
from bigbird_ja.plan.estimate import Budget, Row
from bigbird_ja.plan.run import PlanResult
from bigbird_ja.process.console import human_count, table

_HEADER = ("machine", "tokens/s", "done after", "spot USD", "zone", "on demand USD")


def describe(result: PlanResult) -> str:
    """Describe a plan: the cheapest machine, what the budget buys, and all machines."""
    bought = result.max_cost_buys
    budget = [f"\n{_affordable(bought, result.max_cost)}\n"] if bought and result.max_cost else []
    free = [row for row in result.rows if row.is_free]
    return "\n".join((_verdict(result.cheapest, free), *budget, _comparison(result)))


def _affordable(bought: Sequence[Budget], budget: float) -> str:
    """Format what a budget buys."""
    cells = [
        [each.accelerator, each.pricing.replace("_", " "), human_count(each.steps)]
        + [human_count(each.tokens), _short(each.epochs), f"{each.share:.0%}"]
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


def _comparison(result: PlanResult) -> str:
    """Describe the run, a table of machines, and the assumptions."""
    rows = result.rows
    by_source = [f"by {text}: {names}" for text, names in _by(rows, "rate_source").items()]
    rented = [row for row in rows if not row.is_free]
    pages = dict.fromkeys(row.note.rpartition(": see ")[2] for row in rows if row.is_free)
    hours = _by_preemptions(result)
    of = "Wiki40b Japanese" if result.assumption else "the data set"
    epochs = f"{result.epochs:,.1f}" if result.epochs >= 1 else f"{result.epochs:.2g}"
    lines = [
        f"{result.steps:,} steps of {result.tokens_per_step:,} tokens:"
        f" {human_count(result.tokens)} tokens = {epochs} epochs of {of}"
        f" ({result.steps_per_epoch:,.0f} steps each)",
        *filter(None, [result.assumption]),
        "",
        _table(rows),
        "",
        f"tokens/s {'; '.join(by_source)}; intervals are those of published steps"
        " (docs/lab/clock.md)",
        f"compiled with {result.compiler}",
        *(f"{text}: {names}" for text, names in _by(rented, "note").items()),
        f"spot: {result.preemptions_per_hour:g} preemptions an hour, assumed, each costs"
        f" {result.minutes_per_preemption:g} minutes of work and restart"
        + (f"; the cheapest is rented for {', '.join(hours)}" if hours else ""),
        *([f"limits: {', '.join(pages)}"] if pages else []),
        *_ages(rented),
    ]
    return "\n".join(
        text
        if "\n" in text
        else textwrap.fill(text, 79, subsequent_indent="  ", break_on_hyphens=False)
        for text in lines
    )


def _by_preemptions(result: PlanResult) -> list[str]:
    """Format hours and dollars of the cheapest machine by preemptions an hour."""
    price = (result.cheapest.usd_per_hour if result.cheapest else None) or 0.0
    return [
        f"{_short(hours)} h ({_short(hours * price)} USD) at {rate}"
        if hours
        else f"no finite time at {rate}"
        for rate, hours in result.hours_by_preemptions.items()
    ]


def _ages(rows: Sequence[Row]) -> list[str]:
    """Describe the age of the prices, and name the machines if there are several dates."""
    today, dates = datetime.date.today(), _by(rows, "price_as_of")
    return [
        describe_age(datetime.date.fromisoformat(date), today)
        + (f" ({names})" if len(dates) > 1 else "")
        for date, names in sorted(dates.items())
    ]


def _table(rows: Sequence[Row]) -> str:
    """Make a line for each machine, free ones first, spot and on demand side by side."""
    demanded = [row for row in rows if row.pricing == "on_demand"]
    on_demand = {row.accelerator: _between(row.cost_usd_range) for row in demanded}
    cells = []
    for row in rows:
        if row.pricing != "on_demand":
            demand = "-" if row.is_free else on_demand[row.accelerator]
            done = _duration(row.hours_range if row.is_free else row.wall_hours_range)
            rate, usd = human_count(row.tokens_per_second), _between(row.cost_usd_range)
            cells.append((row.accelerator, rate, done, usd, row.zone or row.pricing, demand))
    return table(cells, _HEADER)


def _duration(hours: tuple[float, float] | None) -> str:
    if hours is None:
        return "never"
    is_long = hours[0] >= 48
    return f"{_between((hours[0] / 24, hours[1] / 24))} d" if is_long else f"{_between(hours)} h"


def _between(ends: tuple[float, float] | None) -> str:
    """Format an interval: `9-12`, `0.82-1.10`."""
    if ends is None:
        return "-"
    return "-".join(map(_short, ends)) if ends[1] else "0"


def _short(value: float) -> str:
    """Format a number with two or three digits."""
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def _by(rows: Sequence[Row], field: str) -> dict[str, str]:
    """Group machines by the text of a field."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        text = getattr(row, field) or ""
        if text:
            names.setdefault(text, {})[row.accelerator] = None
    return {text: ", ".join(machines) for text, machines in names.items()}
