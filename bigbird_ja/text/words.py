"""Word starts for whole-word masks, by changes of script or by MeCab.

Japanese is written without spaces, so SentencePiece's leading "▁" does not mark words. Changes of
script (kanji, hiragana, katakana, latin, digits, other) approximate word starts without a
dictionary. `mecab` uses fugashi with unidic-lite (extra `words`).

A token starts a word if its first character and the first character of the previous token belong to
different words.

Chinese, Thai, Lao, Khmer and Burmese have neither spaces between words nor changes of script. If a
run of one script is longer than a word can be, each of its tokens counts as a word, as the pieces
of a unigram model are likely words. Runs of kanji in Japanese are not divided, as kana separate
them.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bigbird_ja.process.extras import require

if TYPE_CHECKING:
    from bigbird_ja.text.tokenizer import Tokenizer

SPACE, KANJI, HIRAGANA, KATAKANA, LATIN, DIGIT, POINT, OTHER, MARK, UNSPACED = range(10)
_NUM_CLASSES = 10
# Maximum lengths of words in scripts without spaces, in characters. Chinese idioms have four.
# UNSPACED is class SA of Unicode's line breaking (UAX 14): scripts in which only a dictionary finds
# the words.
_LONGEST_WORD = {KANJI: 4, UNSPACED: 12}
# Minimum share of tokens that begin with kana in a Japanese document.
_KANA_IN_TEXT = 0.05

# Ranges of code points: first, last, class. All other characters are OTHER.
_RANGES: tuple[tuple[int, int, int], ...] = (
    (0x0009, 0x000D, SPACE), (0x0020, 0x0020, SPACE), (0x00A0, 0x00A0, SPACE),
    (0x2581, 0x2581, SPACE), (0x3000, 0x3000, SPACE),
    (0x3005, 0x3007, KANJI), (0x3400, 0x4DBF, KANJI), (0x4E00, 0x9FFF, KANJI),
    (0xF900, 0xFAFF, KANJI), (0x20000, 0x323AF, KANJI),
    (0x3041, 0x3096, HIRAGANA), (0x309D, 0x309F, HIRAGANA), (0x1B150, 0x1B152, HIRAGANA),
    (0x30A1, 0x30FA, KATAKANA), (0x30FD, 0x30FF, KATAKANA), (0x31F0, 0x31FF, KATAKANA),
    (0xFF66, 0xFF6F, KATAKANA), (0xFF71, 0xFF9D, KATAKANA),
    (0x0041, 0x005A, LATIN), (0x0061, 0x007A, LATIN), (0x00C0, 0x024F, LATIN),
    (0x0370, 0x052F, LATIN), (0x0590, 0x08FF, LATIN), (0x0900, 0x1FFF, LATIN),
    (0x0E01, 0x0E4E, UNSPACED), (0x0E81, 0x0EDF, UNSPACED), (0x1000, 0x109F, UNSPACED),
    (0x1780, 0x17DD, UNSPACED), (0x1950, 0x19DF, UNSPACED), (0x1A20, 0x1AAD, UNSPACED),
    (0xA9E0, 0xA9FE, UNSPACED), (0xAA60, 0xAADF, UNSPACED),
    (0xAC00, 0xD7AF, LATIN), (0xFF21, 0xFF3A, LATIN), (0xFF41, 0xFF5A, LATIN),
    (0x0030, 0x0039, DIGIT), (0xFF10, 0xFF19, DIGIT), (0x2460, 0x249B, DIGIT),
    (0x002C, 0x002C, POINT), (0x002E, 0x002E, POINT), (0xFF0C, 0xFF0C, POINT),
    (0xFF0E, 0xFF0E, POINT),
    # A MARK belongs to the character before it: long vowel, ヵ ヶ, voicing, accents, joiners,
    # variants.
    (0x30FC, 0x30FC, MARK), (0xFF70, 0xFF70, MARK), (0x30F5, 0x30F6, MARK),
    (0x3099, 0x309C, MARK), (0xFF9E, 0xFF9F, MARK), (0x0300, 0x036F, MARK),
    (0x200B, 0x200F, MARK), (0x20D0, 0x20FF, MARK), (0xFE00, 0xFE0F, MARK),
    (0xFE20, 0xFE2F, MARK), (0x1F3FB, 0x1F3FF, MARK), (0xE0100, 0xE01EF, MARK),
)  # fmt: skip


@functools.lru_cache(maxsize=1)
def _make_class_table() -> np.ndarray:
    """Return the class of each code point: uint8 [0x110000]."""
    table = np.full(0x110000, OTHER, np.uint8)
    for first, last, kind in _RANGES:
        table[first : last + 1] = kind
    return table


@functools.lru_cache(maxsize=1)
def _make_start_table() -> np.ndarray:
    """Return whether a word starts at a character, by its class and the previous character's.

    Returns:
        bool [class of the previous character, class of the character].
    """
    starts = ~np.eye(_NUM_CLASSES, dtype=bool)
    starts[OTHER, OTHER] = True  # Each punctuation mark or symbol is a word.
    starts[SPACE, :] = False  # A space belongs to the word after it, like "▁".
    starts[:, SPACE] = True
    starts[SPACE, SPACE] = False
    starts[:, MARK] = False
    starts[DIGIT, POINT] = starts[POINT, DIGIT] = False  # 3.14 is one word, and 1,000 too.
    starts[POINT, POINT] = True
    starts[LATIN, UNSPACED] = starts[UNSPACED, LATIN] = False
    return starts


def find_mecab_boundaries(text: str) -> np.ndarray:
    """Find word starts with MeCab and unidic-lite: int64 character offsets, ascending from 0.

    White space belongs to the following word.

    Raises:
        BadInput: The extra `words` is not installed.
    """
    parse = _load_mecab()
    offsets: list[int] = []
    at = 0
    for chunk in _CHUNK.findall(text.translate(_TO_SPACE)):
        inside = 0
        for word in parse(chunk).split():
            offsets.append(at + inside)
            inside = chunk.index(word, inside) + len(word)
        at += len(chunk)
    if text and (not offsets or offsets[0]):
        offsets.insert(0, 0)
    return np.array(offsets, np.int64)


# Characters to replace by spaces, as MeCab stops at NUL and at line breaks.
_TO_SPACE = str.maketrans(dict.fromkeys("\t\n\r\v\f\x00\x1c\x1d\x1e\x1f\x85\xa0\u3000\u2581", " "))
# A long text is parsed in chunks, as MeCab's lattice needs some 100 bytes per character and word.
_CHUNK = re.compile(r".{0,4000}[。 ]|.{1,4000}", re.DOTALL)


@functools.lru_cache(maxsize=1)
def _load_mecab() -> Callable[[str], str]:
    """Return MeCab's function that separates the words of a text by spaces.

    Raises:
        BadInput: The package fugashi or unidic-lite is not installed.
    """
    require("fugashi")
    import fugashi
    import unidic_lite

    folder = unidic_lite.DICDIR
    tagger = fugashi.GenericTagger(f'-Owakati -d "{folder}" -r "{os.path.join(folder, "mecabrc")}"')
    parse: Callable[[str], str] = tagger.parse
    return parse


# Function that finds word starts. Its arguments are texts, and the token ids of each text (int32
# [tokens]). It returns for each text whether each token starts a word (bool [tokens]).
WordMarker = Callable[[Sequence[str], Sequence[np.ndarray]], list[np.ndarray]]


def make_word_marker(kind: str, tokenizer: Tokenizer) -> WordMarker:
    """Return the function that finds word starts.

    If `kind` is "mecab", the function uses MeCab. If `kind` is "script", it uses changes of script.
    But if the spelling of each token states whether the token continues a word, as in WordPiece
    (##), it uses the spelling.
    """
    if kind == "mecab":
        return TextMarker(tokenizer, find_mecab_boundaries)
    if tokenizer.continues_word is not None:
        starts = ~tokenizer.continues_word
        return lambda texts, ids: [starts[np.asarray(x, np.int64)] for x in ids]
    if tokenizer.has_partial_characters:
        return TextMarker(tokenizer, find_script_boundaries, divides=not tokenizer.is_japanese)
    return ScriptMarker(tokenizer)


def _divide_long_runs(starts: np.ndarray, kinds: np.ndarray, lengths: np.ndarray) -> None:
    """Divide runs of one script that are too long for a word, by changing `starts` in place.

    Each token of such a run becomes a word. In a Japanese document nothing is changed.

    Args:
        starts: bool [tokens of one document], whether each token starts a word.
        kinds: class of the first character of each token, the same shape.
        lengths: number of characters that begin in each token, the same shape.
    """
    if np.isin(kinds, (HIRAGANA, KATAKANA)).mean() >= _KANA_IN_TEXT:
        return
    heads = np.flatnonzero(starts)
    run_lengths = np.add.reduceat(lengths, heads)[np.cumsum(starts) - 1]
    for kind, longest in _LONGEST_WORD.items():
        starts |= (kinds == kind) & (run_lengths > longest) & (lengths > 0)


class ScriptMarker:
    """Callable that finds word starts by token ids alone, at about 100 million tokens per second.

    Each token of the vocabulary has a code for its beginning and a code for its end. A table with a
    row for each end and a column for each beginning states whether a token starts a word, by the
    end of the previous token and its own beginning.
    """

    # Each token has two codes. The code of its end is the class (SPACE, KANJI, ...) of its last
    # character, plus _INNER if a word starts inside the token. The code of its beginning is the
    # class of its first character, or _SYMBOL if the token is not ordinary text.
    _INNER = _NUM_CLASSES
    _SYMBOL = _NUM_CLASSES

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Compute the codes for the beginning and the end of each token of the vocabulary."""
        self._first = np.full(tokenizer.vocab_size, self._SYMBOL, np.uint8)
        self._last = np.full(tokenizer.vocab_size, OTHER, np.uint8)
        ids = np.flatnonzero(tokenizer.is_text_token)
        self._first[ids], self._last[ids] = _encode_edges([tokenizer.tokens[i] for i in ids])
        self._lengths = None if tokenizer.is_japanese else tokenizer.characters
        table = np.ones((2, _NUM_CLASSES, _NUM_CLASSES + 1), bool)
        table[0, :, : self._SYMBOL] = _make_start_table()
        self._starts = table.reshape(-1)

    def __call__(self, texts: Sequence[str], ids: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Implement `WordMarker`, without use of `texts`."""
        if not ids:
            return []
        lengths = np.array([len(x) for x in ids])
        flat = np.concatenate(ids)
        starts = np.ones(len(flat), bool)
        if len(flat) > 1:
            last = self._last[flat[:-1]]
            marks = np.flatnonzero(last == MARK)
            if len(marks):  # A token "ー" gets the class of the token before it.
                source = np.arange(len(last))
                source[marks] = 0
                source = np.maximum.accumulate(source)[marks]
                last[marks] = last[source] % self._INNER
            starts[1:] = self._starts[last * np.uint8(_NUM_CLASSES + 1) + self._first[flat[1:]]]
        ends = np.cumsum(lengths)
        starts[(ends - lengths)[lengths > 0]] = True  # The first token of each text.
        split = np.split(starts, ends[:-1])
        if self._lengths is not None:
            for each, x in zip(split, ids, strict=True):
                if len(x):
                    _divide_long_runs(each, self._first[x], self._lengths[x])
        return split


def _encode_edges(tokens: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays, the codes of the tokens' beginnings and of their ends: uint8 [tokens].

    `ScriptMarker` describes the codes.
    """
    codes = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), "<u4")
    lengths = np.array([len(token) for token in tokens])
    heads = np.cumsum(lengths) - lengths
    is_head = np.zeros(len(codes), bool)
    is_head[heads] = True
    raw, kinds, starts = _classify(codes, is_head)
    has_inner = np.logical_or.reduceat(starts & ~is_head, heads)
    only_marks = np.logical_and.reduceat(raw == MARK, heads)
    last = np.where(only_marks, MARK, kinds[heads + lengths - 1])
    return raw[heads], (last + ScriptMarker._INNER * has_inner).astype(np.uint8)


def _classify(codes: np.ndarray, is_head: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Classify characters by script, and find word starts.

    Args:
        codes: uint32 [characters], code points.
        is_head: bool [characters], whether a character begins a text or token.

    Returns:
        Three arrays [characters]: the class of each character (uint8); the same classes, but for a
        MARK (such as an accent) the class of the character before it (uint8); and whether a word
        starts at each character (bool).
    """
    raw = _make_class_table()[codes]
    marks = raw == MARK
    source = np.maximum.accumulate(np.where(marks & ~is_head, 0, np.arange(len(raw))))
    kinds = np.where(raw[source] == MARK, KATAKANA, raw[source])
    starts = np.zeros(len(raw), bool)
    starts[1:] = _make_start_table()[kinds[:-1], kinds[1:]]
    return raw, kinds, starts & ~marks


def find_script_boundaries(text: str) -> np.ndarray:
    """Find word starts by changes of script: int64 character offsets, ascending from 0."""
    if not text:
        return np.zeros(0, np.int64)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    is_head = np.zeros(len(codes), bool)
    is_head[0] = True
    return np.flatnonzero(_classify(codes, is_head)[2] | is_head)


class TextMarker:
    """Callable that finds word starts in the normalized text, by MeCab or by changes of script.

    MeCab reads a few MB per second.
    """

    def __init__(
        self, tokenizer: Tokenizer, boundaries: Callable[[str], np.ndarray], divides: bool = False
    ) -> None:
        """Store the arguments.

        Args:
            tokenizer: tokenizer of the texts.
            boundaries: function from a text to the character offsets where its words start.
            divides: whether each token of a long run of one script counts as a word, for languages
                without spaces.
        """
        self._tokenizer = tokenizer
        self._boundaries = boundaries
        self._divides = divides

    def __call__(self, texts: Sequence[str], ids: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Implement `WordMarker`."""
        return [self._mark(text, np.asarray(x)) for text, x in zip(texts, ids, strict=True)]

    def _mark(self, text: str, ids: np.ndarray) -> np.ndarray:
        if not len(ids):
            return np.zeros(0, bool)
        surface, offsets = self._tokenizer.spell_with_offsets(text, ids)
        starts = mark_starts(self._boundaries(surface), offsets)
        if self._divides and surface:
            codes = np.frombuffer(surface.encode("utf-32-le", "surrogatepass"), "<u4")
            kinds = _make_class_table()[codes[np.minimum(offsets, len(codes) - 1)]]
            begins = np.diff(offsets, prepend=-1) > 0  # False inside a character.
            lengths = np.where(begins, np.diff(offsets, append=len(codes)), 0)
            _divide_long_runs(starts, kinds, lengths)
        if self._tokenizer.has_partial_characters:
            return starts
        symbols = ~self._tokenizer.is_text_token[ids]
        starts |= symbols  # Each of Wiki40b's markers is a word.
        starts[1:] |= symbols[:-1]
        return starts


def mark_starts(boundaries: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Mark the tokens that start a word: bool [tokens].

    Args:
        boundaries: character offsets where words start, ascending from 0.
        offsets: character offsets where tokens start, ascending, in the same text.
    """
    word = np.searchsorted(boundaries, offsets, side="right")
    starts = np.ones(len(offsets), bool)
    starts[1:] = word[1:] != word[:-1]
    return starts
