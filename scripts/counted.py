"""Counts pieces and their neighbours: the losses that a model has to beat to know more than that.

All are of the held-out predictions that models are evaluated on, with the masks that hide pieces
from them: a neighbour that is hidden from the model is hidden here.
"""

import dataclasses
import itertools

import numpy as np

from bigbird_ja.data import manifest, pipeline

DISCOUNT = 0.75  # of a counted pair, for the pairs never seen
TUNED_ON = 2000  # predictions of the last tenth of the train records
ROWS = 512  # predictions at a time: [ROWS, vocabulary] in memory


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Holds predicted pieces and what stands beside them, [predictions] each."""

    before: np.ndarray
    pieces: np.ndarray
    after: np.ndarray

    def some(self, which: slice) -> "Predictions":
        """Return a part."""
        return Predictions(self.before[which], self.pieces[which], self.after[which])


class Counts:
    """Counts pieces and pairs of them in records of tokens [N, S]; `special` are no pieces."""

    def __init__(self, tokens: np.ndarray, vocab_size: int, special: list[int]) -> None:
        """Counts."""
        pieces = tokens[~np.isin(tokens, special)]
        self.unigram = (1 + np.bincount(pieces, minlength=vocab_size)).astype(np.float32)
        self.unigram /= self.unigram.sum()
        codes = (tokens[:, :-1].astype(np.int64) * vocab_size + tokens[:, 1:]).ravel()
        pairs = np.bincount(codes, minlength=vocab_size**2).astype(np.float32)
        self._after = pairs.reshape(vocab_size, vocab_size)
        self._before = np.ascontiguousarray(self._after.T)

    def given(self, before: np.ndarray) -> np.ndarray:
        """Return P(piece | the one before), [n, vocabulary]."""
        return self._discounted(self._after[before])

    def followed_by(self, after: np.ndarray) -> np.ndarray:
        """Return P(piece | the one after), [n, vocabulary]."""
        return self._discounted(self._before[after])

    def _discounted(self, seen: np.ndarray) -> np.ndarray:
        """Discount absolutely (Ney, Essen and Kneser 1994), with the unigram behind it."""
        total = seen.sum(1, keepdims=True)
        kinds = (seen > 0).sum(1, keepdims=True)
        left = np.where(total > 0, DISCOUNT * kinds / np.maximum(total, 1), 1)
        rest = left.astype(np.float32) * self.unigram
        return np.maximum(seen - DISCOUNT, 0) / np.maximum(total, 1) + rest

    def two_sided(self, wanted: Predictions, weights: list[tuple[float, float]]) -> np.ndarray:
        """Compute losses of P(x | before)^w P(x | after)^w / P(x)^s, normalised: [len(weights)]."""
        sums, common = np.zeros(len(weights)), np.log(self.unigram)
        for first in range(0, len(wanted.pieces), ROWS):
            part = wanted.some(slice(first, first + ROWS))
            both = np.log(self.given(part.before)) + np.log(self.followed_by(part.after))
            rows = np.arange(len(both))
            for number, (w, s) in enumerate(weights):
                scores = w * both - s * common
                scores -= scores.max(1, keepdims=True)
                found = np.log(np.exp(scores).sum(1)) - scores[rows, part.pieces]
                sums[number] += found.sum(dtype=np.float64)
        return sums / len(wanted.pieces)

    def left_loss(self, wanted: Predictions) -> float:
        """Compute the loss of P(x | before)."""
        total = 0.0
        for first in range(0, len(wanted.pieces), ROWS):
            part = wanted.some(slice(first, first + ROWS))
            found = self.given(part.before)[np.arange(len(part.pieces)), part.pieces]
            total -= float(np.log(found).sum(dtype=np.float64))
        return total / len(wanted.pieces)


def losses(data_dir: str) -> dict[str, float]:
    """Compute `losses_of` a data set with dynamic masks."""
    made = manifest.load(data_dir)
    train, held_out = (
        masked_records(made, data_dir, shards) for shards in (made.train_shards, made.eval_shards)
    )
    return losses_of(train, held_out, made.vocab_size, [*made.special_ids.values()])


Masked = tuple[np.ndarray, np.ndarray, np.ndarray]  # tokens, what a model sees, whether predicted


def masked_records(
    made: manifest.Manifest, data_dir: str, shards: tuple[manifest.Shard, ...]
) -> Masked:
    """Read records with the masks of evaluation, [N, S] each."""
    parts: list[Masked] = []
    wanted = dataclasses.replace(made, eval_shards=shards)
    for batch in pipeline.eval_batches(wanted, data_dir, batch_size=1024):
        inputs, places, pieces, weights = (
            batch[name].numpy()
            for name in ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
        )
        row, column = np.nonzero(weights > 0)
        tokens, predicted = inputs.copy(), np.zeros(inputs.shape, bool)
        tokens[row, places[row, column]] = pieces[row, column]
        predicted[row, places[row, column]] = True
        there = inputs[:, 0] != made.pad_id
        parts.append((tokens[there], inputs[there], predicted[there]))
    tokens, seen, predicted = (np.concatenate(each) for each in zip(*parts, strict=True))
    return tokens, seen, predicted


def losses_of(
    train: Masked, held_out: Masked, vocab_size: int, special: list[int]
) -> dict[str, float]:
    """Compute losses of counting, nats per prediction.

    The exponents of the two-sided count are chosen on the last tenth of the train records, counted
    on the others.
    """
    tenth = max(1, len(train[0]) // 10)
    steps = [number / 10 for number in range(11)]
    grid = [(w, s) for w, s in itertools.product(steps, steps) if w >= 0.5]
    tuned_on = predictions_of((train[0][-tenth:], train[1][-tenth:], train[2][-tenth:]))
    tuned_on = tuned_on.some(slice(None, None, max(1, len(tuned_on.pieces) // TUNED_ON)))
    most = Counts(train[0][:-tenth], vocab_size, special)
    w, s = grid[int(np.argmin(most.two_sided(tuned_on, grid)))]
    counts, wanted = Counts(train[0], vocab_size, special), predictions_of(held_out)
    found = {
        "unigram": float(-np.log(counts.unigram[wanted.pieces]).mean(dtype=np.float64)),
        "left bigram": counts.left_loss(wanted),
        "two-sided": float(counts.two_sided(wanted, [(w, s)])[0]),
    }
    return {**{name: round(loss, 4) for name, loss in found.items()}, "w": w, "s": s}


def predictions_of(records: Masked) -> Predictions:
    """Return the predicted pieces and what a model sees beside them."""
    tokens, seen, predicted = records
    row, column = np.nonzero(predicted)  # neither the first nor the last: those are special
    return Predictions(seen[row, column - 1], tokens[row, column], seen[row, column + 1])
