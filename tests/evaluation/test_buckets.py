"""Buckets against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bigbird_ja.evaluation import buckets


def test_position_edges_cover_the_sequence():
    assert buckets.position_edges(4096, 4) == [0, 1024, 2048, 3072, 4096]
    assert buckets.position_edges(3, 8) == [0, 1, 2, 3]


def test_distance_edges_double():
    assert buckets.distance_edges(256) == [0, 16, 32, 64, 128, 256]
    assert buckets.distance_edges(100, first=64) == [0, 64, 100]


def test_distances_equal_a_search_by_hand():
    random = np.random.default_rng(0)
    ids = random.integers(0, 12, (4, 40))
    positions = np.stack([np.sort(random.permutation(40)[:7]) for _ in range(4)])
    targets = random.integers(0, 14, (4, 7))  # 12 and 13 are nowhere
    found = buckets.distances_to_same_piece(ids, positions, targets)
    for row in range(4):
        for place in range(7):
            at = positions[row, place]
            gaps = [
                abs(i - at) for i in range(40) if i != at and ids[row, i] == targets[row, place]
            ]
            assert found[row, place] == (min(gaps) if gaps else buckets.NO_DISTANCE)


def test_summary_counts_everything_once():
    values = np.array([0, 5, 9, 10, 99, buckets.NO_DISTANCE])
    columns = {"loss": np.arange(6.0)}
    rows = buckets.summarise([0, 10, 50, 100], values, columns)
    spans = [(row["from"], row["to"], row["count"]) for row in rows]
    assert spans == [(0, 10, 3), (10, 50, 1), (50, 100, 1), (None, None, 1)]
    assert rows[0]["loss"] == pytest.approx(1.0)
