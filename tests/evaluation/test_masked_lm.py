"""The evaluation counts each held-out prediction once, and its summary is computed correctly."""

import math

import numpy as np
import pytest

from bigbird_ja.evaluation import masked_lm
from bigbird_ja.model.pattern import padded_length


def test_every_held_out_prediction_is_counted_once(result, manifest):
    assert result["sequences"] == manifest.eval.sequences
    for key in ("by_position", "by_distance"):
        assert sum(row["count"] for row in result[key]) == result["predictions"]
        mean = sum(row["count"] * row["loss"] for row in result[key]) / result["predictions"]
        assert mean == pytest.approx(result["masked_lm_loss"], rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(result["masked_lm_loss"]))
    assert 0 < result["bits_per_character"] < 20


def test_next_sentences_and_bits_per_character_are_summarized(manifest):
    collected = {
        "loss": np.array([1.0, 2.0, 4.0]),
        "accuracy": np.array([1.0, 0.0, 0.0]),
        "position": np.array([1, 2, 3]),
        "distance": np.array([1, 2, -1]),
        "id": np.array([20, 21, 22]),
        "rows": np.arange(3),
        "next_sentence_losses": np.array([0.5, 0.5, 0.5]),
        "next_sentence_correct": np.array([1.0, 1.0, 0.0]),
    }
    measured = masked_lm.summarize(collected, manifest, np.full(manifest.vocab_size, 2))
    assert measured["masked_lm_loss"] == pytest.approx(7 / 3)
    assert measured["next_sentence_accuracy"] == pytest.approx(2 / 3)
    assert measured["bits_per_character"] == pytest.approx(7 / math.log(2) / 6)


def test_padding_changes_no_prediction(forward):
    ids = np.random.default_rng(0).integers(11, 500, (1, 200))
    positions = np.array([[3, 100, 199]])
    scores = forward.compute_log_probabilities(ids, positions)
    assert np.exp(scores).sum(axis=-1) == pytest.approx(1.0, abs=1e-4)
    padded = np.pad(ids, [(0, 0), (0, padded_length(forward.config.model, 200) - 200)])
    np.testing.assert_allclose(
        forward.compute_log_probabilities(padded, positions), scores, atol=1e-5
    )
    with pytest.raises(ValueError, match="the model accepts at most 256"):
        forward.compute_log_probabilities(np.ones((1, 300), int), positions)


def test_distances_equal_a_direct_search():
    random = np.random.default_rng(0)
    ids = random.integers(0, 12, (4, 40))
    positions = np.stack([np.sort(random.permutation(40)[:7]) for _ in range(4)])
    targets = random.integers(0, 14, (4, 7))  # The records do not contain 12 and 13.
    measured = masked_lm.measure_distances(ids, positions, targets)
    for (row, place), distance in np.ndenumerate(measured):
        others = np.flatnonzero(ids[row] == targets[row, place])
        gaps = np.abs(others - positions[row, place])
        assert distance == min(gaps[gaps > 0], default=masked_lm.NO_DISTANCE)


def test_buckets_count_each_value_once():
    assert masked_lm.make_position_edges(4096, 4) == [0, 1024, 2048, 3072, 4096]
    assert masked_lm.make_distance_edges(100, first=32) == [0, 32, 64, 100]
    values = np.array([0, 5, 9, 10, 99, masked_lm.NO_DISTANCE])
    columns = {"loss": np.arange(6.0)}
    rows = masked_lm.compute_bucket_means([0, 10, 50, 100], values, columns)
    spans = [(row["from"], row["to"], row["count"]) for row in rows]
    assert spans == [(0, 10, 3), (10, 50, 1), (50, 100, 1), (None, None, 1)]
    assert rows[0]["loss"] == pytest.approx(1.0)
