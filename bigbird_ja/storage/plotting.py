"""Pictures, and writing one as a PNG that says who made it."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from bigbird_ja import __version__
from bigbird_ja.storage import outputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Makes an empty figure of so many inches."""
    os.environ["MPLBACKEND"] = "agg"  # a notebook's backend may be missing in this environment
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def plain_scale(axis: Any) -> None:
    """A logarithmic axis, `axes.xaxis` or `axes.yaxis`, with the ticks 1, 2, 5, 10, 20, ..."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_locator(NullLocator())


def legend_below(figure: Figure) -> None:
    """A legend under the picture, where no line runs through it; as many columns as fit."""
    labels = [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]
    inches = 0.6 + 0.075 * max(map(len, labels))  # a line, and letters of 10 points
    columns = min(4, len(labels), int(figure.get_figwidth() / inches) or 1)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False)


def save(figure: Figure, path: str, dpi: int) -> None:
    """Writes a figure as a PNG, on disk or gs://."""
    picture = io.BytesIO()
    software = f"bigbird-ja {__version__}"
    figure.savefig(picture, format="png", dpi=dpi, metadata={"Software": software})
    outputs.write(path, picture.getvalue())
