"""The probe finds repeated names, hides the right mentions, and scores guesses."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bigbird_ja.evaluation import probe
from bigbird_ja.text import articles
from bigbird_ja.text import tokenizer as tokenizer_lib


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path):
    return tokenizer_lib.load(tokenizer_path)


@pytest.fixture(scope="module")
def records(tokenizer):
    texts = articles.documents(12, seed=5, mean_length=4000, facts=6.0)
    return list(probe.documents_as_ids(texts, tokenizer, 2048))


class Constant:
    """A model that puts one piece everywhere."""

    config = SimpleNamespace(model=SimpleNamespace(max_position_embeddings=2048))

    def __init__(self, piece, vocab_size):
        self._scores = np.eye(vocab_size, dtype=np.float32)[piece]

    def log_probabilities(self, ids, positions):
        return np.broadcast_to(self._scores, (*positions.shape, len(self._scores)))


def test_cases_hide_the_mention_and_all_later_ones_also_in_a_window(records, tokenizer):
    cases = probe.find_cases(records, tokenizer, probe.generated_names)
    special = tokenizer.special
    assert len(cases) > 20 and max(case.distance for case in cases) > 1000
    for case in cases:
        whole = records[case.record]
        assert (case.input_ids[case.positions] == special.mask).all()
        np.testing.assert_array_equal(whole[case.positions], case.ids)
        # The earlier mention is still there, `distance` tokens back.
        earlier = case.positions - case.distance
        np.testing.assert_array_equal(case.input_ids[earlier], case.ids)
        changed = np.flatnonzero(case.input_ids != whole)
        assert (changed >= case.positions[0]).all()
        # The window keeps the name, sees no further back, and is a sequence of its own.
        limited = probe.limit(case, special, 512)
        assert limited.input_ids.shape == (512,)
        assert (limited.input_ids[limited.positions] == special.mask).all()
        used = limited.input_ids[limited.input_ids != special.pad]
        assert used[0] == special.cls and used[-1] == special.sep
        assert case.distance <= 512 or limited.positions[0] <= case.distance


def test_right_tokens_are_counted_by_distance(records, tokenizer):
    cases = probe.find_cases(records, tokenizer, probe.generated_names)
    piece = np.bincount(np.concatenate([case.ids for case in cases])).argmax()
    model = Constant(piece, tokenizer.vocab_size)
    measured = probe.run(model, tokenizer, records, probe.generated_names)
    assert measured["cases"] == len(cases) == sum(row["count"] for row in measured["by_distance"])
    shares = {row["from"]: [] for row in measured["by_distance"]}
    for case in cases:
        start = max(start for start in shares if start <= case.distance)
        shares[start].append((case.ids == piece).mean())
    assert {row["from"]: row["model"] for row in measured["by_distance"]} == {
        start: pytest.approx(np.mean(share)) for start, share in shares.items()
    }
    overall = measured["overall"]
    assert 0 < overall["model"] == overall["window"] <= overall["unigram"] < 0.3
    assert probe.run(model, tokenizer, [], probe.generated_names)["cases"] == 0


def test_rare_names_of_any_text():
    texts = [
        "ナポレオンは島で生まれた。後にナポレオンは皇帝となった。東京大学。",
        "東京大学は東京大学である。",
    ]
    pairs = probe.repeated_names(texts)
    assert len(pairs[0]) == 1
    (first, later) = pairs[0][0]
    assert texts[0][slice(*first)] == texts[0][slice(*later)] == "ナポレオン"
    assert pairs[1] == []  # two texts have it: not rare
