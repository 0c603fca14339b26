"""Draws the pictures of docs/design/attention.md and kernel.md into docs/images/.

    .venv/bin/python -m scripts.draw_attention

Everything is computed from the code's own plan, so that the pictures cannot disagree with it.
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
from bigbird_ja.settings.resolve import resolve_config
from bigbird_ja.settings.schema import Config

_BLOCKS = 24
_NONE, _WINDOW, _GLOBAL, _RANDOM = range(4)
_COLOURS = ["#f4f4f2", "#4c78a8", "#9aa0a6", "#f58518"]
_OUTPUT = os.path.join("docs", "images")
# Of the kernel's picture: why a step reads a half of a key tile.
_STEPS = 16
_NO, _OWN, _OUTER, _FIRST, _SHIFTED, _ALL = range(6)
_STEP_COLOURS = ["#f4f4f2", "#4c78a8", "#9ecae9", "#9aa0a6", "#f58518", "#c9ccd1"]
_REASONS = ["", "own tile", "blocks beside it", "global tile", "random tiles", "tile 0 sees all"]


def main() -> None:
    """Writes attention-plan.png, attention-layout.png and attention-kernel.png."""
    os.makedirs(_OUTPUT, exist_ok=True)
    _save(_draw_plan(), "attention-plan.png")
    _save(_draw_layout(), "attention-layout.png")
    _save(_draw_walks(), "attention-kernel.png")


def _save(figure: plt.Figure, name: str) -> None:
    path = os.path.join(_OUTPUT, name)
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": ""})
    plt.close(figure)
    print(path)


def _config(random_pattern: str, blocks: int = _BLOCKS) -> Config:
    sets = {"make_data.seq_length": blocks * 64, "model.random_pattern": random_pattern}
    config, _ = resolve_config(None, [f"{key}={value}" for key, value in sets.items()])
    return config


def kinds(config: Config, head: int) -> np.ndarray:
    """int [n, n]: why a block row sees a block (none, window, global, random), in layer 0."""
    mask = pattern.block_mask(config, 0, _BLOCKS * config.model.block_size)[head]
    row, column = np.indices(mask.shape)
    result = np.where(mask, _RANDOM, _NONE)
    result[abs(row - column) <= 1] = _WINDOW
    ends = (0, _BLOCKS - 1)
    result[np.isin(row, ends) | np.isin(column, ends)] = _GLOBAL
    return result


def _draw_plan() -> plt.Figure:
    figure, axes = plt.subplots(1, 4, figsize=(15, 4.2))
    panels = [(name, head) for name in ("independent", "rolled") for head in (0, 1)]
    for axis, (name, head) in zip(axes, panels, strict=True):
        axis.imshow(kinds(_config(name), head), cmap=colors.ListedColormap(_COLOURS), vmax=3)
        axis.set_xticks(np.arange(-0.5, _BLOCKS), minor=True)
        axis.set_yticks(np.arange(-0.5, _BLOCKS), minor=True)
        axis.grid(which="minor", color="white", linewidth=0.8)
        axis.tick_params(which="minor", length=0)
        axis.set_title(f"{name}, head {head + 1}")
        axis.set_xlabel("key block")
    axes[0].set_ylabel("query block")
    handles = [
        patches.Patch(color=_COLOURS[kind], label=label)
        for kind, label in ((_WINDOW, "window"), (_GLOBAL, "global"), (_RANDOM, "random"))
    ]
    figure.legend(handles=handles, loc="lower center", ncol=3, frameon=False)
    return figure


def _draw_layout() -> plt.Figure:
    figure, axis = plt.subplots(figsize=(13, 6.4))
    axis.set_xlim(-3.2, 22)
    axis.set_ylim(-10.4, 2.2)
    axis.axis("off")
    last = 2 * _TILES - 1
    axis.text(-3.1, 0.45, "sequence", va="center")
    for block in range(last + 1):
        _box(axis, block, 0, str(block), _GLOBAL if block in (0, last) else _NONE)
    axis.text(-3.1, -1.55, "rotated by one\nblock, in tiles", va="center")
    for place in range(last + 1):
        block = (place - 1) % (last + 1)
        _box(axis, place, -2, str(block), _GLOBAL if block in (0, last) else _NONE)
    for tile in range(_TILES):
        frame = patches.Rectangle((2 * tile, -2), 2, 0.9, fill=False, linewidth=2.2)
        axis.add_patch(frame)
        axis.text(2 * tile + 1, -2.5, f"tile {tile}", ha="center", fontsize=9)
    _draw_pieces(axis)
    return figure


_TILES = 10
_TILE = 4  # the one whose pieces are drawn


def _draw_pieces(axis: Axes) -> None:
    first, second = 2 * _TILE - 1, 2 * _TILE
    axis.text(-3.1, -4.3, f"what tile {_TILE}\nis multiplied with", va="center")
    pieces: list[tuple[str, tuple[int, int], int]] = [
        ("own", (first, second), _WINDOW),
        ("outer", (second + 1, first - 1), _WINDOW),
        ("global", (2 * _TILES - 1, 0), _GLOBAL),
    ]
    for number, shift in enumerate((2, 5), start=1):
        other = 1 + (_TILE - 1 + shift) % (_TILES - 1)
        pieces.append((f"random {number}\n(shift {shift})", (2 * other - 1, 2 * other), _RANDOM))
    for index, (name, blocks, kind) in enumerate(pieces):
        left = 4.2 * index
        for half, block in enumerate(blocks):
            _box(axis, left + half, -4.7, str(block), kind)
        axis.text(left + 1, -5.4, name, ha="center", va="center", fontsize=10)
        for query in (0, 1):
            for half in (0, 1):
                seen = name != "outer" or query != half
                colour = _COLOURS[kind] if seen else "white"
                square = patches.Rectangle(
                    (left + half, -7.3 - query), 1, 1, facecolor=colour, edgecolor="black"
                )
                axis.add_patch(square)
    for query, block in enumerate((first, second)):
        axis.text(-0.35, -6.8 - query, str(block), ha="right", va="center")
    axis.text(-3.1, -7.3, "scores, by\nquery block", va="center")
    axis.text(
        -3.1,
        -9.6,
        "One row maximum and one row sum over all five; the pieces are never joined to one array."
        "\nWhite: computed and masked, because a whole 128 x 128 product is cheaper than halves.",
        va="center",
    )


def _draw_walks() -> plt.Figure:
    """How the kernel walks the tiles, for two heads of a group."""
    figure, axes = plt.subplots(1, 2, figsize=(13, 5.6), sharey=True)
    plans = pattern.random_plan(_config("rolled", 2 * _STEPS), 2 * _STEPS * 64)
    assert plans is not None and plans[0].shifts is not None
    for head, axis in enumerate(axes):
        shifts = plans[0].shifts[head]
        axis.imshow(
            read(shifts), cmap=colors.ListedColormap(_STEP_COLOURS), vmin=0, vmax=_ALL,
            aspect="auto", extent=(-0.5, _STEPS - 0.5, _STEPS - 0.5, -0.5),
        )  # fmt: skip
        for line in np.arange(-0.5, _STEPS):
            axis.axvline(line, color="white", linewidth=1.2)
            axis.axhline(line, color="white", linewidth=1.2)
        words = " and ".join(str(int(shift)) for shift in shifts)
        axis.set_title(f"head {head + 1} of the group: shifts {words}")
        axis.set(xlabel="key tile, in vector memory", xticks=range(0, _STEPS, 2))
        axis.set_yticks(range(0, _STEPS, 2))
    axes[0].set_ylabel("query tile = step of the loop")
    named = list(zip(_STEP_COLOURS, _REASONS, strict=True))[_OWN:]
    handles = [patches.Patch(color=colour, label=label) for colour, label in named]
    figure.legend(handles=handles, loc="lower center", ncol=len(handles), frameon=False)
    figure.subplots_adjust(bottom=0.19, wspace=0.06)
    return figure


def read(shifts: np.ndarray) -> np.ndarray:
    """int [T, 2 T]: why the step of a query tile reads each half of each key tile.

    Args:
        shifts: of one head.
    """
    kinds = np.full((_STEPS, 2 * _STEPS), _NO)
    for j in range(1, _STEPS):
        for shift in shifts:
            tile = 1 + (j - 1 + int(shift)) % (_STEPS - 1)
            kinds[j, 2 * tile : 2 * tile + 2] = _SHIFTED
        kinds[j, 2 * j : 2 * j + 2] = _OWN
        kinds[j, :2] = _FIRST
        if j + 1 < _STEPS:
            kinds[j, 2 * (j + 1)] = _OUTER
        if j > 1:
            kinds[j, 2 * (j - 1) + 1] = _OUTER
    kinds[0] = _ALL
    return kinds


def _box(axis: Axes, x: float, y: float, text: str, kind: int) -> None:
    axis.add_patch(patches.Rectangle((x, y), 1, 0.9, facecolor=_COLOURS[kind], edgecolor="#888888"))
    axis.text(x + 0.5, y + 0.45, text, ha="center", va="center", fontsize=9)


if __name__ == "__main__":
    main()
