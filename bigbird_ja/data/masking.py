"""Which tokens are predicted, and what stands in their place: the rule, in NumPy.

The same rule as TensorFlow ops is in `masking_tf`; both give the same targets, bit for bit, for the
same (seed, epoch, record). Here it writes static records, whose copies count as epochs.

The rule, for a record of n ordinary tokens (neither special nor padding):

- predicted are k = min(max_predictions, max(1, round(prob * n))) of them, drawn by unit: a subword,
  a word, or a span of words (each word but the first of a run joins the one before with 1/2);
- units are taken whole in a random order until k tokens are reached. A last word that does not fit
  whole is taken all the same, and as many of the words drawn first give up their places to it.
  Whether a word is first or last in a random order has nothing to do with its length, so words of
  every length are predicted at the same rate. (A word longer than k is left out; cut if it is
  alone.) Version 1 of the rule left out every last word that did not fit, which predicts long words
  too rarely: 12.4 % of words of 16 tokens at 512 positions. Data sets say which version is theirs,
  and one that says nothing has version 1: a run that began on it goes on with the same masks;
- of the predicted, 80 % become [MASK], 10 % a random ordinary token, 10 % stay (Devlin et al. 2019,
  arXiv:1810.04805).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bigbird_ja.data import hashing

MASK_BELOW = int(0.8 * 2**32)  # of a 32-bit hash: becomes [MASK]
RANDOM_BELOW = int(0.9 * 2**32)  # becomes a random token; above: stays
NEWEST_VERSION = 2  # of the rule: what new data sets get


@dataclass(frozen=True)
class MaskingRule:
    """What masking depends on besides seed, epoch and record."""

    vocab_size: int
    special_ids: tuple[int, ...]  # never predicted, never drawn
    mask_id: int
    pad_id: int
    max_predictions: int
    prob: float
    unit: str  # subword | whole_word | span
    version: int = NEWEST_VERSION  # 1: a last word that does not fit is left out

    @property
    def special_prefix(self) -> int:
        """The ids below it are all special: comparing once is cheaper than looking up."""
        prefix = 0
        while prefix in self.special_ids:
            prefix += 1
        return prefix

    @property
    def other_special(self) -> tuple[int, ...]:
        """The special ids that `special_prefix` does not cover."""
        return tuple(i for i in sorted(self.special_ids) if i >= self.special_prefix)

    def ordinary_ids(self) -> npt.NDArray[np.int32]:
        """int32 [ordinary]: what a random token is drawn from."""
        return np.setdiff1d(np.arange(self.vocab_size), self.special_ids).astype(np.int32)


@dataclass(frozen=True)
class MaskRate:
    """A share of predicted tokens that changes over the run, in a line, as in Yang et al. 2023
    (arXiv:2305.15096). It takes the place of the rule's `prob`."""

    first: float  # at step 0
    last: float  # from step `steps` on
    steps: int

    def at(self, step: int) -> float:
        """The share at a step, counted from 0; `masking_tf.rate_at` is its twin."""
        return self.first + (self.last - self.first) * (min(step, self.steps) / self.steps)


def position_bits(seq_length: int) -> int:
    """Bits that hold a position."""
    return max(1, (seq_length - 1).bit_length())


def is_ordinary(tokens: npt.NDArray[Any], rule: MaskingRule) -> npt.NDArray[np.bool_]:
    """bool, of the shape of `tokens`: neither special nor padding."""
    ordinary = tokens >= rule.special_prefix
    for special in rule.other_special:
        ordinary &= tokens != special
    return ordinary


def num_predictions(num_ordinary: npt.NDArray[Any], rule: MaskingRule) -> npt.NDArray[np.int64]:
    """How many tokens are predicted, at most; 0 where none can be."""
    wanted = np.clip(np.rint(num_ordinary * rule.prob), 1, rule.max_predictions)
    return np.minimum(wanted, num_ordinary).astype(np.int64)


def mask(
    tokens: npt.NDArray[Any],
    word_starts: npt.NDArray[np.bool_],
    epoch: Any,
    record: Any,
    seed: int,
    rule: MaskingRule,
) -> dict[str, npt.NDArray[Any]]:
    """Draws the targets of a batch.

    Args:
        tokens: int [b, S].
        word_starts: bool [b, S].
        epoch, record: int [b] (or one number for all).
        seed: of the masks.
        rule: the rest.

    Returns:
        `input_ids` int32 [b, S]; `masked_lm_positions` (ascending, then 0), `masked_lm_ids` int32
        [b, P]; `masked_lm_weights` float32 [b, P] (1 for a prediction, then 0).
    """
    tokens = np.asarray(tokens, dtype=np.int32)
    rows = len(tokens)
    ordinary = is_ordinary(tokens, rule)
    budget = num_predictions(ordinary.sum(1), rule)
    units, words = _units_and_words(word_starts, ordinary, epoch, record, seed, rule)
    keys = _priorities(units, ordinary, _row_key(seed, hashing.MASK_UNITS, epoch, record))
    chosen = _chosen(keys, words, budget, rule)
    row, position = np.nonzero(chosen)
    counts = chosen.sum(1)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = (rows, rule.max_predictions)
    positions, ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    weights = np.zeros(shape, np.float32)
    positions[row, place] = position
    ids[row, place] = tokens[row, position]
    weights[row, place] = 1.0
    masked = tokens.copy()
    masked[row, position] = _replacements(tokens, row, position, epoch, record, seed, rule)
    return {
        "input_ids": masked,
        "masked_lm_positions": positions,
        "masked_lm_ids": ids,
        "masked_lm_weights": weights,
    }


def _row_key(seed: int, purpose: int, epoch: Any, record: Any) -> npt.NDArray[np.uint32]:
    """uint32 [b, 1] (or [1, 1])."""
    key = hashing.fold(hashing.fold(hashing.seed_key(seed, purpose), epoch), record)
    return np.reshape(key, (-1, 1))


def _units_and_words(
    word_starts: npt.NDArray[np.bool_],
    ordinary: npt.NDArray[np.bool_],
    epoch: Any,
    record: Any,
    seed: int,
    rule: MaskingRule,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """int32 [b, S] each: the unit and the word that a token belongs to."""
    positions = np.broadcast_to(np.arange(ordinary.shape[1], dtype=np.int32), ordinary.shape)
    if rule.unit == "subword":
        return positions, positions
    breaks = ~ordinary
    breaks[:, 1:] |= ~ordinary[:, :-1]
    breaks[:, 0] = True
    starts = word_starts | breaks
    words = np.cumsum(starts, axis=1, dtype=np.int32)
    if rule.unit == "whole_word":
        return words, words
    coins = hashing.fold(_row_key(seed, hashing.MASK_SPAN, epoch, record), positions)
    starts = breaks | (word_starts & (coins < np.uint32(2**31)))
    return np.cumsum(starts, axis=1, dtype=np.int32), words


def _priorities(
    units: npt.NDArray[np.int32], ordinary: npt.NDArray[np.bool_], row_key: npt.NDArray[np.uint32]
) -> npt.NDArray[np.int64]:
    """int64 [b, S]: highest first; the hash of the unit, then earlier positions; -1 is never taken.

    A unit's tokens follow each other in this order, even where two units have the same hash.
    """
    length = units.shape[1]
    bits = position_bits(length)
    drawn = hashing.fold(row_key, units) >> np.uint32(hash_shift(length))
    late = np.arange(length - 1, -1, -1, dtype=np.int64)
    return np.where(ordinary, (drawn.astype(np.int64) << bits) | late, -1)


def hash_shift(seq_length: int) -> int:
    """Bits dropped from a unit's hash, so that hash and position fit 31 bits where they can."""
    bits = position_bits(seq_length)
    return bits + 1 if bits <= 16 else 0


def _chosen(
    keys: npt.NDArray[np.int64],
    words: npt.NDArray[np.int32],
    budget: npt.NDArray[np.int64],
    rule: MaskingRule,
) -> npt.NDArray[np.bool_]:
    """bool [b, S]: which tokens are predicted, at most `budget` of a row."""
    length = keys.shape[1]
    most = min(rule.max_predictions + 1, length)
    first = np.sort(np.partition(keys, length - most, axis=1)[:, length - most :], axis=1)[:, ::-1]
    chosen = keys >= _nth(first, budget)[:, None]
    if rule.unit == "subword":
        return chosen
    following = np.where(chosen, -1, keys).max(1)
    in_word = (words == _word_at(words, following)) & (keys >= 0) & (following >= 0)[:, None]
    inside = (in_word & chosen).sum(1)  # tokens of the word that the budget cuts
    whole = chosen & ~in_word
    left_out = np.where((inside > 0) & whole.any(1), whole.T, chosen.T).T
    if rule.version == 1:
        return left_out
    size = in_word.sum(1)
    fits = (inside > 0) & (size <= budget)
    giving = _nth(first, np.where(fits, size - inside, 0))
    gives = (words == _word_at(words, giving)) & (keys >= 0) & (giving <= keys.max(1))[:, None]
    lowest = np.where(gives, keys, np.iinfo(np.int64).max).min(1)
    displaced = (whole | in_word) & (keys < lowest[:, None])
    return np.where(fits[:, None], displaced, left_out)


def _nth(ordered: npt.NDArray[np.int64], count: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """int64 [b]: the priority of token number `count` (from 1) of each row, above all for 0.

    Args:
        ordered: int64 [b, n], the highest priorities, descending.
        count: int [b], at most n.
    """
    nth = ordered[np.arange(len(ordered)), np.maximum(count - 1, 0)]
    return np.where(count > 0, nth, np.iinfo(np.int64).max)


def _word_at(words: npt.NDArray[np.int32], key: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """int32 [b, 1]: the word of the token with this priority."""
    length = words.shape[1]
    late = np.maximum(key, 0) & ((1 << position_bits(length)) - 1)
    return np.take_along_axis(words, np.maximum(length - 1 - late, 0)[:, None], 1)


def _replacements(
    tokens: npt.NDArray[np.int32],
    row: npt.NDArray[np.int64],
    position: npt.NDArray[np.int64],
    epoch: Any,
    record: Any,
    seed: int,
    rule: MaskingRule,
) -> npt.NDArray[np.int32]:
    """int32 [predictions]: what stands at the predicted positions."""

    def draw(purpose: int) -> npt.NDArray[np.uint32]:
        keys = np.broadcast_to(_row_key(seed, purpose, epoch, record), (len(tokens), 1))
        return hashing.fold(keys[row, 0], position)

    ordinary_ids = rule.ordinary_ids()
    action = draw(hashing.MASK_ACTION)
    randoms = ordinary_ids[draw(hashing.MASK_RANDOM).astype(np.int64) % len(ordinary_ids)]
    kept_or_random = np.where(action < RANDOM_BELOW, randoms, tokens[row, position])
    return np.where(action < MASK_BELOW, rule.mask_id, kept_or_random).astype(np.int32)
