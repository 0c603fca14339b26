"""Predictions in buckets: by place in the sequence, by distance to what would tell them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

NO_DISTANCE = -1


def position_edges(seq_length: int, count: int = 8) -> list[int]:
    """`count` buckets of equal width over a sequence: their starts, and the end."""
    count = min(count, seq_length)
    return [seq_length * i // count for i in range(count + 1)]


def distance_edges(seq_length: int, first: int = 16) -> list[int]:
    """Buckets that double in width: 0, 16, 32, ... up to the sequence's length."""
    edges = [0]
    edge = first
    while edge < seq_length:
        edges.append(edge)
        edge *= 2
    return [*edges, seq_length]


def distances_to_same_piece(
    input_ids: np.ndarray, positions: np.ndarray, ids: np.ndarray
) -> np.ndarray:
    """How far from each masked token the nearest visible token of the same piece stands.

    Args:
        input_ids: int [b, S], what the model reads (masked).
        positions: int [b, P], of the predictions.
        ids: int [b, P], what was there.

    Returns:
        int64 [b, P], in tokens, on either side; `NO_DISTANCE` where the sequence shows the piece
        nowhere else.
    """
    batch, length = input_ids.shape
    found = np.full(positions.shape, NO_DISTANCE, np.int64)
    places = np.arange(length, dtype=np.int64)
    for row in range(batch):
        # Sorted by piece, then by place: neighbours of a piece's own place are the nearest ones.
        keys = np.sort(input_ids[row].astype(np.int64) * length + places)
        wanted = ids[row].astype(np.int64) * length + positions[row]
        before = np.searchsorted(keys, wanted, side="left") - 1
        after = np.searchsorted(keys, wanted, side="right")
        for index in (before, after):
            inside = (index >= 0) & (index < length)
            key = keys[np.clip(index, 0, length - 1)]
            same = inside & (key // length == ids[row])
            gap = np.abs(key - wanted)
            nearer = same & ((found[row] == NO_DISTANCE) | (gap < found[row]))
            found[row][nearer] = gap[nearer]
    return found


def summarise(
    edges: Sequence[int], values: np.ndarray, columns: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """Means per bucket.

    Args:
        edges: ascending; bucket i holds edges[i] <= value < edges[i + 1].
        values: int [n], what is sorted by.
        columns: name -> float [n], what is averaged.

    Returns:
        One dict per bucket that holds anything: `from`, `to` (exclusive), `count`, and the means.
        Values below the first edge (`NO_DISTANCE`) come last, with `from` and `to` None.
    """
    rows = []
    spans: list[tuple[int | None, int | None]] = list(pairwise(edges))
    for start, end in [*spans, (None, None)]:
        if start is None or end is None:
            chosen = values < edges[0]
        else:
            chosen = (values >= start) & (values < end)
        count = int(chosen.sum())
        if count:
            means = {name: float(column[chosen].mean()) for name, column in columns.items()}
            rows.append({"from": start, "to": end, "count": count, **means})
    return rows
