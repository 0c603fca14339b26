"""Pictures, and writing one as a PNG that says who made it."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

from bigbird_ja import __version__
from bigbird_ja.storage import outputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def plain_scale(axis: Any, low: float, high: float) -> None:
    """A logarithmic axis with ticks that people read: 1, 2, 5, 10, 20, ...

    Args:
        axis: `axes.xaxis` or `axes.yaxis`.
        low, high: the smallest and the largest value that is drawn.
    """
    from matplotlib.ticker import FuncFormatter, NullLocator

    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in (1, 2, 5)]
    margin = 1.3
    shown = [tick for tick in ticks if low / margin <= tick <= high * margin]
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(shown, [f"{tick:,.10g}" for tick in shown])


def legend_below(figure: Figure) -> None:
    """A legend under the picture, where no line runs through it."""
    labels = sum(len(axes.get_legend_handles_labels()[1]) for axes in figure.axes)
    figure.legend(loc="outside lower center", ncols=min(4, labels), frameon=False)


def save(figure: Figure, path: str, dpi: int) -> None:
    """Writes a figure as a PNG, on disk or gs://."""
    picture = io.BytesIO()
    software = f"bigbird-ja {__version__}"
    figure.savefig(picture, format="png", dpi=dpi, metadata={"Software": software})
    outputs.write(path, picture.getvalue())
