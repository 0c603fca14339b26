"""The probe's curve: accuracy against distance."""

from __future__ import annotations

from typing import Any

from bigbird_ja.storage import plotting

_LINES = (
    ("model", "whole sequence", "#1f6feb", "o-"),
    ("window", "same weights, {window} tokens", "#d1242f", "s--"),
    ("unigram", "best constant guess", "#6e7781", "^:"),
)


def draw(result: dict[str, Any], path: str, title: str) -> None:
    """Draws what `probe.run` found as a PNG file, on disk or gs://."""
    rows = result["by_distance"]
    places = range(len(rows))
    figure = plotting.new_figure(7.5, 4.5)
    axes = figure.add_subplot()
    for key, label, colour, style in _LINES:
        values = [100 * row[key] for row in rows]
        text = label.format(window=result["window_tokens"])
        axes.plot(places, values, style, color=colour, label=text, linewidth=2)
    labels = [f"{row['from']}–{row['to'] - 1}\nn={row['count']}" for row in rows]
    axes.set_xticks(list(places), labels, fontsize=8)
    axes.set_ylim(-2, 102)
    axes.set_xlabel("distance to the nearest earlier mention (tokens)")
    axes.set_ylabel("masked tokens of the name filled in (%)")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    plotting.legend_below(figure)
    plotting.save(figure, path, dpi=130)
