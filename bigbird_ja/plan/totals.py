"""Sums over several runs, and what a budget pays for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bigbird_ja.plan import estimate
from bigbird_ja.plan.estimate import Plan, Row


def is_free(row: Row) -> bool:
    """Tell whether a machine costs nothing, as those of Kaggle and Colab."""
    return row.pricing not in ("spot", "on_demand")


def bought(
    run: Plan, about: dict[str, Any], rows: Sequence[Row], budget: float
) -> list[dict[str, Any]]:
    """Compute what a budget buys on each rented machine, most first."""
    shares = [
        (estimate.affordable_share(run, row, budget), row) for row in rows if not is_free(row)
    ]
    return [
        {
            **{"accelerator": row.accelerator, "pricing": row.pricing, "share": share},
            **{key: share * about[key] for key in ("steps", "tokens", "epochs")},
        }
        for share, row in sorted(shares, key=lambda pair: -(pair[0] or 0.0))
        if share is not None
    ]


def summed(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
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
