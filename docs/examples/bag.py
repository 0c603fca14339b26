"""Answers the benchmark's tasks without a model: TF-IDF of characters (needs scikit-learn).

A text is its 1- to 3-grams of characters, weighted by TF-IDF of the train file. `linear` fits ridge
regression (of values and of choices) or logistic regression (of classes) to them, for a pair to the
differences and products of its two texts; `cosine` learns nothing: it is the two texts' cosine.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

Rows = Sequence[list[tuple[str, str]]]  # of each row its pairs of texts; one text: ("...", "")
STRENGTH = 1.0  # of ridge's penalty
INVERSE_STRENGTH = 10.0  # of logistic regression's


class Bag:
    """TF-IDF of character n-grams: features [pairs, features] and cosines [pairs] of rows."""

    def __init__(self, train: Rows) -> None:
        """Count the grams of the train file."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._grams = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
        self._grams.fit(text for row in train for pair in row for text in pair)

    def features(self, rows: Rows) -> tuple[Any, np.ndarray]:
        """Return sparse features and cosines."""
        pairs = [pair for row in rows for pair in row]
        one, other = (self._grams.transform(texts) for texts in zip(*pairs, strict=True))
        products = one.multiply(other)
        cosines = np.asarray(products.sum(1)).ravel()
        if not other.nnz:  # single texts
            return one, cosines
        last = sparse.csr_matrix(cosines[:, None])
        return sparse.hstack([abs(one - other), products, last]).tocsr(), cosines


def answers(
    train: Rows, train_targets: Sequence[float | int], tests: Sequence[Rows]
) -> Iterator[dict[str, np.ndarray]]:
    """Answer each test file: by method, [rows] each; a method that cannot answer is left out."""
    from sklearn.linear_model import LogisticRegression, Ridge

    bag, choices = Bag(train), len(train[0])
    features, _ = bag.features(train)
    targets = np.array(train_targets)
    is_value = targets.dtype.kind == "f"
    if choices > 1:  # each one is right or wrong
        targets = (np.arange(choices) == targets[:, None]).ravel().astype(float)
    fit_values = is_value or choices > 1
    ridge, classes = Ridge(STRENGTH), LogisticRegression(C=INVERSE_STRENGTH, max_iter=2000)
    fitted = (ridge if fit_values else classes).fit(features, targets)
    for rows in tests:
        features, cosines = bag.features(rows)
        answers = {"linear": fitted.predict(features)}
        if fit_values:
            answers["cosine"] = cosines
        if choices > 1:
            answers = {k: v.reshape(-1, choices).argmax(1) for k, v in answers.items()}
        yield answers
