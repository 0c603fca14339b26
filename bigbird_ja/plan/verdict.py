"""What a plan comes to: the machine to take, and what about the run itself makes no sense."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence

from bigbird_ja.plan.rows import Row
from bigbird_ja.process.errors import BadInput

# BERT made some 40 passes over its text (Devlin et al., 2019); in left-to-right models a further
# pass is worth next to nothing after about as many (Muennighoff et al., 2023). Fresh masks stretch
# that, but nothing stretches it to a thousand.
NONSENSE_EPOCHS = 1000


def hours_until(text: str, now: datetime.datetime) -> float:
    """Hours from `now` to a date, whose end is meant, or to a time of it.

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
        None where no row does it. What is lent for nothing is never chosen: nobody promises when
        that is done.
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
    if hours is None:
        return min(able, key=lambda row: (row.wall_hours, row.cost_usd), default=None)
    return min(able, key=lambda row: (row.cost_usd, row.wall_hours), default=None)


def nonsense(epochs: float | None, steps: int) -> list[str]:
    """What of the run's length makes no sense, for people; usually nothing."""
    if epochs is None or epochs < NONSENSE_EPOCHS:
        return []
    return [
        f"{steps:,} steps are {epochs:,.0f} epochs, which is nonsense: every text would be seen"
        f" {epochs:,.0f} times (BERT saw its own some 40 times): take more text, or fewer steps by"
        " --epochs or --tokens"
    ]
