"""Measures answers as the benchmark's tables do: correlations, accuracy."""

import numpy as np

Scores = dict[str, float]  # of one test file, by measure


def ranks(values: np.ndarray) -> np.ndarray:
    """Rank [N] values; ties share their mean rank."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return Pearson's correlation of [N] and [N]; 0 if one of them is constant."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def similarity(answers: np.ndarray, targets: np.ndarray) -> Scores:
    """Correlate the values (Pearson) and their ranks (Spearman)."""
    return {
        "Pearson": correlation(answers, targets),
        "Spearman": correlation(ranks(answers), ranks(targets)),
    }


def accuracy(answers: np.ndarray, targets: np.ndarray) -> Scores:
    """Return the share of the answers that are right."""
    return {"accuracy": float(np.mean(answers == targets))}


def acceptability(answers: np.ndarray, targets: np.ndarray) -> Scores:
    """Return accuracy, and Matthews' correlation, which is Pearson's of two classes."""
    return {**accuracy(answers, targets), "MCC": correlation(answers, targets)}
