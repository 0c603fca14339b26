"""What `plan` prints and draws: the table of machines, the machine to take, cost against time."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from bigbird_ja.accelerators import hardware
from bigbird_ja.plan.rows import Overheads, Row, best_interval
from bigbird_ja.process.console import human_count, human_time, table
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import plotting

_HEADER = (
    "machine", "pricing", "zone", "tokens/s", "rate from", "rented h", "done after", "$/h",
    "cost $", "note",
)  # fmt: skip
# Columns to drop, in this order, until the table fits the terminal; `--json` has them all.
_OPTIONAL = ("rate from", "tokens/s", "rented h", "$/h")
_LONG = 10  # characters of a note; longer ones go below the table
# BERT made some 40 passes over its text (Devlin et al., 2019); in left-to-right models a further
# pass is worth next to nothing after about as many (Muennighoff et al., 2023). Fresh masks stretch
# that, but nothing stretches it to a thousand.
NONSENSE_EPOCHS = 1000


def comparison(
    result: dict[str, Any],
    rows: Sequence[Row],
    overheads: Overheads,
    prices_age: str,
    width: int | None = None,
) -> str:
    """The run, the table of its rows, and the assumptions behind them.

    Args:
        result: of the command, as `--json` prints it.
        prices_age: of the table of prices, in words.
        width: columns of the terminal; None where it is none, and no column is dropped.
    """
    lines = [
        f"{result['steps']:,} steps of {result['tokens_per_step']:,} tokens:"
        f" {human_count(result['tokens'])} tokens"
    ]
    if result["epochs"] is not None:
        lines[0] += f", {result['epochs']:.1f} epochs of {result['steps_per_epoch']:,.0f} steps"
    if result["assumption"]:
        lines.append(result["assumption"])
    lines += [f"warning: {warning}" for warning in result["warnings"]]
    notes = list(dict.fromkeys(row.note for row in rows if len(row.note) > _LONG))
    cells = [
        (
            row.accelerator, row.pricing.replace("_", " "), row.zone or "",
            f"{row.tokens_per_second:,.0f}", row.rate_source, _number(row.hours, ",.1f"),
            _done_after(row), _number(row.usd_per_hour, ",.2f"), _number(row.cost_usd, ",.2f"),
            f"({notes.index(row.note) + 1})" if row.note in notes else row.note,
        )
        for row in rows
    ]  # fmt: skip
    lines += ["", _fit(cells, width), ""]
    lines += [f"({number}) {note}" for number, note in enumerate(notes, 1)]
    lines.append(
        f"spot: {overheads.preemptions_per_hour:g} preemptions per hour, each costs half of the"
        f" {overheads.checkpoint_interval / 60:g} minutes between checkpoints and"
        f" {overheads.restart_seconds / 60:g} minutes of restart; cost includes storage and egress;"
        f" at this rate the best interval is {best_interval(overheads) / 60:.0f} minutes;"
        " no row was timed on a rented machine yet"
    )
    reasons = {row.unproven for row in rows if row.unproven}
    lines += [f"unproven: {reason}" for reason in sorted(reasons)]
    lines.append(prices_age)
    return "\n".join(lines)


def _fit(rows: Sequence[Sequence[str]], width: int | None) -> str:
    """The table with as many optional columns as the terminal has room for."""
    kept = list(_HEADER)
    for dropped in ("", *_OPTIONAL):
        kept = [name for name in kept if name != dropped]
        places = [_HEADER.index(name) for name in kept]
        text = table([[row[place] for place in places] for row in rows], kept)
        if width is None or max(map(len, text.splitlines())) <= width:
            break
    return text


def _done_after(row: Row) -> str:
    if row.wall_hours is not None:
        return human_time(row.wall_hours * 3600)
    return "never" if row.hours is None else "by its limits"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def hours_until(text: str, now: datetime.datetime) -> float:
    """Hours from `now` to a time, or to the end of a date.

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
            f"--finish_by={text}: a date such as 2026-12-01, or a time such as 2026-12-01T18:00"
        ) from error
    if "T" not in text and ":" not in text:
        end += datetime.timedelta(days=1)
    if end.tzinfo is None:
        end = end.replace(tzinfo=now.tzinfo)
    hours = (end - now).total_seconds() / 3600
    if hours <= 0:
        raise BadInput(f"--finish_by={text} is past: it is {now:%Y-%m-%d %H:%M} now")
    return hours


def choose(rows: Sequence[Row], hours: float | None, max_cost: float | None) -> Row | None:
    """The cheapest row that is done in time; without a time, the fastest within the budget.

    Args:
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


def describe_choice(
    chosen: Row | None, rows: Sequence[Row], finish_by: str | None, max_cost: float | None
) -> str:
    """The machine to take, or the fastest and the cheapest where none qualifies.

    Args:
        chosen: of `choose`.
        finish_by, max_cost: the user's limits; one may be None.
    """
    limits = [f"by {finish_by}"] if finish_by else []
    limits += [f"for at most {max_cost:,.2f} USD"] if max_cost is not None else []
    if chosen is not None:
        how = "cheapest" if finish_by else "fastest"
        doubts = f" ({chosen.note})" if chosen.note else ""
        machine = hardware.launch_type(hardware.find(chosen.accelerator))
        return (
            f"choice: the {how} {' '.join(limits)} is {_outcome(chosen)} expected{doubts}\n"
            f"  launch --accelerator_type {machine} --pricing {chosen.pricing}"
            f" --zones {chosen.zone}"
        )
    lines = [f"choice: no machine here is done {' '.join(limits)}"]
    fastest, cheapest = choose(rows, None, None), choose(rows, math.inf, None)
    if fastest and cheapest:
        lines += [
            f"  fastest: {_outcome(fastest)}",
            f"  cheapest: {_outcome(cheapest)}",
            "  fewer --tokens, or larger slices by --preflight, may do",
        ]
    return "\n".join(lines)


def _outcome(row: Row) -> str:
    """`v5e-8 spot: 15 h 35 min, 29.76 USD`."""
    time = human_time((row.wall_hours or 0.0) * 3600)
    pricing = row.pricing.replace("_", " ")
    return f"{row.accelerator} {pricing}: {time}, {row.cost_usd or 0.0:,.2f} USD"


def warnings_of_length(epochs: float | None, steps: int) -> list[str]:
    """A warning where the run repeats its text far too often, else nothing."""
    if epochs is None or epochs < NONSENSE_EPOCHS:
        return []
    return [
        f"{steps:,} steps are {epochs:,.0f} epochs, which is nonsense: the model would see every"
        f" text {epochs:,.0f} times (BERT: some 40 times): take more text, or fewer steps by"
        " --epochs or --tokens"
    ]


def plot(rows: Sequence[Row], path: str, title: str) -> None:
    """Every machine as a point: days of wall time across, US dollars up, both logarithmic; what is
    free has no place there."""
    figure = plotting.new_figure(8, 5)
    axes = figure.add_subplot()
    points = {
        row: (row.wall_hours / 24, row.cost_usd) for row in rows if row.cost_usd and row.wall_hours
    }
    for pricing, marker, colour in (("spot", "o", "tab:blue"), ("on_demand", "s", "tab:red")):
        places = [place for row, place in points.items() if row.pricing == pricing]
        label = pricing.replace("_", " ")
        axes.plot([x for x, _ in places], [y for _, y in places], marker, color=colour, label=label)
    for row, place in points.items():
        axes.annotate(row.accelerator, place, textcoords="offset points", xytext=(6, 4))
    axes.set(xlabel="days until finished", ylabel="US dollars", title=title)
    if points:
        plotting.plain_scale(axes.xaxis)
        plotting.plain_scale(axes.yaxis)
    axes.margins(x=0.12)
    axes.grid(True, alpha=0.3)
    plotting.legend_below(figure)
    plotting.save(figure, path, dpi=110)
