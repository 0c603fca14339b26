"""The probe finds repeated names, hides the right mentions, and scores guesses."""

from __future__ import annotations

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


class Oracle:
    """Knows the records: fills in what really stands there if the name is visible before."""

    def __init__(self, records, vocab_size):
        self._truth = {row.tobytes(): row for row in records}
        self._records, self._vocab_size = records, vocab_size

    class config:  # noqa: N801
        class model:  # noqa: N801
            max_position_embeddings = 2048

    def log_probabilities(self, ids, positions):
        found = np.full((*positions.shape, self._vocab_size), -9.0, np.float32)
        for row in range(len(ids)):
            for place, at in enumerate(positions[row]):
                guess = self._guess(ids[row], int(at))
                if guess is not None:
                    found[row, place, guess] = 0.0
        return found

    def _guess(self, ids, at):
        """Copies what follows the longest same stretch earlier, as who looks back would."""
        start = at
        while ids[start - 1] == 6:
            start -= 1
        for size in (7, 6, 5, 4):
            key = ids[start - size : start]
            for i in range(size, start):
                if np.array_equal(ids[i - size : i], key) and ids[i] != 6:
                    return int(ids[i + at - start])
        return None


def test_cases_hide_the_mention_and_all_later_ones(records, tokenizer):
    cases = probe.find_cases(records, tokenizer, probe.generated_names)
    assert len(cases) > 20
    for case in cases:
        whole = records[case.record]
        assert (case.input_ids[case.positions] == tokenizer.special.mask).all()
        np.testing.assert_array_equal(whole[case.positions], case.ids)
        # The earlier mention is still there, `distance` tokens back.
        earlier = case.positions - case.distance
        np.testing.assert_array_equal(case.input_ids[earlier], case.ids)
        changed = np.flatnonzero(case.input_ids != whole)
        assert (changed >= case.positions[0]).all()


def test_the_window_keeps_the_name_and_is_well_formed(records, tokenizer):
    special = tokenizer.special
    for case in probe.find_cases(records, tokenizer, probe.generated_names):
        limited = probe.limit(case, special, 512)
        assert limited.input_ids.shape == (512,)
        assert (limited.input_ids[limited.positions] == special.mask).all()
        used = limited.input_ids[limited.input_ids != special.pad]
        assert used[0] == special.cls and used[-1] == special.sep
        visible = limited.positions[0] - case.distance > 0
        if case.distance > 512:
            assert not visible


@pytest.mark.nightly
def test_a_model_that_looks_back_beats_the_window(records, tokenizer):
    found = probe.run(
        Oracle(records, tokenizer.vocab_size), tokenizer, records, probe.generated_names
    )
    assert found["cases"] == sum(row["count"] for row in found["by_distance"])
    far = [row for row in found["by_distance"] if row["from"] >= 512]
    near = [row for row in found["by_distance"] if row["to"] <= 256]
    assert far and all(row["model"] > 2 * row["window"] for row in far)
    assert all(row["unigram"] < 0.3 for row in far)
    assert np.mean([row["window"] for row in near]) > 2 * np.mean([row["window"] for row in far])
    assert 0 <= found["overall"]["model_names"] <= found["overall"]["model"]


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


def test_rare_names_of_real_text(real_text_path, tokenizer):
    from bigbird_ja.text.corpus import open_corpus

    documents = open_corpus([real_text_path]).documents()
    texts = [document.text for document, _ in zip(documents, range(200), strict=False)]
    records = list(probe.documents_as_ids(texts, tokenizer, 2048))
    cases = probe.find_cases(records, tokenizer, probe.repeated_names)
    assert len(cases) > 50
    assert max(case.distance for case in cases) > 512


def test_no_records_and_no_names_give_no_cases(tokenizer):
    oracle = Oracle([], tokenizer.vocab_size)
    assert probe.run(oracle, tokenizer, [], probe.generated_names)["cases"] == 0
