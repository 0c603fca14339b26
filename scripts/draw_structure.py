"""Draws the packages, their sizes and who imports whom.

    python -m scripts.draw_structure --output docs/images/structure.png
    python -m scripts.draw_structure --rev 620bf74 --output docs/images/structure-before.png

A box's area is its lines of code (`make size`); boxes stand above what they import, and an arrow
that points upwards would be a circle.
"""

from __future__ import annotations

import argparse
import ast

import matplotlib

matplotlib.use("Agg")

from matplotlib import patches
from matplotlib import pyplot as plt

from scripts import size

PACKAGE = "bigbird_ja"


def room_of(module: str) -> str:
    """The part of the package that a module belongs to: `bigbird_ja.data.order` -> `data`."""
    return (module.split(".") + ["__init__"])[1]


def graph(files: dict[str, str]) -> tuple[dict[str, int], set[tuple[str, str]]]:
    """Lines of code of each room, and which room imports which.

    Args:
        files: text by path.
    """
    ours = {path: text for path, text in files.items() if path.startswith(f"{PACKAGE}/")}
    modules = {path[:-3].replace("/", ".").removesuffix(".__init__"): path for path in ours}
    lines: dict[str, int] = {}
    edges: set[tuple[str, str]] = set()
    for module, path in modules.items():
        room = room_of(module)
        lines[room] = lines.get(room, 0) + size.code_lines(ours[path])
        for node in ast.walk(ast.parse(ours[path])):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != PACKAGE:
                continue
            for name in node.names:
                full = f"{node.module}.{name.name}"
                target = room_of(full if full in modules else str(node.module))
                if target not in (room, "__init__"):
                    edges.add((room, target))
    return {room: count for room, count in lines.items() if room != "__init__"}, edges


def floors(rooms: list[str], edges: set[tuple[str, str]]) -> dict[str, int]:
    """How far above the ground each room stands: one above the highest that it imports."""
    level = dict.fromkeys(rooms, 0)
    for _ in rooms:
        for above, below in edges:
            if above in level and below in level and (below, above) not in edges:
                level[above] = max(level[above], min(level[below] + 1, len(rooms)))
    return level


def draw(files: dict[str, str], title: str, output: str) -> None:
    """Writes the picture."""
    lines, edges = graph(files)
    level = floors(sorted(lines), edges)
    rows: dict[int, list[str]] = {}
    for room in sorted(lines, key=lambda name: -lines[name]):
        rows.setdefault(level[room], []).append(room)
    scale = 0.9 / max(lines.values()) ** 0.5
    place = {}
    for height, row in rows.items():
        for number, room in enumerate(row):
            place[room] = ((number - (len(row) - 1) / 2) * 1.25, height)
    figure, axis = plt.subplots(figsize=(9, 1.1 * (len(rows) + 1)), layout="constrained")
    for above, below in sorted(edges):
        axis.annotate(
            "", place[below], place[above],
            arrowprops={"arrowstyle": "-|>", "color": "#9aa0a6", "lw": 0.6, "alpha": 0.6},
        )  # fmt: skip
    for room, (x, y) in place.items():
        side = max(scale * lines[room] ** 0.5, 0.12)
        box = patches.Rectangle(
            (x - side / 2, y - side * 0.4),
            side,
            side * 0.8,
            facecolor="#cfe0f1",
            edgecolor="#4c78a8",
        )
        axis.add_patch(box)
        axis.text(x, y, f"{room}\n{lines[room]:,}", ha="center", va="center", fontsize=8)
    width = max(len(row) for row in rows.values()) * 0.65 + 0.3
    axis.set(xlim=(-width, width), ylim=(-0.6, max(rows) + 0.6))
    axis.axis("off")
    total = sum(lines.values())
    axis.set_title(f"{title}: {len(lines)} parts, {total:,} lines of code", fontsize=10)
    figure.savefig(output, dpi=110, metadata={"Software": ""})


def main() -> None:
    """Draws the working tree or a commit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rev", help="a commit; none: the working tree")
    parser.add_argument("--output", default="docs/images/structure.png")
    options = parser.parse_args()
    draw(size.read(options.rev), options.rev or "bigbird_ja", options.output)


if __name__ == "__main__":
    main()
