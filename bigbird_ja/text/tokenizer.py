"""A SentencePiece model as everything else sees it: ids by name, batches, one normalisation.

Special ids are read from the model by name here and nowhere typed a second time. Normalisation
(NFKC by default) is the model's own business: text goes in as it is, once.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import sentencepiece

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import model_proto
from bigbird_ja.text.sentences import MARKERS

# In the order of their ids, which SentencePiece gives out from 0. "Control" pieces never come out
# of text, whatever it holds; the user-defined ones are always one piece where the text has them.
CONTROL_PIECES: tuple[str, ...] = ("<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
USER_PIECES: tuple[str, ...] = MARKERS
SPECIAL_PIECES: tuple[str, ...] = CONTROL_PIECES + USER_PIECES


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the special pieces of one model."""

    pad: int
    bos: int
    eos: int
    unk: int
    cls: int
    sep: int
    mask: int
    article: int
    section: int
    paragraph: int
    newline: int


class Tokenizer:
    """One SentencePiece model.

    Raises:
        BadInput: `model` is not a SentencePiece model, or it lacks a special piece.
    """

    def __init__(self, model: bytes, source: str = "the tokenizer") -> None:
        self.model_bytes = model
        self.source = source
        # Of another project's model: `changes` and `old_ids` of `model_proto.Adapted`.
        self.changes: dict[str, str] = {}
        self.old_ids: list[int | None] | None = None
        self._processor = _processor_of(model, source)
        self.special = self._special_ids()

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes, str]]:
        return Tokenizer, (self.model_bytes, self.source)

    def _special_ids(self) -> SpecialIds:
        ids = [self._processor.PieceToId(name) for name in SPECIAL_PIECES]
        unknown = self._processor.unk_id()
        lacking = [
            name
            for name, i in zip(SPECIAL_PIECES, ids, strict=True)
            if self._processor.IdToPiece(i) != name or (i == unknown and name != "<unk>")
        ]
        if lacking:
            raise BadInput(
                f"{self.source} lacks the special pieces {', '.join(lacking)}: train one with "
                "`bigbird-ja tokenize`"
            )
        return SpecialIds(*ids)

    @property
    def vocab_size(self) -> int:
        """Pieces, special ones included."""
        return self._processor.GetPieceSize()

    @functools.cached_property
    def pieces(self) -> list[str]:
        """The piece of each id; "▁" stands for a space."""
        return [self._processor.IdToPiece(i) for i in range(self.vocab_size)]

    @functools.cached_property
    def is_text_piece(self) -> np.ndarray:
        """bool [vocab_size]: a piece of ordinary text, not a special one, an unknown or a byte."""
        processor = self._processor
        special = set(SPECIAL_PIECES)
        return np.array(
            [
                not (
                    piece in special
                    or processor.IsControl(i)
                    or processor.IsUnknown(i)
                    or processor.IsByte(i)
                    or processor.IsUnused(i)
                )
                for i, piece in enumerate(self.pieces)
            ]
        )

    @functools.cached_property
    def sha256(self) -> str:
        """Hex digest of the model file."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    @functools.cached_property
    def normalization(self) -> str:
        """The rule in the model, such as "nmt_nfkc"; nothing else normalises."""
        return model_proto.settings(self.model_bytes).normalization

    def vocabulary_text(self) -> str:
        """What goes into a `.vocab` file: a line "piece, tab, score" for each id."""
        scores = (self._processor.GetScore(i) for i in range(self.vocab_size))
        rows = zip(self.pieces, scores, strict=True)
        return "".join(f"{piece}\t{score:g}\n" for piece, score in rows)

    def encode(self, text: str) -> list[int]:
        """Ids of one text, without [CLS] and [SEP]."""
        return self.encode_arrays([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """Ids of many texts, in one call."""
        return [ids.tolist() for ids in self.encode_arrays(texts, num_threads)]

    def encode_arrays(self, texts: Sequence[str], num_threads: int = 1) -> list[np.ndarray]:
        """int32 [tokens] of each text, in one call: SentencePiece makes a thread pool per call.

        Whole documents are encoded faster (25 MB/s a core) than sentences (14 MB/s).

        Raises:
            BadInput: a text holds a lone surrogate, which is no character.
        """
        try:
            return self._processor.EncodeAsNumpy(list(texts), num_threads=num_threads)
        except (RuntimeError, TypeError):
            check_encodable(texts)
            raise

    def decode(self, ids: Iterable[int]) -> str:
        """The normalised text of `ids`; markers are written out, control pieces are not."""
        return self._processor.Decode([int(i) for i in ids])

    def encode_pieces(self, text: str) -> list[str]:
        """The pieces of one text as written in it: an unknown one is its own characters."""
        check_encodable([text])
        return self._processor.EncodeAsPieces(text)

    def surface(self, text: str) -> str:
        """`text` as its pieces spell it when joined: normalised, with "▁" for spaces."""
        check_encodable([text])
        return self._processor.Normalize(text)

    @functools.cached_property
    def piece_lengths(self) -> np.ndarray:
        """int32 [vocab_size]: characters of each piece as written in text; an unknown one is 0."""
        return np.array(
            [
                len(piece) if self.is_text_piece[i] or piece in USER_PIECES else 0
                for i, piece in enumerate(self.pieces)
            ],
            np.int32,
        )

    def token_offsets(self, text: str, ids: np.ndarray) -> np.ndarray:
        """int64 [tokens]: where each token of `text` starts in `surface(text)`, in characters."""
        lengths = self.piece_lengths[ids]
        if not lengths.all():  # an unknown piece is as long as what it stands for
            pieces = self.encode_pieces(text)
            if len(pieces) != len(ids):
                raise ValueError("the ids are not those of this text")
            lengths = np.array([len(piece) for piece in pieces])
        return np.cumsum(lengths, dtype=np.int64) - lengths


def _processor_of(model: bytes, source: str) -> sentencepiece.SentencePieceProcessor:
    """SentencePiece with a model whose pieces are all text."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        if not model:
            raise RuntimeError("empty file")
        processor.LoadFromSerializedProto(model)
        for piece in range(processor.GetPieceSize()):
            processor.IdToPiece(piece)
    except UnicodeDecodeError as error:
        raise BadInput(f"{source}: piece {piece} is not UTF-8: give a whole model") from error
    except RuntimeError as error:
        raise BadInput(
            f"{source} is not a SentencePiece model: give the .model file that `tokenize` wrote"
        ) from error
    return processor


def load(path: str) -> Tokenizer:
    """Reads a `.model` file, on disk or gs://.

    Raises:
        BadInput: missing, not a SentencePiece model, or without the special pieces.
    """
    return Tokenizer(_read(path), path)


def _read(path: str) -> bytes:
    try:
        return storage.read_bytes(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise BadInput(
            f"no tokenizer {path}: train one with `bigbird-ja tokenize`, which writes PREFIX.model"
        ) from error


def load_any(path: str) -> Tokenizer:
    """Reads a `.model` file, or a Hugging Face folder that holds one, of whatever project.

    A model with other special pieces than ours is given ours; `changes` says how.

    Raises:
        BadInput: no SentencePiece model is there.
    """
    parts: dict[str, str] = {}
    stored = None if path.endswith(".model") else model_proto.read_folder(path)
    if stored is not None:
        model, path, parts = stored
    elif not storage.is_remote(path) and os.path.isdir(path):
        raise BadInput(
            f"{path}: no SentencePiece model in this folder"
            f" ({', '.join(model_proto.MODEL_NAMES)}): other tokenizers cannot be used"
        )
    else:
        model = _read(path)
    _processor_of(model, path)  # refuses what is no model
    names = [piece.name for piece in model_proto.pieces(model)]
    if set(SPECIAL_PIECES) <= set(names) and names[0] == "<pad>":
        return Tokenizer(model, path)
    adapted = model_proto.adapt(model, parts, USER_PIECES, path)
    tokenizer = Tokenizer(adapted.model, path)
    tokenizer.changes, tokenizer.old_ids = adapted.changes, adapted.old_ids
    return tokenizer


def old_ids_in(folder: str, adapted_sha256: str) -> list[int | None] | None:
    """For each id of a tokenizer that was made of a folder's by `load_any`, the folder's own.

    Args:
        folder: of Hugging Face.
        adapted_sha256: of the tokenizer in use.

    Returns:
        None for an id that the folder's does not have; and None where there is nothing to map: the
        folder holds no SentencePiece model, or the tokenizer in use is not made of it.
    """
    try:
        tokenizer = load_any(folder)
    except BadInput:
        return None
    return tokenizer.old_ids if tokenizer.sha256 == adapted_sha256 else None


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
