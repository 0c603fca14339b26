"""Charts as inline SVG, drawn by matplotlib with the colors of the page's style sheet.

The same logs always give the same bytes, since the SVG contains no dates, and its ids depend only
on its content. Text is not converted to paths, so that the reader's fonts are used.
"""

from __future__ import annotations

import html
import io
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_COLORS = 6
# Maximum number of points of a line.
_MAX_POINTS = 250

# Names of the style sheet's variables, by the color that matplotlib uses in place of the variable.
# Each variable has one value for light mode and one for dark mode.
_VARIABLES = {
    "#0969da": "--c0", "#d1480f": "--c1", "#1a7f37": "--c2", "#8250df": "--c3", "#bf3989": "--c4",
    "#9a6700": "--c5", "#656d76": "--soft", "#d8dee4": "--line",
}  # fmt: skip
_COLORS = {name: color for color, name in _VARIABLES.items()}
_SOFT, _LINE = _COLORS["--soft"], _COLORS["--line"]
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "bigbird-ja", "font.size": 9,
    "text.parse_math": False,  # A run's name may contain dollar signs.
    "text.color": _SOFT, "axes.labelcolor": _SOFT, "axes.edgecolor": _LINE, "xtick.color": _SOFT,
    "ytick.color": _SOFT, "axes.grid": True, "grid.color": _LINE, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Line of a chart."""

    label: str
    points: Sequence[tuple[float, float]]
    color: int  # Index of the run.
    is_dots: bool = False


def get_color(number: int) -> str:
    """Return the color of run `number`."""
    return _COLORS[f"--c{number % NUM_COLORS}"]


def draw_line_chart(title: str, series: Sequence[Series], is_share: bool = False) -> str:
    """Return a chart of lines with the step on the x axis, or a note if nothing was logged.

    Args:
        title: title of the chart.
        series: lines to draw.
        is_share: whether to show values as percentages.
    """
    series = [s for s in series if len(s.points)]
    if not series:
        return _make_card(title, '<p class="none">nothing logged yet</p>')
    from matplotlib.ticker import EngFormatter, PercentFormatter

    def draw(axes: Axes) -> None:
        for s in series:
            steps, values = thin(s.points)
            style = "o" if s.is_dots else "-"
            axes.plot(steps, values, style, label=s.label, color=get_color(s.color), markersize=4)
        axes.set_xlabel("step")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if is_share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))

    return _draw(title, draw)


def draw_bar_chart(title: str, tables: Mapping[str, Mapping[str, float | None]]) -> str:
    """Return a bar chart with a group of bars for each label.

    `tables` contains a dict for each series, with fractions by label.
    """
    from matplotlib.ticker import PercentFormatter

    labels = list(dict.fromkeys(label for table in tables.values() for label in table))

    def draw(axes: Axes) -> None:
        width = 0.8 / len(tables)
        for index, (name, table) in enumerate(tables.items()):
            places = np.arange(len(labels)) - 0.4 + (index + 0.5) * width
            shares = np.array([table.get(label) for label in labels], float)  # None becomes NaN.
            known = ~np.isnan(shares)
            axes.bar(places[known], shares[known], 0.92 * width, color=get_color(index), label=name)
        axes.set_xticks(range(len(labels)), labels)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))

    return _draw(title, draw)


def thin(points: Sequence[tuple[float, float]], most: int = _MAX_POINTS) -> Any:
    """Return the x and y of a line that is reduced to at most `most` points.

    A longer line is divided into parts of about equal size. The result contains the mean point of
    each part, and the last point.
    """
    rows = np.array(points, np.float64)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if len(rows) > most:
        parts = np.array_split(rows[:-1], most - 1)
        rows = np.array([*(part.mean(axis=0) for part in parts), rows[-1]])
    return rows.T


def _draw(title: str, draw: Callable[[Axes], None]) -> str:
    """Return an HTML card with a chart that the function `draw` draws into axes."""
    # In child processes of a notebook, MPLBACKEND may name a backend that is not installed.
    os.environ["MPLBACKEND"] = "agg"
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # The browser's fonts are used.
        figure = make_figure(7.8, 3.4)
        axes = figure.add_subplot()
        draw(axes)
        if axes.get_legend_handles_labels()[1]:
            add_legend_below(figure)
        unstamped = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=unstamped)
    svg = file.getvalue()
    for drawn, variable in _VARIABLES.items():
        svg = svg.replace(drawn, f"var({variable})")
    size_of_view = svg[svg.index("viewBox=") :].split('"')[1]
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    label = html.escape(title)
    picture = f'<svg viewBox="{size_of_view}" role="img" aria-label="{label}">{body}'
    return _make_card(title, picture)


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure of some width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def add_legend_below(figure: Figure) -> None:
    """Put a legend below the chart, in as many columns as fit."""
    labels = [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]
    inches = 0.6 + 0.075 * max(map(len, labels))  # Width of the sample line and of the letters.
    columns = min(4, len(labels), int(figure.get_figwidth() / inches) or 1)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False)


def _make_card(title: str, body: str) -> str:
    return f'<figure class="card"><figcaption>{html.escape(title)}</figcaption>{body}</figure>'
