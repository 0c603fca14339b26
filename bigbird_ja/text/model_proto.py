"""A SentencePiece `.model` file read as the protocol buffer it is, without generated classes.

The classes that come with SentencePiece 0.2.3 need protobuf 5, TensorFlow 2.15 needs protobuf 4.
Field numbers: google/sentencepiece, src/sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds of pieces

# Scores become multiples of this many nats: see `round_scores`.
SCORE_STEP = 1 / 64

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Fields of ModelProto, of SentencePiece, of TrainerSpec, of NormalizerSpec.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE, _KIND = 1, 2, 3
_MODEL_TYPE = 3
_NAME, _CHARSMAP, _DUMMY_PREFIX, _EXTRA_WHITESPACE = 1, 2, 3, 4


@dataclass(frozen=True)
class ModelSettings:
    """What a model says about itself, as far as others have to repeat it."""

    model_type: int  # UNIGRAM or BPE
    normalization: str  # name of the rules, such as nmt_nfkc
    charsmap: bytes  # compiled normalisation rules; empty for none
    add_dummy_prefix: bool  # a space in front of every text
    remove_extra_whitespaces: bool


def settings(model: bytes) -> ModelSettings:
    """Reads the settings of a serialised model.

    Raises:
        ValueError: not a serialised message.
    """
    parts: dict[int, dict[int, int | bytes]] = {_TRAINER: {}, _NORMALIZER: {}}
    for number, value, _ in _fields(model, 0, len(model)):
        if number in parts and isinstance(value, bytes):
            parts[number] = {n: v for n, v, _ in _fields(value, 0, len(value))}
    normalizer = parts[_NORMALIZER]
    charsmap = normalizer.get(_CHARSMAP, b"")
    name = normalizer.get(_NAME, b"")
    return ModelSettings(
        model_type=int(parts[_TRAINER].get(_MODEL_TYPE, UNIGRAM)),
        normalization=name.decode() if isinstance(name, bytes) else "",
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        add_dummy_prefix=bool(normalizer.get(_DUMMY_PREFIX, 1)),
        remove_extra_whitespaces=bool(normalizer.get(_EXTRA_WHITESPACE, 1)),
    )


def scores(model: bytes) -> list[float]:
    """The score of each piece: a log-probability (unigram) or minus its merge's rank (BPE)."""
    found = []
    for number, value, start in _fields(model, 0, len(model)):
        if number == _PIECES and isinstance(value, bytes):
            parts = {n: v for n, v, _ in _fields(model, start, start + len(value))}
            score = parts.get(_SCORE, b"\0\0\0\0")
            assert isinstance(score, bytes)
            found.append(float(struct.unpack("<f", score)[0]))
    return found


@dataclass(frozen=True)
class Piece:
    """One piece of a vocabulary; its id is its place."""

    name: str
    score: float
    kind: int  # NORMAL, CONTROL, ...


def pieces(model: bytes) -> list[Piece]:
    """All pieces, in the order of their ids."""
    found = []
    for number, value, start in _fields(model, 0, len(model)):
        if number == _PIECES and isinstance(value, bytes):
            parts = {n: v for n, v, _ in _fields(model, start, start + len(value))}
            name, score = parts.get(_PIECE, b""), parts.get(_SCORE, b"\0\0\0\0")
            assert isinstance(name, bytes) and isinstance(score, bytes)
            kind = int(parts.get(_KIND, NORMAL))
            found.append(Piece(name.decode(), float(struct.unpack("<f", score)[0]), kind))
    return found


def with_pieces(model: bytes, pieces: list[Piece]) -> bytes:
    """The same model with another vocabulary, in the order of its ids."""
    made = bytearray()
    for piece in pieces:
        name = piece.name.encode()
        body = _key(_PIECE, _BYTES) + _as_varint(len(name)) + name
        body += _key(_SCORE, _FIXED32) + struct.pack("<f", piece.score)
        body += _key(_KIND, _VARINT) + _as_varint(piece.kind)
        made += _key(_PIECES, _BYTES) + _as_varint(len(body)) + body
    for number, value, _ in _fields(model, 0, len(model)):
        if number != _PIECES and isinstance(value, bytes):  # the others are messages, too
            made += _key(number, _BYTES) + _as_varint(len(value)) + value
    return bytes(made)


def _key(number: int, kind: int) -> bytes:
    return _as_varint(number << 3 | kind)


def _as_varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def round_scores(model: bytes) -> bytes:
    """The same unigram model with its scores rounded to multiples of `SCORE_STEP`.

    SentencePiece adds scores up in float32 along the whole text. In a long one the rounding noise
    of the sum (0.01 at -1e5) decides between segmentations that are nearly equal, so that a
    document's ids are neither those of its parts nor those of an implementation in float64
    (Hugging Face's). Multiples of 1/64 add up exactly to 262,144, some 40,000 tokens, and exact
    ties are broken by the same rule everywhere. Other model types are returned as they are.
    """
    if settings(model).model_type != UNIGRAM:
        return model
    rounded = bytearray(model)
    for number, value, start in _fields(model, 0, len(model)):
        if number != _PIECES or not isinstance(value, bytes):
            continue
        for inner, score, place in _fields(model, start, start + len(value)):
            if inner == _SCORE and isinstance(score, bytes):
                (number_read,) = struct.unpack("<f", score)
                nearest = round(number_read / SCORE_STEP) * SCORE_STEP
                rounded[place : place + 4] = struct.pack("<f", nearest)
    return bytes(rounded)


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int | bytes, int]]:
    """(field number, value, where the value's bytes start) of one message's fields."""
    at = start
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value, at
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"not a serialised message (wire type {kind} at byte {at})")
        if at + size > end:
            raise ValueError(f"not a serialised message (cut off at byte {at})")
        yield key >> 3, data[at : at + size], at
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at byte `at`, and where it ends."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("not a serialised message (ends within a number)")
