"""Pictures of a data set: lengths, documents per sequence, density."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bigbird_ja import plotting
from bigbird_ja.data.manifest import Manifest

if TYPE_CHECKING:
    from bigbird_ja.data.full_check import Found


def draw(path: str, manifest: Manifest, found: Found) -> None:
    """Writes a PNG with three histograms."""
    figure = plotting.new_figure(13, 4)
    lengths, pieces, density = figure.subplots(1, 3)
    stated = manifest.statistics.get("document_tokens")
    counts = np.asarray(stated if stated else found.piece_tokens)
    _bars(lengths, counts, [f"{2**i:,}" for i in range(len(counts))])
    what = "documents" if stated else "packed pieces"
    lengths.set(title=f"Length of {what}", xlabel="tokens, from", ylabel=what)
    _bars(pieces, found.pieces, [str(i) for i in range(len(found.pieces))])
    pieces.set(title="Documents per sequence", xlabel="documents", ylabel="sequences")
    density.hist(found.densities, bins=np.linspace(0, 1, 51).tolist())
    density.set(
        title=f"Density: {manifest.density:.2%} of positions are tokens",
        xlabel=f"share of {manifest.seq_length:,} positions", ylabel="sequences", yscale="log",
    )  # fmt: skip
    plotting.save(figure, path, dpi=120)


def _bars(axes, counts: np.ndarray, names: list[str]) -> None:  # type: ignore[no-untyped-def]
    there = np.flatnonzero(counts)
    first, last = (int(there[0]), int(there[-1]) + 1) if len(there) else (0, 1)
    places = np.arange(last - first)
    axes.bar(places, counts[first:last])
    step = max(1, len(places) // 8)
    axes.set_xticks(places[::step], names[first:last:step], rotation=45)
