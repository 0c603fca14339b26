"""Define tokenizers as all else sees them: ids by name, pieces, batches, of whatever kind."""

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bigbird_ja.process.errors import BadInput


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the special pieces of one model; None for what it does not have."""

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

    def by_name(self) -> dict[str, int]:
        """Name each id once: RoBERTa's bos is its cls, and goes by that name."""
        core = (self.pad, self.cls, self.sep, self.mask)
        ids: dict[str, int] = {}
        for name, i in vars(self).items():
            if name in CORE or (i is not None and i not in (*core, *ids.values())):
                ids[name] = i
        return ids


CORE = ("pad", "cls", "sep", "mask")  # the parts that every tokenizer needs


class Tokenizer(abc.ABC):
    """A tokenizer; `tokenizer.load` reads one."""

    model_bytes: bytes  # what DATA_DIR/tokenizer.model holds
    source: str  # where it was read from, for messages
    special: SpecialIds
    # How another project's SentencePiece model was changed; its last `added` pieces are new.
    changes: dict[str, str]
    added: int
    # The files of a Hugging Face folder that go where the model goes; empty: they are made.
    files: Mapping[str, bytes]
    # bool [vocab_size]: pieces that continue the word of the piece before; None: none say so.
    continues_word: np.ndarray | None
    has_partial_characters: bool  # pieces that are bytes, of which several make a character

    def __init__(self, model: bytes, source: str) -> None:
        """Keep the model, and defaults that kinds of tokenizers change."""
        self.model_bytes, self.source = model, source
        self.changes, self.added, self.files = {}, 0, {}
        self.continues_word, self.has_partial_characters = None, False

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes, str]]:
        """Pickle the model and where it was read from."""
        return type(self), (self.model_bytes, self.source)

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Count the pieces, special ones included; ids are below it."""

    @property
    @abc.abstractmethod
    def pieces(self) -> list[str]:
        """Return the piece of each id, as people read it; "▁" stands for a space."""

    @property
    @abc.abstractmethod
    def is_text_piece(self) -> np.ndarray:
        """Tell which pieces are ordinary text, not special, unknown, bytes: bool [vocab_size]."""

    @property
    @abc.abstractmethod
    def characters(self) -> np.ndarray:
        """Count the characters that each piece writes in a text, about: int32 [vocab_size]."""

    @abc.abstractmethod
    def encode_arrays(self, texts: Sequence[str], num_threads: int = 1) -> list[np.ndarray]:
        """Encode texts in one call, without [CLS] and [SEP]: int32 [tokens] of each.

        Raises:
            BadInput: a text holds a lone surrogate, which is no character.
        """

    @abc.abstractmethod
    def encode_with_masks(self, text: str) -> list[int]:
        """Encode a text in which `MASK` stands for the mask, without [CLS] and [SEP].

        The ids are those of Hugging Face's tokenizer.
        """

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the normalised text of `ids`, without control pieces."""

    @abc.abstractmethod
    def surface_and_offsets(self, text: str, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """Return a text as its pieces spell it when joined, and where in it each token starts.

        Args:
            text: what was encoded.
            ids: int32 [tokens], its ids.

        Returns:
            The text, and int64 [tokens] in characters.
        """

    @functools.cached_property
    def sha256(self) -> str:
        """Hash the model: SHA-256 in hex."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    @property
    def special_ids(self) -> dict[str, int]:
        """Return the ids that are never predicted and never drawn, by name."""
        return self.special.by_name()

    @property
    def written(self) -> list[str]:
        """Return what each piece writes in a text, "▁" for a space."""
        return self.pieces

    def encode(self, text: str) -> list[int]:
        """Encode one text, without [CLS] and [SEP]."""
        return self.encode_arrays([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """Encode many texts in one call."""
        return [ids.tolist() for ids in self.encode_arrays(texts, num_threads)]


def check_encodable(texts: Sequence[str]) -> None:
    """Refuses lone surrogates: they are no characters and no UTF-8 can hold them.

    Raises:
        BadInput: naming where.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            near = text[max(0, error.start - 20) : error.start]
            raise BadInput(
                f"a lone surrogate \\u{ord(text[error.start]):x} after {near!r} is no character:"
                " correct the text"
            ) from error
