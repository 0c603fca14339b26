"""The picture of `plan`: cost against time."""

from __future__ import annotations

from collections.abc import Sequence

from bigbird_ja.plan.rows import Row
from bigbird_ja.storage import plotting


def cost_against_time(rows: Sequence[Row], path: str, title: str) -> None:
    """Every machine as a point: days of wall time across, US dollars up, both logarithmic."""
    figure = plotting.new_figure(8, 5)
    axes = figure.add_subplot()
    # On a logarithmic axis there is no place for what is free.
    drawn = [row for row in rows if row.cost_usd and row.wall_hours is not None]
    days = [(row.wall_hours or 0) / 24 for row in drawn]
    dollars = [row.cost_usd or 0 for row in drawn]
    colours = {"on_demand": "tab:red", "spot": "tab:blue"}
    for row, place in zip(drawn, zip(days, dollars, strict=True), strict=True):
        axes.plot(*place, "o" if row.pricing == "spot" else "s", color=colours[row.pricing])
        axes.annotate(row.accelerator, place, textcoords="offset points", xytext=(6, 4))
    for pricing, marker in (("spot", "o"), ("on_demand", "s")):
        axes.plot([], [], marker, color=colours[pricing], label=pricing.replace("_", " "))
    axes.set(xlabel="days until finished", ylabel="US dollars", title=title)
    if drawn:
        plotting.plain_scale(axes.xaxis, min(days), max(days))
        plotting.plain_scale(axes.yaxis, min(dollars), max(dollars))
    axes.margins(x=0.12)
    axes.grid(True, alpha=0.3)
    plotting.legend_below(figure)
    plotting.save(figure, path, dpi=110)
