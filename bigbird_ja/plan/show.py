"""Plans as text for users, at most 79 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from bigbird_ja.accelerators import measured
from bigbird_ja.plan import estimate
from bigbird_ja.plan.estimate import Plan, Row
from bigbird_ja.process.console import human_count, table

_WIDTH = 768  # hidden size of the models for which `accelerators` has shares of the peak
_HEADER = ("machine", "tokens/s", "done after", "spot USD", "zone", "on demand USD")


def affordable(budget_rows: Sequence[dict[str, Any]], budget: float) -> str:
    """Format what a budget buys."""
    cells = [
        [each["accelerator"], each["pricing"].replace("_", " "), human_count(each["steps"])]
        + [human_count(each["tokens"]), _short(each["epochs"]), f"{each['share']:.0%}"]
        for each in budget_rows
    ]
    header = (f"{budget:g} USD buy on", "pricing", "steps", "tokens", "epochs", "of the run")
    return table(cells, header)


def verdict(chosen: Row | None, free: Sequence[Row]) -> str:
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


def describe(
    plans: Sequence[Plan], runs: Sequence[dict[str, Any]], rows: Sequence[Row], prices_age: str
) -> str:
    """Describe the runs, a table of machines, and the assumptions."""
    lost = (plans[0].checkpoint_interval / 2 + estimate.RESTART_SECONDS) / 60
    by_source = [f"by {text}: {names}" for text, names in _by(rows, "rate_source").items()]
    rented = [row for row in rows if not row.is_free]
    pages = dict.fromkeys(row.note.rpartition(": see ")[2] for row in rows if row.is_free)
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
        if text := text.partition("%, ")[2] or text:  # the share of the peak is each row's own
            names.setdefault(text, {})[row.accelerator] = None
    return {text: ", ".join(machines) for text, machines in names.items()}
