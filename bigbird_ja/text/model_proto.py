"""A SentencePiece `.model` file as the protocol buffer it is: pieces, scores, settings.

The classes that come with SentencePiece need a newer protobuf than TensorFlow 2.15 has, so the few
messages are declared here. Field numbers: google/sentencepiece, src/sentencepiece_model.proto.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds of pieces

# Scores become multiples of this many nats: see `round_scores`.
SCORE_STEP = 1 / 64

_F = descriptor_pb2.FieldDescriptorProto
# Field, number, type. The specs are declared as bytes, so that they are kept byte for byte.
_MESSAGES: dict[str, tuple[tuple[str, int, Any], ...]] = {
    "Piece": (("name", 1, _F.TYPE_STRING), ("score", 2, _F.TYPE_FLOAT), ("kind", 3, _F.TYPE_INT32)),
    "Model": (
        ("pieces", 1, _F.TYPE_MESSAGE), ("trainer", 2, _F.TYPE_BYTES),
        ("normalizer", 3, _F.TYPE_BYTES),
    ),
    "Trainer": (("model_type", 3, _F.TYPE_INT32),),
    "Normalizer": (
        ("name", 1, _F.TYPE_STRING), ("charsmap", 2, _F.TYPE_BYTES),
        ("add_dummy_prefix", 3, _F.TYPE_BOOL), ("remove_extra_whitespaces", 4, _F.TYPE_BOOL),
    ),
}  # fmt: skip


@functools.cache
def _class_of(message: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="bigbird_ja/sentencepiece.proto", package="bigbird_ja", syntax="proto2"
    )
    for name, fields in _MESSAGES.items():
        added = file.message_type.add(name=name)
        for field, number, kind in fields:
            is_message = kind == _F.TYPE_MESSAGE
            added.field.add(
                name=field, number=number, type=kind,
                label=_F.LABEL_REPEATED if is_message else _F.LABEL_OPTIONAL,
                type_name=".bigbird_ja.Piece" if is_message else None,
            )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"bigbird_ja.{message}"))


@dataclass(frozen=True)
class ModelSettings:
    """The settings of a model that other implementations have to repeat."""

    model_type: int  # UNIGRAM or BPE
    normalization: str  # name of the rules, such as nmt_nfkc
    charsmap: bytes  # compiled normalisation rules; empty for none
    add_dummy_prefix: bool  # a space in front of every text
    remove_extra_whitespaces: bool


def settings(model: bytes) -> ModelSettings:
    """Reads the settings of a serialised model."""
    parsed = _class_of("Model").FromString(model)
    trainer = _class_of("Trainer").FromString(parsed.trainer)
    normalizer = _class_of("Normalizer").FromString(parsed.normalizer)

    def flag(name: str) -> bool:
        return bool(getattr(normalizer, name)) if normalizer.HasField(name) else True

    return ModelSettings(
        model_type=trainer.model_type or UNIGRAM,
        normalization=normalizer.name,
        charsmap=normalizer.charsmap,
        add_dummy_prefix=flag("add_dummy_prefix"),
        remove_extra_whitespaces=flag("remove_extra_whitespaces"),
    )


@dataclass(frozen=True)
class Piece:
    """One piece of a vocabulary; its id is its place."""

    name: str
    score: float  # a log-probability (unigram) or minus its merge's rank (BPE)
    kind: int  # NORMAL, CONTROL, ...


def pieces(model: bytes) -> list[Piece]:
    """All pieces, in the order of their ids."""
    parsed = _class_of("Model").FromString(model)
    return [Piece(piece.name, piece.score, piece.kind or NORMAL) for piece in parsed.pieces]


def with_pieces(model: bytes, pieces: list[Piece]) -> bytes:
    """The same model with another vocabulary, in the order of its ids."""
    parsed = _class_of("Model").FromString(model)
    del parsed.pieces[:]
    for piece in pieces:
        parsed.pieces.add(name=piece.name, score=piece.score, kind=piece.kind)
    return bytes(parsed.SerializeToString())


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
    parsed = _class_of("Model").FromString(model)
    for piece in parsed.pieces:
        if piece.HasField("score"):
            piece.score = round(piece.score / SCORE_STEP) * SCORE_STEP
    return bytes(parsed.SerializeToString())
