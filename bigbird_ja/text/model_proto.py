"""Read and change SentencePiece `.model` files.

SentencePiece's own classes need a newer protobuf than TensorFlow 2.15 allows. So this module
declares the few messages that it needs. The field numbers are those of google/sentencepiece,
src/sentencepiece_model.proto.

This package finds special pieces by name. So `adapt` rewrites another project's model: it renames
special pieces, and adds missing ones after the last piece. No id changes. The changes are logged,
and recorded in the manifest of the data.
"""

import functools
from dataclasses import dataclass
from typing import Any

from bigbird_ja.errors import BadInput

MODEL_NAMES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "spm.model")
# Special pieces by their names in this package. Each value contains Hugging Face's name of the
# piece's role, and the piece's names in other projects.
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "<unk>": ("unk_token", ("[UNK]",)),
    "<pad>": ("pad_token", ("[PAD]",)),
    "[CLS]": ("cls_token", ("<cls>",)),
    "[SEP]": ("sep_token", ("<sep>",)),
    "[MASK]": ("mask_token", ("<mask>", "<MASK>", "[mask]")),
    "<s>": ("bos_token", ("[BOS]", "<bos>")),
    "</s>": ("eos_token", ("[EOS]", "<eos>")),
}
UNIGRAM, BPE = 1, 2
# Kinds of pieces.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# `round_scores` rounds scores to multiples of this step, in nats.
SCORE_STEP = 1 / 64

# Default value of a field by the field's type. All INT32 fields in `_MESSAGES` are enums with the
# default 1 (`UNIGRAM` or `NORMAL`), and all BOOL fields are true by default.
_DEFAULTS = {"INT32": "1", "BOOL": "true"}
# Fields of each message, as (name, number, type). In Model, the messages trainer and normalizer are
# declared as bytes, so that a rewritten model contains them unchanged.
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Piece": (("name", 1, "STRING"), ("score", 2, "FLOAT"), ("kind", 3, "INT32")),
    "Model": (("pieces", 1, "MESSAGE"), ("trainer", 2, "BYTES"), ("normalizer", 3, "BYTES")),
    "Trainer": (("model_type", 3, "INT32"),),
    "Normalizer": (
        ("name", 1, "STRING"),
        ("charsmap", 2, "BYTES"),
        ("add_dummy_prefix", 3, "BOOL"),
        ("remove_extra_whitespaces", 4, "BOOL"),
    ),
}


@functools.cache
def _make_class(message: str) -> Any:
    # Imported late: workers of `make-data` do not need protobuf, and start 25 % faster without it.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="bigbird_ja/sentencepiece.proto", package="bigbird_ja", syntax="proto2"
    )
    for name, fields in _MESSAGES.items():
        added = file.message_type.add(name=name)
        for field, number, kind in fields:
            is_message = kind == "MESSAGE"
            added.field.add(
                name=field,
                number=number,
                type=getattr(kinds, f"TYPE_{kind}"),
                label=kinds.LABEL_REPEATED if is_message else kinds.LABEL_OPTIONAL,
                type_name=".bigbird_ja.Piece" if is_message else None,
                default_value=_DEFAULTS.get(kind),
            )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"bigbird_ja.{message}"))


@dataclass(frozen=True)
class ModelSettings:
    """Settings of a SentencePiece model with which other libraries can produce the same ids."""

    model_type: int  # UNIGRAM or BPE.
    normalization: str  # Name of the rules, such as nmt_nfkc.
    charsmap: bytes  # Compiled normalization rules, or b"".
    add_dummy_prefix: bool  # Whether a space is added in front of every text.
    remove_extra_whitespaces: bool


def read_settings(model: bytes) -> ModelSettings:
    """Parse the settings of a serialized model."""
    parsed = _make_class("Model").FromString(model)
    trainer = _make_class("Trainer").FromString(parsed.trainer)
    normalizer = _make_class("Normalizer").FromString(parsed.normalizer)
    return ModelSettings(
        model_type=trainer.model_type,
        normalization=normalizer.name,
        charsmap=normalizer.charsmap,
        add_dummy_prefix=normalizer.add_dummy_prefix,
        remove_extra_whitespaces=normalizer.remove_extra_whitespaces,
    )


@dataclass(frozen=True)
class Piece:
    """Piece of a vocabulary. The piece's position in the vocabulary is its id."""

    name: str
    score: float  # Log-probability (unigram), or minus the rank of the piece's merge (BPE).
    kind: int  # NORMAL, CONTROL, ...


def read_pieces(model: bytes) -> list[Piece]:
    """Read all pieces, in the order of their ids."""
    parsed = _make_class("Model").FromString(model)
    return [Piece(piece.name, piece.score, piece.kind) for piece in parsed.pieces]


def replace_pieces(model: bytes, pieces: list[Piece]) -> bytes:
    """Return the model with `pieces`, in the order of their ids, as its vocabulary."""
    parsed = _make_class("Model").FromString(model)
    del parsed.pieces[:]
    for piece in pieces:
        parsed.pieces.add(name=piece.name, score=piece.score, kind=piece.kind)
    return bytes(parsed.SerializeToString())


def round_scores(model: bytes) -> bytes:
    """Round the scores of a unigram model to multiples of `SCORE_STEP`.

    SentencePiece sums scores in float32 along the whole text. In a long text, the rounding error of
    the sum (0.01 at a sum of -1e5) decides between segmentations with nearly equal scores. So
    without rounded scores, the ids of a document would differ from the ids of its parts, and from
    the ids of Hugging Face's tokenizer, which sums in float64. Float32 sums of multiples of 1/64
    are exact up to an absolute value of 262,144, which about 40,000 tokens reach. All
    implementations choose between equal sums by the same rule. Models of other types are returned
    unchanged.
    """
    if read_settings(model).model_type != UNIGRAM:
        return model
    parsed = _make_class("Model").FromString(model)
    for piece in parsed.pieces:
        if piece.HasField("score"):
            piece.score = round(piece.score / SCORE_STEP) * SCORE_STEP
    return bytes(parsed.SerializeToString())


def adapt(model: bytes, markers: tuple[str, ...], source: str) -> tuple[bytes, dict[str, str]]:
    """Add this package's special pieces to another project's model.

    Args:
        model: serialized SentencePiece model.
        markers: user-defined pieces to add.
        source: path of the model, for messages.

    Returns:
        The model, and a description of each change, by the name of the changed piece in this
        package.

    Raises:
        BadInput: The model is neither unigram nor BPE.
    """
    if read_settings(model).model_type not in (UNIGRAM, BPE):
        raise BadInput(f"{source} is neither a unigram nor a BPE model. Train one with `tokenize`")
    ours = read_pieces(model)
    changes: dict[str, str] = {}
    wanted = [(name, others, CONTROL) for name, (_, others) in PARTS.items()]
    wanted += [(marker, (), USER_DEFINED) for marker in markers]
    for name, others, usual in wanted:
        kind = UNKNOWN if name == "<unk>" else usual
        place = _find(ours, name, others)
        if place is None:
            ours.append(Piece(name, 0.0, kind))
            changes[name] = f"added with id {len(ours) - 1}"
            continue
        if ours[place].name != name:
            changes[name] = f"{ours[place].name} renamed, id {place}"
        ours[place] = Piece(name, ours[place].score, kind)
    return replace_pieces(model, ours), changes


def _find(pieces: list[Piece], name: str, others: tuple[str, ...]) -> int | None:
    """Return the id of a special piece by its names, or None if the model lacks the piece."""
    if name == "<unk>":
        return next((i for i, piece in enumerate(pieces) if piece.kind == UNKNOWN), None)
    places = {piece.name: i for i, piece in reversed(list(enumerate(pieces)))}
    return next((places[each] for each in (name, *others) if each in places), None)
