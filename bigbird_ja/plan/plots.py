"""Pictures: cost against time, a run's progress."""

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


def progress(
    points: Sequence[tuple[float, int]],
    marks: Sequence[tuple[float, str]],
    path: str,
    title: str,
) -> None:
    """A run's global step over hours, with preemptions, failures and creations marked.

    Args:
        points: (UNIX seconds, global step) in order of time.
        marks: (UNIX seconds, kind of event).
    """
    figure = plotting.new_figure(9, 5)
    axes = figure.add_subplot()
    times = [t for t, _ in points] + [t for t, _ in marks]
    start = min(times) if times else 0.0
    axes.plot(
        [(t - start) / 3600 for t, _ in points], [s for _, s in points], "-", label="global step"
    )
    styles = {
        "preempted": ("tab:red", "--"),
        "failed": ("black", ":"),
        "created": ("tab:green", "-"),
    }
    named = set()
    for time, kind in marks:
        if kind not in styles:
            continue
        colour, line = styles[kind]
        label = kind if kind not in named else None
        named.add(kind)
        axes.axvline((time - start) / 3600, color=colour, linestyle=line, linewidth=1, label=label)
    axes.set(xlabel="hours since the first event", ylabel="global step", title=title)
    axes.grid(True, alpha=0.3)
    plotting.legend_below(figure)
    plotting.save(figure, path, dpi=110)
