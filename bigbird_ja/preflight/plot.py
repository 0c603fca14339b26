"""The picture of a breakdown: one bar per chip or slice, cycles by kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bigbird_ja.preflight.breakdown import KINDS
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import plotting


def draw(path: str, chips: Sequence[dict[str, Any]], title: str) -> None:
    """Writes a PNG of the chips that fit.

    Raises:
        BadInput: none fits.
    """
    fitting = [chip for chip in chips if chip["fits"]]
    if not fitting:
        raise BadInput("--plot: the step fits none of the chips, so there is nothing to draw")
    figure = plotting.new_figure(9, 1.6 + 0.7 * len(fitting))
    axes = figure.add_subplot()
    colours = _colours()
    left = [0.0] * len(fitting)
    for kind in KINDS:
        widths = [chip["by_kind"].get(kind, 0) / 1e6 for chip in fitting]
        if any(widths):
            axes.barh(range(len(fitting)), widths, left=left, label=kind, color=colours[kind])
            left = [a + b for a, b in zip(left, widths, strict=True)]
    for place, chip in enumerate(fitting):
        text = f" {chip['step_ms']:.0f} ms, {chip['mfu']:.0%} of peak"
        axes.text(left[place], place, text, va="center", fontsize=8)
    axes.set_yticks(range(len(fitting)), [chip.get("topology", chip["chip"]) for chip in fitting])
    axes.invert_yaxis()
    axes.set_xlabel("priced cycles of one step on one core, millions")
    axes.set_title(title, fontsize=10)
    axes.set_xlim(right=max(left) * 1.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    plotting.save(figure, path, dpi=150)


def _colours() -> dict[str, Any]:
    from matplotlib import colormaps

    palette = colormaps["tab20"]
    return {kind: palette(place % 20) for place, kind in enumerate(KINDS)}
