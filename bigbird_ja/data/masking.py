"""Masking: choice of the tokens to predict, and their replacement.

The rule for a record with n ordinary tokens (neither special nor padding):

- k = min(max_predictions, max(1, round(prob * n))) of them are predicted.
- They are drawn by unit: a subword, a word, or a span of words. Each word joins the span of the
  previous word with probability 1/2, but no span crosses a special token.
- Units are chosen in a random order until k tokens are chosen. If the last word would exceed k, it
  is still chosen, and the words that were chosen first are dropped instead. A word's place in the
  order does not depend on its length, so words of every length are predicted at the same rate. If
  the last word alone is longer than k, it is skipped, or cut if it is the only word.
- 80 % of the predicted tokens become [MASK], 10 % a random ordinary token, 10 % stay (Devlin et
  al. 2019, arXiv:1810.04805).

Through `ops`, the code works on arrays of NumPy (for static masks) and of TensorFlow (for dynamic
masks). For equal (seed, epoch, record), the results of NumPy and TensorFlow are bit-identical. For
static masks, the index of a record's copy is used as the epoch.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bigbird_ja.data.hashing import Purpose, seed_key
from bigbird_ja.data.ops import NUMPY, Array, ArrayOps

# A chosen token becomes [MASK] if its 32-bit hash is below the first limit, and a random token if
# it is below the second one. Otherwise it stays.
MASK_BELOW = int(0.8 * 2**32)
RANDOM_BELOW = int(0.9 * 2**32)


@dataclass(frozen=True)
class MaskingRule:
    """Rule of masking. It determines the masks together with seed, epoch and record."""

    vocab_size: int
    special_ids: tuple[int, ...]  # Ids that are never predicted, and never drawn as a random token.
    mask_id: int
    pad_id: int
    max_predictions: int
    prob: float
    unit: str  # subword | whole_word | span

    @functools.cached_property
    def is_ordinary_id(self) -> npt.NDArray[np.bool_]:
        """Whether each id is ordinary, which means not in `special_ids`: bool [vocab_size]."""
        return ~np.isin(np.arange(self.vocab_size), self.special_ids)

    @functools.cached_property
    def ordinary_ids(self) -> npt.NDArray[np.int32]:
        """Ids of all ordinary tokens, from which a random token is drawn: int32 [ordinary]."""
        return np.flatnonzero(self.is_ordinary_id).astype(np.int32)


def compute_rate(rates: tuple[float, float, int], step: Any, arrays: ArrayOps = NUMPY) -> Array:
    """Return the masking rate at a step: float64. It replaces `prob` of the masking rule.

    Source: Yang et al. 2023, arXiv:2305.15096.

    Args:
        rates: rate at step 0, final rate, and number of steps until the final rate.
        step: global step, int64, from 0.
        arrays: operations in NumPy or TensorFlow.
    """
    first, last, steps = rates
    done = arrays.cast(arrays.xp.minimum(step, steps), "float64") / float(steps)
    return first + (last - first) * done


def is_ordinary(tokens: Array, rule: MaskingRule, arrays: ArrayOps = NUMPY) -> Array:
    """Return whether each token is neither special nor padding: bool [b, S]."""
    first = int(np.argmax(rule.is_ordinary_id))
    # If the special ids are the lowest ids, as in a tokenizer that `tokenize` trained, a comparison
    # is sufficient, and cheaper than a lookup.
    if rule.is_ordinary_id[first:].all():
        return tokens >= first
    return arrays.gather(rule.is_ordinary_id, tokens)


def count_predictions(
    num_ordinary: Array, rule: MaskingRule, arrays: ArrayOps = NUMPY, prob: Any = None
) -> Array:
    """Return the maximum number of predictions of each record, int32.

    The number is the masking rate times the number of ordinary tokens, with halves rounded to even.
    It is at least 1 and at most `rule.max_predictions`, but 0 for a record without ordinary tokens.
    """
    share = rule.prob if prob is None else prob
    wanted = arrays.cast(arrays.xp.round(arrays.cast(num_ordinary, "float64") * share), "int32")
    clipped = arrays.xp.minimum(arrays.xp.maximum(wanted, 1), rule.max_predictions)
    return arrays.xp.minimum(clipped, arrays.cast(num_ordinary, "int32"))


def mask(
    tokens: npt.NDArray[Any],
    word_starts: npt.NDArray[np.bool_],
    epoch: Any,
    record: Any,
    seed: int,
    rule: MaskingRule,
) -> dict[str, npt.NDArray[Any]]:
    """Mask a batch with NumPy, as `mask_arrays` does.

    Args:
        tokens: int [b, S], token ids.
        word_starts: bool [b, S], whether a token starts a word.
        epoch: epoch of each record, int [b], or one number for all records.
        record: int [b], record ids.
        seed: seed of the masks.
        rule: rule of masking.
    """
    tokens = np.asarray(tokens, dtype=np.int32)
    epoch, record = (np.broadcast_to(each, len(tokens)) for each in (epoch, record))
    return mask_arrays(NUMPY, tokens, word_starts, epoch, record, seed, rule)


def mask_arrays(
    arrays: ArrayOps,
    tokens: Array,
    word_starts: Array,
    epoch: Array,
    record: Array,
    seed: int,
    rule: MaskingRule,
    prob: Array | None = None,
) -> dict[str, Array]:
    """Choose the tokens of a batch that are to be predicted, and replace them.

    Args:
        arrays: operations in NumPy or TensorFlow.
        tokens: int32 [b, S], token ids. The sequence length S must be a static shape.
        word_starts: bool [b, S], whether a token starts a word.
        epoch: int64 [b], epoch of each record.
        record: int64 [b], record ids.
        seed: seed of the masks.
        rule: rule of masking.
        prob: float64, masking rate that replaces the rule's, or None.

    Returns:
        `input_ids` int32 [b, S]; `masked_lm_positions` (ascending), `masked_lm_ids` int32 [b, P];
        `masked_lm_weights` float32 [b, P] (1 for a prediction). The last three are padded with 0
        to P = `rule.max_predictions`.
    """

    def derive_key(purpose: int) -> Array:
        """Return the hash key of each record for one purpose of random numbers: uint32 [b, 1]."""
        return arrays.fold(arrays.fold(seed_key(seed, purpose), epoch), record)[:, None]

    ordinary = is_ordinary(tokens, rule, arrays)
    budget = count_predictions(arrays.count(ordinary), rule, arrays, prob)
    units, words = _number_units(arrays, word_starts, ordinary, derive_key, rule)
    priorities = _compute_priorities(arrays, units, ordinary, derive_key(Purpose.MASK_UNITS))
    chosen = _choose_tokens(arrays, priorities, words, budget, rule)
    return _replace_tokens(arrays, tokens, chosen, derive_key, rule)


def _replace_tokens(
    arrays: ArrayOps, tokens: Array, chosen: Array, key: Callable[[int], Array], rule: MaskingRule
) -> dict[str, Array]:
    """Replace the chosen tokens and return the result of `mask_arrays`."""

    def draw(purpose: int) -> Array:
        """Draw 32 random bits for each predicted position: int64 [predictions]."""
        bits = arrays.fold(arrays.gather(key(purpose)[:, 0], row), position)
        return arrays.cast(bits, "int64")

    def lay_out(values: Array) -> Array:
        return arrays.scatter(row, slot, values, tokens, rule.max_predictions)

    xp = arrays.xp
    row, position = arrays.nonzero(chosen)
    counts = arrays.cast(arrays.count(chosen)[:, 0], "int64")
    slot = arrays.count_up(row) - arrays.gather(xp.cumsum(counts) - counts, row)
    labels = arrays.at(tokens, row, position)
    ordinary_ids = rule.ordinary_ids
    action = draw(Purpose.MASK_ACTION)
    randoms = arrays.gather(ordinary_ids, draw(Purpose.MASK_RANDOM) % len(ordinary_ids))
    kept_or_random = xp.where(action < RANDOM_BELOW, randoms, labels)
    replaced = xp.where(action < MASK_BELOW, np.int32(rule.mask_id), kept_or_random)
    return {
        "input_ids": arrays.replace(tokens, row, position, replaced),
        "masked_lm_positions": lay_out(arrays.cast(position, "int32")),
        "masked_lm_ids": lay_out(labels),
        "masked_lm_weights": lay_out(xp.ones_like(labels, "float32")),
    }


def _number_units(
    arrays: ArrayOps,
    word_starts: Array,
    ordinary: Array,
    key: Callable[[int], Array],
    rule: MaskingRule,
) -> tuple[Array, Array]:
    """Return the index of each token's masking unit, and the index of each token's word.

    Each array is int32 [b, S], or [1, S] if the indices are the same for all records.
    """
    positions = np.arange(ordinary.shape[1], dtype=np.int32)[None, :]
    if rule.unit == "subword":
        return positions, positions
    special = ~ordinary
    after_special = arrays.xp.pad(special[:, :-1], [[0, 0], [1, 0]], constant_values=True)
    breaks = special | after_special
    words = arrays.running_count(word_starts | breaks)
    if rule.unit == "whole_word":
        return words, words
    coins = arrays.fold(key(Purpose.MASK_SPAN), positions)
    is_head = arrays.bits.right_shift(coins, np.uint32(31)) < np.uint32(1)
    return arrays.running_count(breaks | (word_starts & is_head)), words


def _count_position_bits(seq_length: int) -> int:
    """Return the number of bits that a position in a sequence needs."""
    return max(1, (seq_length - 1).bit_length())


def _compute_priorities(arrays: ArrayOps, units: Array, ordinary: Array, key: Array) -> Array:
    """Return the priority of each token: int32 or int64 [b, S], -1 for special tokens and padding.

    Tokens with the highest priority are predicted first. Units are ordered by their hashes, and the
    tokens of a unit by position. For sequences of up to 65,536 positions, low bits of the hash are
    dropped, so that hash and position fit in an int32. For longer ones, the priorities are int64.
    """
    length = ordinary.shape[1]
    bits = _count_position_bits(length)
    shift, kind = (bits + 1, "int32") if bits <= 16 else (0, "int64")
    drawn = arrays.bits.right_shift(arrays.fold(key, units), np.uint32(shift))
    late = np.arange(length - 1, -1, -1, dtype=kind)
    return arrays.xp.where(ordinary, arrays.cast(drawn, kind) * (1 << bits) + late, -1)


def _choose_tokens(
    arrays: ArrayOps, priorities: Array, words: Array, budget: Array, rule: MaskingRule
) -> Array:
    """Choose the tokens to predict, at most `budget` [b, 1] in each row: bool [b, S]."""
    xp = arrays.xp
    highest = np.iinfo(np.int32 if "int32" in str(priorities.dtype) else np.int64).max
    most = rule.max_predictions

    def find_nth(priorities: Array, count: Array) -> Array:
        """Return the `count`-th highest priority of each row: [b, 1].

        If `count` is 0, the result is a number above all priorities. `nth_highest` accepts only one
        n for all rows. So n is `most`, and each row gets `most - count` extra values that are above
        all priorities.
        """
        is_above = np.arange(most, dtype=np.int32)[None, :] < most - count
        more = arrays.cast(xp.where(is_above, highest, -1), priorities.dtype)
        return arrays.nth_highest(priorities, more, most)

    def is_in_word(priorities: Array, words: Array, priority: Array) -> Array:
        """Return whether each token is ordinary and in the chosen word of its row: bool [b, S].

        `priority` [b, 1] is the priority of one token in the chosen word of each row.
        """
        length = words.shape[1]
        late = xp.maximum(priority, 0) % (1 << _count_position_bits(length))
        column = arrays.cast(xp.maximum(length - 1 - late, 0), "int32")
        return xp.equal(words, arrays.at_column(words, column)) & (priorities >= 0)

    def choose_whole_words(
        priorities: Array, words: Array, budget: Array, chosen: Array, in_word: Array
    ) -> Array:
        """Choose the tokens to predict in rows where the limit `budget` would cut a word.

        `in_word` states whether each token belongs to the word that would be cut.
        """
        whole = chosen & ~in_word
        left_out = xp.where(arrays.any(whole), whole, chosen)
        size = arrays.cast(arrays.count(in_word), "int32")
        fits = size <= budget
        excess = size - arrays.cast(arrays.count(in_word & chosen), "int32")
        giving = find_nth(priorities, xp.where(fits, excess, 0))
        gives = is_in_word(priorities, words, giving) & (giving < highest)
        lowest_giving = arrays.min(xp.where(gives, priorities, highest))
        return xp.where(fits, (whole | in_word) & (priorities < lowest_giving), left_out)

    chosen = priorities >= find_nth(priorities, budget)
    if rule.unit == "subword":
        return chosen
    following = arrays.max(xp.where(chosen, -1, priorities))
    in_word = is_in_word(priorities, words, following) & (following >= 0)
    is_cut = arrays.any(in_word & chosen)
    return arrays.replace_rows(
        chosen, is_cut, choose_whole_words, (priorities, words, budget, chosen, in_word)
    )
