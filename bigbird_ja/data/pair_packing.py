"""Documents into pairs of segments for next-sentence prediction, full and without losing a token.

A sequence is `[CLS] A [SEP] B [SEP]`; a segment of several documents has a [SEP] after each. A ends
between two sentences of a document. Either B goes on with that document (label 0), or B begins with
text of another document (label 1, half of the pairs), never of the same one. What a pair leaves of
a document comes back in a later pair, so every token is in exactly one.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from bigbird_ja.data import hashing
from bigbird_ja.data.packing import Piece

# A document is not cut into pieces shorter than this (tokens) only to fill the end of B.
_SHORTEST_PIECE = 8


@dataclass(frozen=True)
class Pair:
    """The pieces of A and of B, and whether B is a random text instead of the next sentence."""

    a: tuple[Piece, ...]
    b: tuple[Piece, ...]
    is_random: bool

    @property
    def segment_b(self) -> int:
        """The position where B starts, after [CLS] and A."""
        return 1 + sum(piece.cost for piece in self.a)


def pack_pairs(
    lengths: Sequence[int], sentence_starts: Sequence[Sequence[int]], seq_length: int, key: int
) -> list[Pair]:
    """Packs documents into pairs.

    Args:
        lengths: tokens of each document.
        sentence_starts: for each document the tokens (ascending, above 0) that begin a sentence.
        seq_length: positions of a sequence, at least 8.
        key: of the draws: another one gives other pairs.
    """
    queue = deque(Piece(i, 0, length) for i, length in enumerate(lengths) if length)
    room = seq_length - 1
    pairs: list[Pair] = []
    while queue:
        draw = int(hashing.fold(key, len(pairs)))
        available = min(room, sum(piece.cost for piece in queue))
        target = max(2, int(available * (0.25 + 0.5 * (draw >> 1) / 2**31)))
        pairs.append(_next_pair(queue, sentence_starts, room, target, bool(draw & 1), draw))
    return pairs


def _next_pair(
    queue: deque[Piece],
    sentence_starts: Sequence[Sequence[int]],
    room: int,
    target: int,
    wants_random: bool,
    draw: int,
) -> Pair:
    a = _take_a(queue, sentence_starts, target, room - 2)
    last = a[-1].document
    others = [i for i, piece in enumerate(queue) if piece.document != last]
    is_random = bool(others) and wants_random
    if not is_random and not (queue and queue[0].document == last):
        # A ended with its document; handing back its last sentence lets B follow it.
        is_random = not _hand_back(a, queue, sentence_starts)
        others = [i for i, piece in enumerate(queue) if piece.document != last]
    if is_random and others:
        queue.rotate(-others[draw % len(others)])
    free = room - sum(piece.cost for piece in a)
    b = _take_b(queue, free, last if is_random else None)
    return Pair(tuple(a), tuple(b), is_random)


def _take_a(
    queue: deque[Piece], sentence_starts: Sequence[Sequence[int]], target: int, most: int
) -> list[Piece]:
    """Pieces from the queue's head up to about `target` positions, ending between sentences."""
    taken: list[Piece] = []
    used = 0
    while queue and used < target:
        piece = queue[0]
        if piece.cost <= target - used:
            taken.append(queue.popleft())
            used += piece.cost
            continue
        cut = _cut_near(piece, sentence_starts[piece.document], target - used - 1, most - used - 1)
        if cut is None and taken:
            break
        if cut is None:  # one sentence longer than A: it is cut between two tokens
            cut = piece.start + max(1, target - used - 1)
        taken.append(Piece(piece.document, piece.start, min(cut, piece.end)))
        queue.popleft()
        if cut < piece.end:
            queue.appendleft(Piece(piece.document, cut, piece.end))
        break
    return taken


def _cut_near(piece: Piece, starts: Sequence[int], wanted: int, most: int) -> int | None:
    """The sentence start inside a piece that is nearest below `wanted` tokens, else above it."""
    first = bisect.bisect_right(starts, piece.start)
    after = bisect.bisect_right(starts, piece.start + wanted)
    if after > first:
        return starts[after - 1]
    if after < len(starts) and starts[after] < min(piece.end, piece.start + most + 1):
        return starts[after]
    return None


def _hand_back(
    a: list[Piece], queue: deque[Piece], sentence_starts: Sequence[Sequence[int]]
) -> bool:
    """Moves the last sentence of A's last document back to the queue's head, if it has two."""
    piece = a[-1]
    starts = sentence_starts[piece.document]
    before = bisect.bisect_left(starts, piece.end) - 1
    cut = starts[before] if before >= 0 and starts[before] > piece.start else None
    if cut is None and not queue and len(a) == 1 and piece.end - piece.start > 1:
        cut = (piece.start + piece.end) // 2  # nothing else is left: a pair needs a B
    if cut is None:
        return False
    a[-1] = Piece(piece.document, piece.start, cut)
    queue.appendleft(Piece(piece.document, cut, piece.end))
    return True


def _take_b(queue: deque[Piece], free: int, unwanted: int | None) -> list[Piece]:
    """Pieces from the queue's head that fill `free` positions; none of document `unwanted`."""
    taken: list[Piece] = []
    skipped: list[Piece] = []
    while queue and free > 1:
        piece = queue.popleft()
        if piece.document == unwanted:
            skipped.append(piece)
            continue
        if piece.cost > free and taken and free - 1 < _SHORTEST_PIECE:
            queue.appendleft(piece)
            break
        end = min(piece.end, piece.start + free - 1)
        taken.append(Piece(piece.document, piece.start, end))
        free -= taken[-1].cost
        if end < piece.end:
            queue.appendleft(Piece(piece.document, end, piece.end))
    queue.extend(skipped)
    return taken
