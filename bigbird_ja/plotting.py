"""Pictures: whether one can be drawn, and writing it as a PNG that says who made it."""

from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING

from bigbird_ja import __version__
from bigbird_ja.errors import BadInput
from bigbird_ja.storage import outputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check(path: str | None, flag: str) -> None:
    """Refuses, before any work, a picture that could not be drawn or written; None is fine.

    Raises:
        BadInput: matplotlib is not installed, or the place holds something that we did not draw.
    """
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput(f"{flag} needs matplotlib: pip install 'bigbird-ja[plot]'")
    outputs.check_output_file(path, flag, True, outputs.is_our_picture, "bigbird-ja")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: str, dpi: int) -> None:
    """Writes a figure as a PNG, on disk or gs://."""
    picture = io.BytesIO()
    software = f"{outputs.PICTURE_SOFTWARE} {__version__}"
    figure.savefig(picture, format="png", dpi=dpi, metadata={"Software": software})
    outputs.write(path, picture.getvalue())
