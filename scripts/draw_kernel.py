"""Draws how the attention kernel walks the tiles, for docs/design/kernel.md.

    .venv/bin/python -m scripts.draw_kernel

Computed from the plan that the model uses, so that the picture cannot disagree with it.
"""

from __future__ import annotations

import os

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import colors, patches
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bigbird_ja.model import pattern
from bigbird_ja.settings.resolve import complete_config, resolve_config

_TILES = 16
_PATH = os.path.join("docs", "images", "attention-kernel.png")
_NONE, _OWN, _OUTER, _GLOBAL, _RANDOM, _ALL = range(6)
_COLOURS = ["#f4f4f2", "#4c78a8", "#9ecae9", "#9aa0a6", "#f58518", "#c9ccd1"]
_NAMES = ["", "own tile", "blocks beside it", "global tile", "random tiles", "tile 0 sees all"]


def main() -> None:
    """Writes docs/images/attention-kernel.png."""
    figure, axes = plt.subplots(1, 2, figsize=(13, 5.6), sharey=True)
    for head, axis in enumerate(axes):
        _draw_walk(axis, head)
    axes[0].set_ylabel("query tile = step of the loop")
    handles = [
        patches.Patch(color=_COLOURS[kind], label=_NAMES[kind]) for kind in range(1, len(_NAMES))
    ]
    figure.legend(handles=handles, loc="lower center", ncol=len(handles), frameon=False)
    figure.subplots_adjust(bottom=0.19, wspace=0.06)
    figure.savefig(_PATH, dpi=110, bbox_inches="tight", metadata={"Software": ""})
    plt.close(figure)
    print(_PATH)


def read(shifts: np.ndarray) -> np.ndarray:
    """int [T, 2 T]: why the step of a query tile reads each half of each key tile.

    Args:
        shifts: of one head.
    """
    kinds = np.full((_TILES, 2 * _TILES), _NONE)
    for j in range(1, _TILES):
        for shift in shifts:
            tile = 1 + (j - 1 + int(shift)) % (_TILES - 1)
            kinds[j, 2 * tile : 2 * tile + 2] = _RANDOM
        kinds[j, 2 * j : 2 * j + 2] = _OWN
        kinds[j, :2] = _GLOBAL
        if j + 1 < _TILES:
            kinds[j, 2 * (j + 1)] = _OUTER
        if j > 1:
            kinds[j, 2 * (j - 1) + 1] = _OUTER
    kinds[0] = _ALL
    return kinds


def _draw_walk(axis: Axes, head: int) -> None:
    sets = {"make_data.seq_length": 2 * _TILES * 64}
    config, _ = resolve_config(None, [f"{key}={value}" for key, value in sets.items()])
    plans = pattern.random_plan(complete_config(config))
    assert plans is not None and plans[0].shifts is not None
    shifts = plans[0].shifts[head]
    axis.imshow(
        read(shifts), cmap=colors.ListedColormap(_COLOURS), vmin=0, vmax=len(_COLOURS) - 1,
        aspect="auto", extent=(-0.5, _TILES - 0.5, _TILES - 0.5, -0.5),
    )  # fmt: skip
    for line in np.arange(-0.5, _TILES):
        axis.axvline(line, color="white", linewidth=1.2)
        axis.axhline(line, color="white", linewidth=1.2)
    words = " and ".join(str(int(shift)) for shift in shifts)
    axis.set_title(f"head {head + 1} of the group: shifts {words}")
    axis.set_xlabel("key tile, in vector memory")
    axis.set_xticks(range(0, _TILES, 2))
    axis.set_yticks(range(0, _TILES, 2))


if __name__ == "__main__":
    main()
