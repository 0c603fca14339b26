"""Base class of tokenizers, and its implementation for SentencePiece's models."""

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sentencepiece

from bigbird_ja.errors import BadInput
from bigbird_ja.storage import decode
from bigbird_ja.text import model_proto
from bigbird_ja.text.markers import MARKERS, MASK, NEWLINE

# Control tokens in the order of their ids, from 0. Encoding a text produces none of them except
# <unk>. The ids of the markers follow, and a marker in a text is always one token.
CONTROL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_TOKENS: tuple[str, ...] = CONTROL_TOKENS + MARKERS
# Minimum share of tokens with kana in a Japanese vocabulary. The share is several times as high in
# real Japanese vocabularies, and lower in vocabularies for other languages.
_KANA_SHARE = 0.05


@dataclass(frozen=True)
class SpecialIds:
    """Ids of a tokenizer's special tokens, or None for a missing token."""

    pad: int
    bos: int | None
    eos: int | None
    unk: int | None
    cls: int
    sep: int
    mask: int
    article: int | None = None
    section: int | None = None
    paragraph: int | None = None
    newline: int | None = None

    def to_dict(self) -> dict[str, int]:
        """Return the ids of the special tokens by name. Each id occurs only once.

        For example, in RoBERTa bos and cls have the same id, which is returned as cls.
        """
        core = (self.pad, self.cls, self.sep, self.mask)
        ids: dict[str, int] = {}
        for name, i in vars(self).items():
            if name in CORE or (i is not None and i not in (*core, *ids.values())):
                ids[name] = i
        return ids


# Special tokens that every tokenizer needs.
CORE = ("pad", "cls", "sep", "mask")


class Tokenizer(abc.ABC):
    """Base class of tokenizers, loaded by `load.parse_tokenizer`.

    Attributes:
        model_bytes: content of DATA_DIR/tokenizer.model.
        source: path of the tokenizer, for messages.
        special: ids of special tokens.
        special_ids: ids, by name, that masking never selects, and never draws as a replacement.
        vocab_size: number of tokens, including special ones.
        names: token of each id, as the tokenizer's own files spell it.
        tokens: token of each id in readable characters, with "▁" for a space.
        written: text of each token, with "▁" for a space.
        is_text_token: bool [vocab_size], whether a token is ordinary text: not special, unknown or
            bytes.
        characters: int32 [vocab_size], approximate number of characters that a token writes.
        changes: changes that were made to another project's SentencePiece model, by token.
        files: files of a Hugging Face folder for `export`, or {} if `export` builds them.
        continues_word: bool [vocab_size], whether a token continues the previous token's word, or
            None if the spelling of tokens does not show this.
        has_partial_characters: whether a token may contain only a part of a character's bytes.
    """

    special: SpecialIds
    special_ids: dict[str, int]
    vocab_size: int
    names: list[str]
    tokens: list[str]
    written: list[str]
    is_text_token: np.ndarray
    characters: np.ndarray

    def __init__(self, model: bytes, source: str) -> None:
        """Set the model, its source, and the defaults of attributes that subclasses may replace."""
        self.model_bytes, self.source = model, source
        self.changes: dict[str, str] = {}
        self.files: Mapping[str, bytes] = {}
        self.continues_word: np.ndarray | None = None
        self.has_partial_characters = False

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes, str]]:
        """Pickle the model and its source."""
        return type(self), (self.model_bytes, self.source)

    @abc.abstractmethod
    def encode_arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode texts, without [CLS] and [SEP], and return int32 [tokens] for each.

        Raises:
            BadInput: A text contains a lone surrogate.
        """

    @abc.abstractmethod
    def encode_with_masks(self, text: str) -> list[int]:
        """Encode a text in which `MASK` stands for each masked token. Add no [CLS] and [SEP].

        The ids equal those that Hugging Face's tokenizer returns for the text.
        """

    @abc.abstractmethod
    def spell_with_offsets(self, text: str, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """Return the text that tokens spell, and the offset of each token in it.

        Args:
            text: encoded text.
            ids: int32 [tokens], token ids of the text.

        Returns:
            The text, and int64 [tokens], offsets in characters.
        """

    @functools.cached_property
    def sha256(self) -> str:
        """SHA-256 of the model in hex."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    @functools.cached_property
    def is_japanese(self) -> bool:
        """Whether the vocabulary is for Japanese, judged by the share of tokens with kana."""
        with_kana = sum(any("ぁ" <= character <= "ヿ" for character in t) for t in self.tokens)
        return with_kana > _KANA_SHARE * len(self.tokens)

    def format_tokens(self, ids: Sequence[int]) -> str:
        """Format tokens as text. If the tokenizer drops spaces between words, insert them."""
        parts = [self.written[i].replace("▁", " ") for i in ids]
        if self.continues_word is not None:
            apart = ["" if self.continues_word[i] else " " for i in ids]
            parts = [space + part for space, part in zip(apart, parts, strict=True)]
        return "".join(parts)

    def encode(self, text: str) -> list[int]:
        """Encode one text, without [CLS] and [SEP]."""
        return self.encode_arrays([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts in one call."""
        return [ids.tolist() for ids in self.encode_arrays(texts)]


class SentencePieceTokenizer(Tokenizer):
    """Tokenizer of a SentencePiece model, which normalizes text (NFKC by default).

    Special tokens that the model lacks are added (see `changes`).

    Raises:
        BadInput: `model` is not a SentencePiece model. Or it lacks special tokens, and they cannot
            be added, as it is neither unigram nor BPE.
    """

    def __init__(self, model: bytes, source: str = "the tokenizer") -> None:
        """Load a serialized SentencePiece model. Error messages name `source` as its path."""
        processor = _load_processor(model, source)
        changes: dict[str, str] = {}
        if any(processor.IdToPiece(processor.PieceToId(name)) != name for name in SPECIAL_TOKENS):
            model, changes = model_proto.adapt(model, MARKERS, source)
            processor = _load_processor(model, source)
        super().__init__(model, source)
        self._processor, self.changes = processor, changes
        self.special = SpecialIds(*(processor.PieceToId(name) for name in SPECIAL_TOKENS))
        self.special_ids = self.special.to_dict()
        self.vocab_size = processor.GetPieceSize()
        self.tokens = [processor.IdToPiece(i) for i in range(self.vocab_size)]
        self.names = self.written = self.tokens

    @functools.cached_property
    def is_text_token(self) -> np.ndarray:  # type: ignore[override]
        """Implement `Tokenizer.is_text_token`."""
        processor, special = self._processor, set(SPECIAL_TOKENS)
        kinds = (processor.IsControl, processor.IsUnknown, processor.IsByte, processor.IsUnused)
        return np.array(
            [t not in special and not any(k(i) for k in kinds) for i, t in enumerate(self.tokens)]
        )

    def encode_arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Implement `Tokenizer.encode_arrays`.

        A core encodes 25 MB/s of whole documents, and 14 MB/s of sentences.

        Raises:
            BadInput: A text contains a lone surrogate.
        """
        try:
            return self._processor.EncodeAsNumpy(list(texts), num_threads=1)
        except (RuntimeError, TypeError):
            check_encodable(texts)
            raise

    @functools.cached_property
    def _token_lengths(self) -> np.ndarray:
        """Number of characters in each token's text: int32 [vocab_size].

        The number is 0 for control, byte and unused tokens, and for <unk>. Wiki40b's markers, such
        as _NEWLINE_, count as text.
        """
        lengths = np.array([len(token) for token in self.tokens], np.int32)
        return np.where(self.is_text_token | np.isin(self.tokens, MARKERS), lengths, 0)

    def spell_with_offsets(self, text: str, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """Implement `Tokenizer.spell_with_offsets`."""
        check_encodable([text])
        lengths = self._token_lengths[ids]
        if not lengths.all():  # The length of an unknown token depends on the text.
            lengths = np.array([len(piece) for piece in self._processor.EncodeAsPieces(text)])
        offsets = np.cumsum(lengths, dtype=np.int64) - lengths
        return self._processor.Normalize(text), offsets

    @functools.cached_property
    def characters(self) -> np.ndarray:  # type: ignore[override]
        """Implement `Tokenizer.characters`.

        An unknown token counts as one character.
        """
        return np.maximum(self._token_lengths, 1)

    def encode_with_masks(self, text: str) -> list[int]:
        """Implement `Tokenizer.encode_with_masks`.

        As in Hugging Face's tokenizer, spaces before a mask are removed, and no space is added
        after it. Before the encoding, each mask is replaced by the marker _NEWLINE_, which is
        always encoded as one token. Then this token's id is replaced by the id of [MASK].
        """
        marker = NEWLINE
        parts = text.split(MASK)
        is_mask: list[bool] = []  # Whether each marker of the text stands for a mask, in order.
        for part in parts:
            is_mask += [False] * part.count(marker) + [True]
        joined = marker.join([*(part.rstrip() for part in parts[:-1]), parts[-1]])
        ids = self.encode(joined)
        if len(parts) > 1 and not parts[0].strip() and self.tokens[ids[0]] == "▁":
            ids = ids[1:]
        markers, special = iter(is_mask), self.special
        return [special.mask if i == special.newline and next(markers) else i for i in ids]


def _load_processor(model: bytes, source: str) -> sentencepiece.SentencePieceProcessor:
    """Load a model with SentencePiece, and check that its pieces are UTF-8."""
    processor = sentencepiece.SentencePieceProcessor()
    advice = "give the .model file that `tokenize` wrote"
    with decode.convert_errors(source, "a SentencePiece model", advice):
        if not model:
            raise ValueError("an empty file")
        try:
            processor.LoadFromSerializedProto(model)
        except RuntimeError as error:  # SentencePiece's message names only a line of its code.
            raise ValueError("it is damaged, or a file of another kind") from error
        for token_id in range(processor.GetPieceSize()):
            processor.IdToPiece(token_id)
    return processor


def has_our_tokens(model: bytes) -> bool:
    """Return whether a model contains all special tokens that `tokenize` creates."""
    return all(name.encode() in model for name in SPECIAL_TOKENS)


def check_encodable(texts: Sequence[str]) -> None:
    """Check that texts contain no lone surrogates, which UTF-8 cannot encode.

    Raises:
        BadInput: A text contains a lone surrogate. The message shows the characters before it.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            near = text[max(0, error.start - 20) : error.start]
            raise BadInput(
                f"the text contains a lone surrogate \\u{ord(text[error.start]):x} after {near!r},"
                " which is not a character: correct the text"
            ) from error
