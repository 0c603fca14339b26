"""Split text into sentences, by the punctuation of Japanese and of other languages.

The joined sentences equal the text, for any string. One regular expression finds the few relevant
characters (ends of sentences, brackets, line breaks, markers), and one pass over them finds the
boundaries. A boundary inside brackets is dropped when the bracket closes, so a quotation is never
cut. The boundary stays if the bracket does not close within `MAX_BRACKET_LENGTH` characters.
"""

import itertools
import re
import unicodedata

from bigbird_ja.text.markers import ARTICLE, PARAGRAPH, SECTION

# Number of characters after which an open bracket counts as unmatched. Real quotations have a few
# hundred. Without a limit one missing 」 would turn the rest of a document into one sentence.
MAX_BRACKET_LENGTH = 1000

# Opening and closing characters of each kind of bracket, half-width and full-width.
_KINDS = (
    ("「｢", "」｣"),
    ("『", "』"),
    ("（(", "）)"),
    ("［[", "］]"),
    ("｛{", "｝}"),
    ("【", "】"),
    ("〈", "〉"),
    ("《", "》"),
    ("〔", "〕"),
    ("“", "”"),
)
_OPENERS = {c: kind for kind, (opening, _) in enumerate(_KINDS) for c in opening}
_CLOSERS = {c: kind for kind, (_, closing) in enumerate(_KINDS) for c in closing}

# The second string is for Arabic, Urdu, Hindi, Burmese, Amharic and Khmer.
_ENDS = "。｡！？!?．‼⁇⁈⁉" + "؟۔।॥။።។"
# Quotes that may open or close, so they count as closing only after the end of a sentence.
_TRAILING_QUOTES = "\"'’»"
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"

_EVENT = re.compile(
    "["
    + re.escape("".join(_OPENERS) + "".join(_CLOSERS))
    + "]"
    + rf"|[{_BREAKS}]\s*"
    + rf"|[{_ENDS}.][{_ENDS}.…‥]*"
    + "|_(?:START_(?:ARTICLE|SECTION|PARAGRAPH)|NEWLINE)_"
)
_SPACE = re.compile(r"\s*")
_QUOTES = re.compile(f"[{_TRAILING_QUOTES}]*")
_DOTS = ".．…‥"
_SPACE_OR_END = frozenset(("", " ", "\t", "\u3000", *_BREAKS))
_HARD = frozenset((ARTICLE, SECTION, PARAGRAPH))

# Characters that continue a sentence after "。」" (「行く。」と言った、「…。」という,
# 「…。」の意味).
_AFTER_QUOTE = frozenset("とをがはものにでやへかなだっ、，,・…‥")
# Characters that continue a sentence after "！" or "？" (あっ！、と).
_AFTER_MARK = frozenset("、，,")
_ABBREVIATION = re.compile(
    r"(?:^|[^A-Za-z])(?:[A-Za-z]|[A-Z][a-z]|Mrs|Messrs|Prof|Capt|Gen|Gov|Sen|Rev|Hon|Inc|Ltd|Corp"
    r"|Bros|[Vv]ols?|[Ff]igs?|[Ee]ds?|[Nn]os?|etc|vs|pp|cf|ca|al|[Aa]pprox|Jan|Feb|Mar|Apr|Jun|Jul"
    r"|Aug|Sept?|Oct|Nov|Dec)$"
)
# Maximum nesting of brackets. It is above the nesting in prose, and keeps the time linear for a
# line of ten million （.
_MAX_DEPTH = 32


def split_sentences(text: str) -> list[str]:
    """Split `text` into sentences, each with the closing brackets and white space after it."""
    if not text:
        return []
    cuts = [0, *find_sentence_boundaries(text), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(cuts)]


def find_sentence_boundaries(text: str) -> list[int]:
    """Return the offsets at which sentences start, in characters and in ascending order.

    The offset 0 and the end of the text are excluded.
    """
    cuts: list[int] = []
    # Kind and offset of each open bracket, and the number of boundaries before it.
    stack: list[tuple[int, int, int]] = []
    ended = -1  # End of the last punctuation of a sentence, including closing brackets after it.
    length = len(text)
    first = length - len(text.lstrip())  # End of leading white space.
    for event in _EVENT.finditer(text):
        token = event[0]
        start, end = event.span()
        if token in _OPENERS:
            stack.append((_OPENERS[token], start, len(cuts)))
            if len(stack) > _MAX_DEPTH:
                del stack[0]
            continue
        if token in _CLOSERS:
            _close(_CLOSERS[token], start, stack, cuts)
            if ended != start:
                continue
            end = ended = _QUOTES.match(text, end).end()  # type: ignore[union-attr]
            following = text[end : end + 1]
            if following in _CLOSERS or following in _AFTER_QUOTE:
                continue
            # The sentence continues after a quotation, as in: “Stop. Now.” and left.
            if following == " " and text[end : end + 2][1:].islower():
                continue
        elif token[0] in _BREAKS:
            last = cuts[-1] if cuts else 0
            if start <= last or (last == 0 and start <= first):
                continue
        elif token[0] == "_":
            if token in _HARD:
                stack.clear()
                if start > (cuts[-1] if cuts else 0) and start > first:
                    cuts.append(start)
            elif cuts and cuts[-1] == start:
                cuts.pop()  # The marker of a line break belongs to the sentence before it.
        else:
            if not _ends_sentence(text, token, start, end, cuts):
                continue
            end = ended = _QUOTES.match(text, end).end()  # type: ignore[union-attr]
            following = text[end : end + 1]
            if following in _CLOSERS or following in _AFTER_MARK:
                continue
        cut = _SPACE.match(text, end).end()  # type: ignore[union-attr]
        if cut < length and (not cuts or cut > cuts[-1]):
            cuts.append(cut)
    return cuts


def _close(kind: int, at: int, stack: list[tuple[int, int, int]], cuts: list[int]) -> None:
    """Close the nearest open bracket of `kind`, and drop the sentence boundaries inside it.

    A bracket that opened more than `MAX_BRACKET_LENGTH` characters before is not closed.
    """
    for i in range(len(stack) - 1, -1, -1):
        opener, start, known = stack[i]
        if at - start > MAX_BRACKET_LENGTH:
            return
        if opener == kind:
            del stack[i:]
            del cuts[known:]
            return


def _ends_sentence(text: str, token: str, start: int, end: int, cuts: list[int]) -> bool:
    """Return whether punctuation ends a sentence, and is not part of a number, URL or initial."""
    following = text[end : end + 1]
    if token.strip(_DOTS):
        inside_word = token.isascii() and following.isascii() and following not in _SPACE_OR_END
        return not (inside_word and (following.isalnum() or following in "=&/%_#"))
    before = text[start - 1 : start]
    if len(token) > 1 or not before:  # "..." is an ellipsis, or a dot starts the text.
        return False
    if token == "．":
        if following.isalnum() and unicodedata.normalize("NFKC", following).isascii():
            return False
        return not before.isdigit() or following in _SPACE_OR_END
    return _ascii_dot_ends(text, start, before, following, cuts)


def _ascii_dot_ends(text: str, start: int, before: str, following: str, cuts: list[int]) -> bool:
    if before.isspace() or not (before.isalnum() or before in _CLOSERS or before in "\"'%"):
        return False
    if not (following in _SPACE_OR_END or following in _CLOSERS or following in _TRAILING_QUOTES):
        return not before.isascii() and not following.isascii()
    if not before.isascii():
        return True
    last = cuts[-1] if cuts else 0
    if text[max(last, start - 4) : start].strip().isdigit() and start - last <= 4:
        return False  # The number of a heading: "1. Introduction".
    if _ABBREVIATION.search(text[max(last, start - 10) : start]):
        return False
    after = text[start + 1 : start + 40].lstrip().lstrip(_TRAILING_QUOTES)
    return not after[:1].islower()
