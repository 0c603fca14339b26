"""The probe's curve: accuracy against distance."""

from __future__ import annotations

import io
from typing import Any

from bigbird_ja import storage

_LINES = (
    ("model", "whole sequence", "#1f6feb", "o-"),
    ("window", "same weights, {window} tokens", "#d1242f", "s--"),
    ("unigram", "best constant guess", "#6e7781", "^:"),
)


def draw(result: dict[str, Any], path: str, title: str) -> None:
    """Draws what `probe.run` found as a PNG file, on disk or gs://.

    Raises:
        BadInput: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        from bigbird_ja.errors import BadInput

        raise BadInput("--plot needs matplotlib: pip install 'bigbird-ja[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = result["by_distance"]
    places = range(len(rows))
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
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
    axes.legend(frameon=False, loc="center left")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    pyplot.close(figure)
    storage.write_bytes(path, picture.getvalue())
