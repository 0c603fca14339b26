"""Packing of documents into pairs of segments for next-sentence prediction.

A sequence is `[CLS] A [SEP] B [SEP]`. If a segment contains several documents, a [SEP] follows each
of them. A ends before a sentence of a document, or between any two tokens if no sentence starts
nearby. With label 0, B continues the document where A ended. With label 1, B starts at a random
place of the remaining text, in a document that is not in A. This place is chosen by the same rule
as the end of an A, so that only the text reveals the label. The remainder of a document is used in
a later pair. So every token is in exactly one pair.

Both labels are equally likely. Label 1 needs text of other documents until the end of the block. So
while one document contains more than half of the remaining text, every A is cut from that document.
If a document contains more than three quarters of a block, the other documents are used up first,
and label 0 is more frequent.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from bigbird_ja.data.hashing import fold
from bigbird_ja.data.packing import Fragment

# After its first document, B takes a part of another document only if this many tokens fit.
_SHORTEST_FRAGMENT = 8
# Number of random places that are tried for the start of B. If none of them is in usable text, a
# place is drawn from a list of all usable text.
_PARTNER_DRAWS = 64

# Start and end (exclusive) on the axis of a block's tokens. A place is an index on this axis.
Span = tuple[int, int]


@dataclass(frozen=True)
class Pair:
    """Pair of segments A and B. B is random text (`is_random`) or the continuation of A."""

    a: tuple[Fragment, ...]
    b: tuple[Fragment, ...]
    is_random: bool

    @property
    def segment_b(self) -> int:
        """Position in the sequence where segment B starts, after [CLS] and segment A."""
        return 1 + sum(fragment.cost for fragment in self.a)


def pack_pairs(
    lengths: Sequence[int], sentence_starts: Sequence[Sequence[int]], seq_length: int, key: int
) -> list[Pair]:
    """Pack documents into pairs, with every token in exactly one pair.

    Args:
        lengths: number of tokens of each document.
        sentence_starts: indices of the tokens that begin a sentence, ascending, above 0, for each
            document.
        seq_length: positions of a sequence, at least 8.
        key: hash key of the random draws.
    """
    text = _Text(lengths, sentence_starts)
    pairs: list[Pair] = []
    while text.spans:
        draws = fold(fold(key, len(pairs)), np.arange(2 + _PARTNER_DRAWS))
        pairs.append(_build_pair(text, seq_length - 1, [int(draw) for draw in draws]))
    return pairs


def _build_pair(text: _Text, room: int, draws: list[int]) -> Pair:
    """Build a pair that fills up to `room` positions.

    `draws` are random 32-bit numbers for the label, the length of segment A, and the start of
    segment B.
    """
    available = min(room, text.num_tokens + len(text.spans))
    target = max(2, int(available * (0.25 + 0.5 * draws[1] / 2**32)))
    a, continuation = _take_a(text, target, room)
    free = room - sum(end - start + 1 for start, end in a)
    in_a = {text.find_document(start) for start, _ in a}
    others = text.num_tokens - text.count_tokens(in_a)
    # Without enough other text a random B would be short, and its length would reveal the label.
    is_random = others > 0 and (
        continuation is None or (draws[0] >= 2**31 and others >= min(free, text.num_tokens))
    )
    start = _find_partner(text, in_a, draws[2:], room // 2) if is_random else continuation
    b = [] if start is None else _take_b(text, start, free, in_a if is_random else ())
    return Pair(tuple(map(text.to_fragment, a)), tuple(map(text.to_fragment, b)), is_random)


class _Text:
    """Remaining text of a block: the spans of tokens that are in no pair yet.

    The tokens of all documents lie on one axis, document after document.
    """

    def __init__(self, lengths: Sequence[int], sentence_starts: Sequence[Sequence[int]]) -> None:
        self._first = [0, *accumulate(lengths)]  # Start of each document, and the end of the last.
        self.spans = [
            (start, start + length)
            for start, length in zip(self._first, lengths, strict=False)
            if length
        ]
        self.sentences = [
            first + start
            for first, starts in zip(self._first, sentence_starts, strict=False)
            for start in starts
        ]
        self.num_tokens = self._first[-1]
        self._left = list(lengths)
        self._longest = [(-length, i) for i, length in enumerate(lengths)]
        heapq.heapify(self._longest)

    @property
    def end(self) -> int:
        """End of the axis of tokens, which is the number of tokens in the block."""
        return self._first[-1]

    def find_document(self, place: int) -> int:
        """Return the index of the document that contains the token at `place`."""
        return bisect.bisect_right(self._first, place) - 1

    def to_fragment(self, span: Span) -> Fragment:
        """Convert a span to a fragment of its document."""
        document = self.find_document(span[0])
        first = self._first[document]
        return Fragment(document, span[0] - first, span[1] - first)

    def find_span(self, place: int) -> int | None:
        """Return the index of the span that contains the token at `place`, or None."""
        index = bisect.bisect_right(self.spans, (place, self.end)) - 1
        return index if index >= 0 and place < self.spans[index][1] else None

    def count_tokens(self, documents: Collection[int]) -> int:
        """Count the remaining tokens of some documents."""
        return sum(self._left[document] for document in documents)

    def take(self, span: Span) -> None:
        """Remove the tokens of `span`, all of which lie in one remaining span."""
        index = self.find_span(span[0])
        assert index is not None
        start, end = self.spans[index]
        rests = [(start, span[0]), (span[1], end)]
        self.spans[index : index + 1] = [rest for rest in rests if rest[0] < rest[1]]
        self.num_tokens -= span[1] - span[0]
        self._left[self.find_document(span[0])] -= span[1] - span[0]

    def find_head(self) -> int:
        """Return the index of the remaining span where the next segment A begins.

        If a document contains more than half of the remaining text, the result is the document's
        first span. Otherwise it is the first span of all.
        """
        while -self._longest[0][0] > self._left[self._longest[0][1]]:
            document = self._longest[0][1]
            heapq.heapreplace(self._longest, (-self._left[document], document))
        length, document = self._longest[0]
        if -2 * length <= self.num_tokens:
            return 0
        return bisect.bisect_left(self.spans, (self._first[document], 0))

    def iterate_after(self, index: int, without: Collection[int]) -> Iterator[Span]:
        """Yield the spans after span `index`, and then the spans before it.

        Spans of documents whose index is in `without` are skipped.
        """
        for i in chain(range(index + 1, len(self.spans)), range(index)):
            if self.find_document(self.spans[i][0]) not in without:
                yield self.spans[i]


def _take_a(text: _Text, target: int, room: int) -> tuple[list[Span], int | None]:
    """Cut a segment A of about `target` positions from the remaining text.

    Returns:
        The spans of A, and the place where the text continues after A. This place is None if A
        consists of whole spans of one token, which cannot be cut.
    """
    most = room - 2  # The minimum of B is a token and its [SEP].
    head = text.find_head()
    run: list[Span] = []
    used, wanted, at = 0, 0, None
    for start, end in chain([text.spans[head]], text.iterate_after(head, ())):
        if used + 1 >= most:
            break
        if at is None and used + end - start + 1 > target:
            at, wanted = len(run), start + target - used - 1
        # This end is only an upper limit: `_cut` chooses the end of A before it.
        run.append((start, min(end, start + most - used)))
        used += run[-1][1] - start + 1
    if at is None:
        at, wanted = len(run) - 1, run[-1][1]
    place = _cut(run, at, wanted, room // 2, text.sentences)
    if place is None:  # All spans contain one token.
        others = any(text.find_document(span[0]) != text.find_document(run[0][0]) for span in run)
        a = run[: max(1, at)] if others else run
    else:
        index, cut = place
        a = [*run[:index], (run[index][0], cut)]
    for span in a:
        text.take(span)
    return a, None if place is None else place[1]


def _cut(
    run: Sequence[Span], at: int, wanted: int, reach: int, sentences: Sequence[int]
) -> tuple[int, int] | None:
    """Find a place to cut text in two, strictly inside one of the spans.

    Args:
        run: consecutive spans.
        at: index of the span near which to cut.
        wanted: preferred place in that span.
        reach: maximum distance in tokens between the preferred place and the start of a sentence.
            Sentences that start before the place are tried first.
        sentences: places where sentences start, ascending.

    Returns:
        Index of the span, and the place: the start of a sentence if one is near, else any place
        between two tokens. None if every span contains one token.
    """
    walked = 0
    for i in range(at, -1, -1):
        start, end = run[i]
        last = min(wanted, end - 1) if i == at else end - 1
        k = bisect.bisect_right(sentences, last) - 1
        if k >= 0 and sentences[k] > start:
            if walked + last - sentences[k] <= reach:
                return i, sentences[k]
            break
        walked += max(0, last - start)
        if walked > reach:
            break
    walked = 0
    for i in range(at, len(run)):
        start, end = run[i]
        after = max(wanted, start) if i == at else start
        k = bisect.bisect_right(sentences, after)
        if k < len(sentences) and sentences[k] < end:
            if walked + sentences[k] - after <= reach:
                return i, sentences[k]
            break
        walked += end - after
        if walked > reach:
            break
    for i in (*range(at, -1, -1), *range(at + 1, len(run))):
        start, end = run[i]
        if end - start >= 2:
            near = wanted if i == at else (end if i < at else start)
            return i, min(max(near, start + 1), end - 1)
    return None


def _find_partner(text: _Text, without: Collection[int], draws: Sequence[int], reach: int) -> int:
    """Choose a random remaining token, and return a place near it where segment B can start.

    Documents whose index is in `without` are excluded. At least one other document must have
    remaining text.
    """
    place = _draw_place(text, without, draws)
    index = text.find_span(place)
    assert index is not None
    before = after = index
    while before > 0 and place - text.spans[before][0] <= reach:
        before -= 1
    while after + 1 < len(text.spans) and text.spans[after][1] - place <= reach:
        after += 1
    kept = [s for s in text.spans[before : after + 1] if text.find_document(s[0]) not in without]
    cut = _cut(kept, kept.index(text.spans[index]), place, reach, text.sentences)
    return cut[1] if cut is not None else text.spans[index][0]


def _draw_place(text: _Text, without: Collection[int], draws: Sequence[int]) -> int:
    """Return the place of a random remaining token.

    Documents whose index is in `without` are excluded.
    """
    for draw in draws:
        place = draw * text.end >> 32
        if text.find_span(place) is not None and text.find_document(place) not in without:
            return place
    others = [span for span in text.spans if text.find_document(span[0]) not in without]
    ends = list(accumulate(end - start for start, end in others))
    token = draws[0] * ends[-1] >> 32
    index = bisect.bisect_right(ends, token)
    return others[index][1] - (ends[index] - token)


def _take_b(text: _Text, start: int, free: int, without: Collection[int]) -> list[Span]:
    """Cut a segment B of up to `free` positions from the remaining text, and return its spans.

    B begins at the place `start` and continues with the spans after it. Spans of documents whose
    index is in `without` are skipped.
    """
    index = text.find_span(start)
    assert index is not None
    taken: list[Span] = []
    for first, last in chain([(start, text.spans[index][1])], text.iterate_after(index, without)):
        is_whole = last - first + 1 <= free
        if free <= 1 or (taken and not is_whole and free - 1 < _SHORTEST_FRAGMENT):
            break
        end = min(last, first + free - 1)
        if last - end == 1 and end - first > 1:
            end -= 1  # A remainder of one token could not be cut in two.
        taken.append((first, end))
        free -= end - first + 1
    for span in taken:
        text.take(span)
    return taken
