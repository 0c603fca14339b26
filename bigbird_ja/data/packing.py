"""Packing of documents into full sequences.

A sequence of S positions is `[CLS] fragment [SEP] fragment [SEP] ...`, then padding. A document
that fits is kept whole if possible. A longer document fills whole sequences, and its remainder is
packed with the short documents (best fit, longest first). If more than half a percent of the
positions would stay empty, the documents of the emptiest sequences are split over the gaps of the
other sequences. Every token of every document is in exactly one fragment.

`pack` assigns fragments to sequences from the documents' lengths. `fill` copies the tokens.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# Splitting documents stops when less than this share of the positions is empty.
_TOLERANCE = 0.005
# Minimum length, in tokens, of a fragment that is cut off to fill a gap. The remainder may be
# shorter. The minimum is lower if a sequence has 256 positions or fewer.
_SHORTEST_FRAGMENT = 32


@dataclass(frozen=True)
class Fragment:
    """Tokens [start, end) of one document."""

    document: int
    start: int
    end: int

    @property
    def cost(self) -> int:
        """Number of positions that the fragment and its [SEP] need in a sequence."""
        return self.end - self.start + 1


Sequences = list[list[Fragment]]


def pack(lengths: Sequence[int], seq_length: int) -> Sequences:
    """Pack documents of `lengths` tokens into sequences of `seq_length` positions.

    The fragments of a sequence are in the order of their documents. An empty document gives no
    fragment.
    """
    room = seq_length - 1  # [CLS] takes one position.
    sequences: Sequences = []
    rests = []
    for document, length in enumerate(lengths):
        whole = length // (room - 1)
        for i in range(whole):
            sequences.append([Fragment(document, i * (room - 1), (i + 1) * (room - 1))])
        if length > whole * (room - 1):
            rests.append(Fragment(document, whole * (room - 1), length))
    partly = _close_gaps(_fit_best(rests, room), room)
    sequences += [
        sorted(s, key=lambda fragment: (fragment.document, fragment.start)) for s in partly
    ]
    return sequences


def _fit_best(fragments: list[Fragment], room: int) -> Sequences:
    """Put each fragment, longest first, into the fullest sequence with enough room (best fit)."""
    sequences: Sequences = []
    gaps: list[tuple[int, int]] = []  # Sorted pairs (free positions, index of the sequence).
    for fragment in sorted(fragments, key=lambda p: (-p.cost, p.document)):
        at = bisect.bisect_left(gaps, (fragment.cost, -1))
        if at == len(gaps):
            free, index = room, len(sequences)
            sequences.append([])
        else:
            free, index = gaps.pop(at)
        sequences[index].append(fragment)
        bisect.insort(gaps, (free - fragment.cost, index))
    return sequences


def _close_gaps(sequences: Sequences, room: int) -> Sequences:
    """Split the fragments of the emptiest sequences over the gaps of the others.

    Stop when the share of empty positions is at most `_TOLERANCE`, or when fragments do not fit.
    """
    frees = [room - sum(fragment.cost for fragment in s) for s in sequences]
    order = sorted(range(len(sequences)), key=lambda i: (-frees[i], i))
    kept = [sequences[i] for i in order]
    free = [frees[i] for i in order]
    shortest = min(_SHORTEST_FRAGMENT, max(1, room // 8))
    while len(kept) > 1 and sum(free) > _TOLERANCE * room * len(kept):
        if sum(free[1:]) < room - free[0]:
            break
        placed = _spread(kept[0], free[1:], shortest)
        if placed is None:
            break
        for index, fragment in placed:
            kept[index + 1] = [*kept[index + 1], fragment]
            free[index + 1] -= fragment.cost
        kept, free = kept[1:], free[1:]
    return kept


def _spread(
    fragments: list[Fragment], free: list[int], shortest: int
) -> list[tuple[int, Fragment]] | None:
    """Split fragments over gaps.

    Args:
        fragments: fragments to split.
        free: number of free positions of each gap.
        shortest: minimum length of a part in tokens, except for the last part of a fragment.

    Returns:
        Pairs (index of the gap, part of a fragment), or None if the fragments do not fit.
    """
    gaps = sorted(
        ((room, index) for index, room in enumerate(free) if room > shortest), reverse=True
    )
    pending = list(reversed(fragments))
    placed: list[tuple[int, Fragment]] = []
    for room, index in gaps:
        while pending and (room > shortest or pending[-1].cost <= room):
            fragment = pending.pop()
            end = min(fragment.end, fragment.start + room - 1)
            placed.append((index, Fragment(fragment.document, fragment.start, end)))
            room -= placed[-1][1].cost
            if end < fragment.end:
                pending.append(Fragment(fragment.document, end, fragment.end))
    return None if pending else placed


def fill(
    sequences: Sequences,
    tokens: Sequence[npt.NDArray[Any]],
    word_starts: Sequence[npt.NDArray[np.bool_]],
    seq_length: int,
    special_ids: Mapping[str, int],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Return the tokens (int32) and word starts (bool) of packed sequences.

    Each array is [sequences, seq_length]. [CLS], [SEP] and the first token of a fragment count as
    word starts. Padding does not.
    """
    ids = np.full((len(sequences), seq_length), special_ids["pad"], np.int32)
    starts = np.zeros((len(sequences), seq_length), np.bool_)
    for row, fragments in enumerate(sequences):
        ids[row, 0], starts[row, 0] = special_ids["cls"], True
        at = 1
        for fragment in fragments:
            end = at + fragment.end - fragment.start
            ids[row, at:end] = tokens[fragment.document][fragment.start : fragment.end]
            starts[row, at:end] = word_starts[fragment.document][fragment.start : fragment.end]
            starts[row, at] = starts[row, end] = True
            ids[row, end] = special_ids["sep"]
            at = end + 1
    return ids, starts
