"""What `plan` prints: the comparison, and the machine to take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bigbird_ja.accelerators import hardware
from bigbird_ja.plan import cost
from bigbird_ja.plan.cost import Overheads
from bigbird_ja.plan.rows import Row
from bigbird_ja.process.console import human_count, human_time, table

_HEADER = (
    "machine", "pricing", "zone", "tokens/s", "rate from", "rented h", "done after", "$/h",
    "cost $", "note",
)  # fmt: skip
# Left out one after the other where the terminal is too narrow; `--json` has them all.
_LEFT_OUT = ("rate from", "tokens/s", "rented h", "$/h")
_LONG = 10  # characters of a note; longer ones stand below the table


def comparison(
    result: dict[str, Any],
    rows: Sequence[Row],
    overheads: Overheads,
    prices_age: str,
    width: int | None = None,
) -> str:
    """The run, a table of its rows, and what they rest on.

    Args:
        result: of the command, as `--json` prints it.
        prices_age: of the table of prices, in words.
        width: columns of the terminal; None where it is none, and nothing is left out.
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
    lines.append("")
    notes = list(dict.fromkeys(row.note for row in rows if len(row.note) > _LONG))
    shown = [
        (
            row.accelerator, row.pricing.replace("_", " "), row.zone or "",
            f"{row.tokens_per_second:,.0f}", row.rate_source, _number(row.hours, ",.1f"),
            _done_after(row), _number(row.usd_per_hour, ",.2f"), _number(row.cost_usd, ",.2f"),
            f"({notes.index(row.note) + 1})" if row.note in notes else row.note,
        )
        for row in rows
    ]  # fmt: skip
    lines += [_fitting(shown, width), ""]
    lines += [f"({number}) {note}" for number, note in enumerate(notes, 1)]
    lines.append(
        f"spot: {overheads.preemptions_per_hour:g} preemptions per hour, each costs half of the"
        f" {overheads.checkpoint_interval / 60:g} minutes between checkpoints and"
        f" {overheads.restart_seconds / 60:g} minutes of restart; cost includes storage and egress;"
        f" at this rate the best interval is {cost.best_interval(overheads) / 60:.0f} minutes;"
        " no row was timed on a rented machine yet"
    )
    reasons = {row.unproven for row in rows if row.unproven}
    lines += [f"unproven: {reason}" for reason in sorted(reasons)]
    lines.append(prices_age)
    return "\n".join(lines)


def _fitting(rows: Sequence[Sequence[str]], width: int | None) -> str:
    """The table, without what matters least where it would be wider than the terminal."""
    kept = list(_HEADER)
    for name in ("", *_LEFT_OUT):
        kept = [other for other in kept if other != name]
        places = [_HEADER.index(other) for other in kept]
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


def choice(
    chosen: Row | None, rows: Sequence[Row], finish_by: str | None, max_cost: float | None
) -> str:
    """The machine to take, or how near the others come.

    Args:
        chosen: of `choice.choose`.
        finish_by, max_cost: what was asked for; one may be None.
    """
    wanted = [f"by {finish_by}"] if finish_by else []
    wanted += [f"for at most {max_cost:,.2f} USD"] if max_cost is not None else []
    asked = " ".join(wanted)
    if chosen is None:
        return "\n".join([f"choice: nothing here is done {asked}", *_nearest(rows)])
    how = "cheapest" if finish_by else "fastest"
    doubts = f" ({chosen.note})" if chosen.note else ""
    said = f"choice: the {how} {asked} is {_outcome(chosen)} expected{doubts}"
    machine = hardware.find(chosen.accelerator)
    if machine.name in hardware.GPUS:
        return said
    flags = f"--accelerator_type {hardware.launch_type(machine)} --pricing {chosen.pricing}"
    return f"{said}\n  launch {flags} --zones {chosen.zone}"


def _nearest(rows: Sequence[Row]) -> list[str]:
    able = [row for row in rows if row.runs and row.wall_hours and row.cost_usd is not None]
    if not able:
        return []
    fastest = min(able, key=lambda row: row.wall_hours or 0.0)
    cheapest = min(able, key=lambda row: row.cost_usd or 0.0)
    return [
        f"  fastest: {_outcome(fastest)}",
        f"  cheapest: {_outcome(cheapest)}",
        "  fewer --tokens, or larger slices by --preflight, may do",
    ]


def _outcome(row: Row) -> str:
    """`v5e-8 spot: 15 h 35 min, 29.76 USD`."""
    time = human_time((row.wall_hours or 0.0) * 3600)
    pricing = row.pricing.replace("_", " ")
    return f"{row.accelerator} {pricing}: {time}, {row.cost_usd or 0.0:,.2f} USD"
