"""Another project's SentencePiece model, with its special pieces under the names that we read.

Everything here finds special pieces by name. So a model that calls them otherwise, or has none, is
rewritten: its own special pieces are renamed where they stand, missing ones are added behind the
last piece, and padding is put at id 0, in exchange with the piece that was there. All other ids
stay. Changes are logged, and recorded in the manifest of the data.

Which piece plays which part: what a Hugging Face folder states (`special_tokens_map.json`,
`tokenizer_config.json`), else its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode
from bigbird_ja.text import model_proto
from bigbird_ja.text.model_proto import CONTROL, UNKNOWN, USER_DEFINED, Piece

MODEL_NAMES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "spm.model")
# Our name -> the part in Hugging Face's files, and names by which others call it.
_PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "<unk>": ("unk_token", ("[UNK]",)),
    "<pad>": ("pad_token", ("[PAD]",)),
    "[CLS]": ("cls_token", ("<cls>",)),
    "[SEP]": ("sep_token", ("<sep>",)),
    "[MASK]": ("mask_token", ("<mask>", "<MASK>", "[mask]")),
    "<s>": ("bos_token", ("[BOS]", "<bos>")),
    "</s>": ("eos_token", ("[EOS]", "<eos>")),
}


def read_folder(folder: str) -> tuple[bytes, str, dict[str, str]] | None:
    """A Hugging Face folder's SentencePiece model, its path, and the parts of its special pieces.

    Returns:
        None where the folder holds no such model; parts are named as in Hugging Face's files.

    Raises:
        BadInput: a file of the folder is not what it should be.
    """
    for name in MODEL_NAMES:
        path = storage.join(folder, name)
        if storage.exists(path):
            return storage.read_bytes(path), path, _parts(folder)
    return None


def _parts(folder: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            said = decode.read_json(storage.join(folder, name), dict[str, Any])
        except FileNotFoundError:
            continue
        for part, _ in _PARTS.values():
            token = said.get(part)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                found[part] = token
    return found


def adapt(
    model: bytes, parts: Mapping[str, str], markers: tuple[str, ...], source: str
) -> tuple[bytes, dict[str, str]]:
    """The model with our special pieces, and what was changed: our name -> how it came about.

    Args:
        model: a serialised SentencePiece model.
        parts: Hugging Face's name of a part (`cls_token`) -> the piece that plays it.
        markers: pieces of their own wherever text holds them.
        source: the model's path, for messages.

    Raises:
        BadInput: neither unigram nor BPE.
    """
    if model_proto.settings(model).model_type not in (model_proto.UNIGRAM, model_proto.BPE):
        raise BadInput(f"{source}: neither a unigram nor a BPE model: train one with `tokenize`")
    pieces, changes, pad = _with_ours(model, parts, markers)
    if pad:
        changes["<pad>"] = f"at id 0; {pieces[pad].name}, which was there, has id {pad}"
    return model_proto.with_pieces(model, pieces), changes


def old_ids(model: bytes, parts: Mapping[str, str], markers: tuple[str, ...]) -> list[int | None]:
    """For each id of what `adapt` makes of a model, the model's own; None for an added piece."""
    pieces, _, pad = _with_ours(model, parts, markers)
    count = len(model_proto.pieces(model))
    ids = [place if place < count else None for place in range(len(pieces))]
    ids[0], ids[pad] = ids[pad], ids[0]
    return ids


def _with_ours(
    model: bytes, parts: Mapping[str, str], markers: tuple[str, ...]
) -> tuple[list[Piece], dict[str, str], int]:
    """The pieces that `adapt` makes, what was changed but for the place of padding, and the id
    with whose piece padding at id 0 was exchanged."""
    pieces = model_proto.pieces(model)
    changes: dict[str, str] = {}
    for name, (part, others) in _PARTS.items():
        kind = UNKNOWN if name == "<unk>" else CONTROL
        place = _find(pieces, name, parts.get(part), others)
        if place is None:
            pieces.append(Piece(name, 0.0, kind))
            changes[name] = f"added with id {len(pieces) - 1}"
        elif pieces[place] != Piece(name, pieces[place].score, kind):
            if pieces[place].name != name:
                changes[name] = f"{pieces[place].name} renamed, id {place}"
            pieces[place] = Piece(name, pieces[place].score, kind)
    known = {piece.name: place for place, piece in enumerate(pieces)}
    for name in markers:
        if name not in known:
            pieces.append(Piece(name, 0.0, USER_DEFINED))
            changes[name] = f"added with id {len(pieces) - 1}"
        elif pieces[known[name]].kind != USER_DEFINED:
            pieces[known[name]] = Piece(name, pieces[known[name]].score, USER_DEFINED)
    pad = next(i for i, piece in enumerate(pieces) if piece.name == "<pad>")
    pieces[0], pieces[pad] = pieces[pad], pieces[0]
    return pieces, changes, pad


def _find(
    pieces: list[Piece], name: str, stated: str | None, others: tuple[str, ...]
) -> int | None:
    """The id of the piece that plays a part."""
    if name == "<unk>":
        return next((i for i, piece in enumerate(pieces) if piece.kind == UNKNOWN), None)
    places = {piece.name: i for i, piece in reversed(list(enumerate(pieces)))}
    ours = _PARTS.keys() - {name}
    for candidate in (name, stated, *others):
        # One piece cannot play two parts: <s> that is also [CLS] keeps the first of them.
        if candidate in places and candidate not in ours:
            return places[candidate]
    if name in ("[CLS]", "[SEP]") and stated in places:
        return places[stated]
    return None
