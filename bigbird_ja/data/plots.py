"""Pictures of a data set: lengths, documents per sequence, density."""

from __future__ import annotations

import io

import numpy as np

from bigbird_ja import storage
from bigbird_ja.data.full_check import Found
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.errors import BadInput


def check_available() -> None:
    """Refuses early where matplotlib is not installed.

    Raises:
        BadInput: the extra `plot` is missing.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BadInput("--plot needs matplotlib: `pip install 'bigbird-ja[plot]'`") from error


def draw(path: str, manifest: Manifest, found: Found) -> None:
    """Writes a PNG with three histograms."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    FigureCanvasAgg(figure)
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
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    storage.write_bytes(path, buffer.getvalue())


def _bars(axes, counts: np.ndarray, names: list[str]) -> None:  # type: ignore[no-untyped-def]
    there = np.flatnonzero(counts)
    first, last = (int(there[0]), int(there[-1]) + 1) if len(there) else (0, 1)
    places = np.arange(last - first)
    axes.bar(places, counts[first:last])
    step = max(1, len(places) // 8)
    axes.set_xticks(places[::step], names[first:last:step], rotation=45)
