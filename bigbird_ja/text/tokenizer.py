"""Encode by SentencePiece models, and load tokenizers of any kind.

Special ids are read from the model by name here and nowhere typed a second time. Normalisation
(NFKC by default) is the model's own business: text goes in as it is, once.
"""

import functools
import os
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import MASK, folder_files, model_proto
from bigbird_ja.text.folder_tokenizer import FolderTokenizer
from bigbird_ja.text.interface import SpecialIds, Tokenizer, check_encodable
from bigbird_ja.text.sentences import MARKERS

# In the order of their ids, which SentencePiece gives out from 0. "Control" pieces never come out
# of text, whatever it holds; the user-defined ones are always one piece where the text has them.
CONTROL_PIECES: tuple[str, ...] = ("<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
USER_PIECES: tuple[str, ...] = MARKERS
SPECIAL_PIECES: tuple[str, ...] = CONTROL_PIECES + USER_PIECES


class SentencePieceTokenizer(Tokenizer):
    """One SentencePiece model.

    Raises:
        BadInput: `model` is not a SentencePiece model, or it lacks a special piece.
    """

    def __init__(self, model: bytes, source: str = "the tokenizer") -> None:
        """Load `model`, a serialised SentencePiece model, read from `source`."""
        super().__init__(model, source)
        self._processor = _processor_of(model, source)
        self.special = self._special_ids()

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
        """Count the pieces, special ones included."""
        return self._processor.GetPieceSize()

    @functools.cached_property
    def pieces(self) -> list[str]:
        """Return the piece of each id; "▁" stands for a space."""
        return [self._processor.IdToPiece(i) for i in range(self.vocab_size)]

    @functools.cached_property
    def is_text_piece(self) -> np.ndarray:
        """Implement `Tokenizer.is_text_piece`."""
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
    def normalization(self) -> str:
        """Return the rule in the model, such as "nmt_nfkc"; nothing else normalises."""
        return model_proto.settings(self.model_bytes).normalization

    def vocabulary_text(self) -> str:
        """Write the content of a `.vocab` file: a line "piece, tab, score" for each id."""
        scores = (self._processor.GetScore(i) for i in range(self.vocab_size))
        rows = zip(self.pieces, scores, strict=True)
        return "".join(f"{piece}\t{score:g}\n" for piece, score in rows)

    def encode_arrays(self, texts: Sequence[str], num_threads: int = 1) -> list[np.ndarray]:
        """Implement `Tokenizer.encode_arrays`; SentencePiece makes a thread pool per call.

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
        """Return the normalised text of `ids`; markers are written out, control pieces are not."""
        return self._processor.Decode([int(i) for i in ids])

    def encode_pieces(self, text: str) -> list[str]:
        """Return the pieces of a text as written in it: an unknown one is its own characters."""
        check_encodable([text])
        return self._processor.EncodeAsPieces(text)

    def surface(self, text: str) -> str:
        """Spell `text` as its pieces do when joined: normalised, with "▁" for spaces."""
        check_encodable([text])
        return self._processor.Normalize(text)

    @functools.cached_property
    def piece_lengths(self) -> np.ndarray:
        """Count the characters of each piece in text: int32 [vocab_size]; an unknown one has 0."""
        return np.array(
            [
                len(piece) if self.is_text_piece[i] or piece in USER_PIECES else 0
                for i, piece in enumerate(self.pieces)
            ],
            np.int32,
        )

    def token_offsets(self, text: str, ids: np.ndarray) -> np.ndarray:
        """Find where each token of `text` starts in `surface(text)`: int64 [tokens]."""
        lengths = self.piece_lengths[ids]
        if not lengths.all():  # an unknown piece is as long as what it stands for
            pieces = self.encode_pieces(text)
            if len(pieces) != len(ids):
                raise ValueError("the ids are not those of this text")
            lengths = np.array([len(piece) for piece in pieces])
        return np.cumsum(lengths, dtype=np.int64) - lengths

    def surface_and_offsets(self, text: str, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """Implement `Tokenizer.surface_and_offsets`."""
        return self.surface(text), self.token_offsets(text, ids)

    @property
    def characters(self) -> np.ndarray:
        """Implement `Tokenizer.characters`; an unknown piece replaces at least one."""
        return np.maximum(self.piece_lengths, 1)

    def encode_with_masks(self, text: str) -> list[int]:
        """Implement `Tokenizer.encode_with_masks`.

        The mask stands where a token stood, as in training and with Hugging Face's tokenizer: no
        space is put after it, and spaces before it are removed. To that end each mask travels
        through SentencePiece as a marker that is always one piece.
        """
        marker = "_NEWLINE_"
        parts = text.split(MASK)
        is_mask: list[bool] = []  # of each marker in the text, in order
        for part in parts:
            is_mask += [False] * part.count(marker) + [True]
        joined = marker.join([*(part.rstrip() for part in parts[:-1]), parts[-1]])
        ids = self.encode(joined)
        if len(parts) > 1 and not parts[0].strip() and self.pieces[ids[0]] == "▁":
            ids = ids[1:]
        markers, special = iter(is_mask), self.special
        return [special.mask if i == special.newline and next(markers) else i for i in ids]


def _processor_of(model: bytes, source: str) -> sentencepiece.SentencePieceProcessor:
    """Load SentencePiece with a model whose pieces are all text."""
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


def from_bytes(model: bytes, source: str) -> Tokenizer:
    """Load a `tokenizer.model`: a SentencePiece model, or the files of a folder.

    Raises:
        BadInput: neither of the two, or without the special pieces.
    """
    if model.startswith(folder_files.FIRST_BYTES):
        return FolderTokenizer(model, source)
    return SentencePieceTokenizer(model, source)


def load(path: str) -> Tokenizer:
    """Reads a `.model` file, on disk or gs://.

    Raises:
        BadInput: missing, or as `from_bytes`.
    """
    return from_bytes(_read(path), path)


def _read(path: str) -> bytes:
    try:
        return storage.read_bytes(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise BadInput(
            f"no tokenizer {path}: train one with `bigbird-ja tokenize`, which writes PREFIX.model"
        ) from error


def load_any(path: str) -> Tokenizer:
    """Reads a `.model` file, or a Hugging Face folder with a tokenizer, of whatever project.

    A folder's `tokenizer.json`, or MeCab with WordPiece, is used as it is. Where there is only a
    SentencePiece model, it is given our special pieces; `changes` says how. A folder that `export`
    made of one holds both, and the model counts.

    Raises:
        BadInput: there is no tokenizer, or none that can be used.
    """
    tokenizer = _read_any(path)
    tokenizer.encode("")  # refuses what cannot encode
    return tokenizer


def _read_any(path: str) -> Tokenizer:
    is_model = path.endswith(".model")
    stored = None if is_model else model_proto.read_folder(path)
    if stored is not None and _has_our_pieces(stored[0]):
        return SentencePieceTokenizer(*stored[:2])
    if not is_model and (files := folder_files.FolderFiles.read(path)):
        return FolderTokenizer(files.pack(), path)
    if stored is None and not storage.is_remote(path) and os.path.isdir(path):
        raise BadInput(
            f"{path}: no tokenizer in this folder: neither tokenizer.json, nor MeCab with"
            f" WordPiece, nor a SentencePiece model ({', '.join(model_proto.MODEL_NAMES)}): let"
            " transformers write one, by AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    return _sentencepiece(stored or (_read(path), path, {}))


def _has_our_pieces(model: bytes) -> bool:
    from google.protobuf.message import DecodeError

    try:
        names = [piece.name for piece in model_proto.pieces(model)]
    except (DecodeError, ValueError):  # no model at all
        return False
    return set(SPECIAL_PIECES) <= set(names)


def _sentencepiece(stored: tuple[bytes, str, dict[str, str]]) -> SentencePieceTokenizer:
    """Load a SentencePiece model, its path and the parts of its pieces, with our special pieces."""
    model, path, parts = stored
    size = _processor_of(model, path).GetPieceSize()  # refuses what is no model
    if _has_our_pieces(model):
        return SentencePieceTokenizer(model, path)
    adapted, changes = model_proto.adapt(model, parts, USER_PIECES, path)
    tokenizer = SentencePieceTokenizer(adapted, path)
    tokenizer.changes, tokenizer.added = changes, tokenizer.vocab_size - size
    return tokenizer


def pieces_of(folder: str, sha256: str) -> int | None:
    """Count the pieces of a tokenizer in use that are a Hugging Face folder's, by the same ids.

    Those that `load_any` added stand behind them.

    Returns:
        None where the tokenizer in use was not made of the folder's.
    """
    try:
        tokenizer = _read_any(folder)
    except BadInput:
        return None
    return tokenizer.vocab_size - tokenizer.added if tokenizer.sha256 == sha256 else None
