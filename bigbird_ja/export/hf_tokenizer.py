"""Export our SentencePiece model as a Hugging Face tokenizer that gives the same ids.

`AutoTokenizer` loads `tokenizer.json` as it is, because `tokenizer_class` names the class that adds
nothing of its own. BigBird's class does: in transformers 5 it takes the pieces alone and puts
another normaliser before them (without NFKC), in transformers 4 its conversion strips spaces in
front of the markers and does not compose half-width kana with their voicing marks. What makes the
ids the same:

- the whole text is normalised first (the model's own rules, then NFC, which composes what the
  rules leave apart because Hugging Face applies them per character), and only then cut at the
  markers, as SentencePiece does;
- a space in front of the text only, not in front of what follows `[MASK]`;
- `text.model_proto.round_scores`, so that float32 and float64 sums agree.

Control pieces written in a text (`[CLS]`, `[SEP]`, `<s>`, ...) are special tokens there, as
everywhere in Hugging Face; to SentencePiece they are ordinary characters.
"""

import base64
import json
from typing import Any

from bigbird_ja.text import MASK, model_proto
from bigbird_ja.text.folder_tokenizer import CONFIG, FolderTokenizer
from bigbird_ja.text.tokenizer import CONTROL_PIECES, USER_PIECES, SentencePieceTokenizer, Tokenizer

# transformers' name for the part that each control piece plays.
_ROLES = {part: piece for piece, (part, _) in model_proto.PARTS.items()}


def files(tokenizer: Tokenizer, model_max_length: int) -> dict[str, bytes]:
    """Make a tokenizer's files: name -> content. Those of another project's folder are handed back.

    Args:
        tokenizer: of the data.
        model_max_length: tokens that the model takes.
    """
    if isinstance(tokenizer, FolderTokenizer):
        return _handed_back(tokenizer, model_max_length)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    return {
        "spiece.model": tokenizer.model_bytes,
        "tokenizer.json": to_json(tokenizer_json(tokenizer), indent=None),
        "tokenizer_config.json": to_json(_config(tokenizer, model_max_length)),
        "special_tokens_map.json": to_json(
            {role: _as_token(piece) for role, piece in _ROLES.items()}
        ),
    }


def _handed_back(tokenizer: FolderTokenizer, model_max_length: int) -> dict[str, bytes]:
    """Return the files of a folder's tokenizer, for this model."""
    config = json.loads(tokenizer.files[CONFIG])
    config["model_max_length"] = model_max_length
    return {**tokenizer.files, CONFIG: to_json(config)}


def tokenizer_json(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    """Make the content of `tokenizer.json`, the format of the `tokenizers` library."""
    settings = model_proto.settings(tokenizer.model_bytes)
    ids = {piece: tokenizer.pieces.index(piece) for piece in CONTROL_PIECES}
    decoder = _metaspace("always" if settings.add_dummy_prefix else "never")
    if _has_bytes(tokenizer):
        decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, decoder]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, **_as_token(piece), "special": True}
            for piece, i in sorted(ids.items(), key=lambda item: item[1])
        ],
        "normalizer": _normalizer(settings),
        "pre_tokenizer": _pre_tokenizer(settings),
        "post_processor": _post_processor({name: ids[name] for name in ("[CLS]", "[SEP]")}),
        "decoder": decoder,
        "model": _model(tokenizer, settings),
    }


def _normalizer(settings: model_proto.ModelSettings) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if settings.charsmap:
        charsmap = base64.b64encode(settings.charsmap).decode()
        steps += [{"type": "Precompiled", "precompiled_charsmap": charsmap}, {"type": "NFC"}]
    if settings.remove_extra_whitespaces:
        steps += [
            {"type": "Strip", "strip_left": False, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]
    return {"type": "Sequence", "normalizers": steps}


def _pre_tokenizer(settings: model_proto.ModelSettings) -> dict[str, Any]:
    pattern = {"Regex": "|".join(USER_PIECES)}
    markers = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    # "first": only where the text begins, as SentencePiece adds its space.
    spaces = _metaspace("first" if settings.add_dummy_prefix else "never")
    return {"type": "Sequence", "pretokenizers": [spaces, markers]}


def _metaspace(prepend_scheme: str) -> dict[str, Any]:
    place = {"replacement": "▁", "prepend_scheme": prepend_scheme}
    return {"type": "Metaspace", "split": False, **place}


def _post_processor(ends: dict[str, int]) -> dict[str, Any]:
    """Make the template that adds a first and a last piece to a text; `ends`: piece to id."""

    def part(kind: str, name: str, segment: int) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": segment}}

    first, second = part("Sequence", "A", 0), part("Sequence", "B", 1)
    before, after = ends
    single = [part("SpecialToken", before, 0), first, part("SpecialToken", after, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, part("SpecialToken", after, 1)],
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]} for name, i in ends.items()
        },
    }


def _model(
    tokenizer: SentencePieceTokenizer, settings: model_proto.ModelSettings
) -> dict[str, Any]:
    scores = [piece.score for piece in model_proto.pieces(tokenizer.model_bytes)]
    if settings.model_type == model_proto.UNIGRAM:
        return {
            "type": "Unigram",
            "unk_id": tokenizer.special.unk,
            "vocab": [list(pair) for pair in zip(tokenizer.pieces, scores, strict=True)],
            "byte_fallback": _has_bytes(tokenizer),
        }
    vocabulary = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    return {
        "type": "BPE",
        **dict.fromkeys(("dropout", "continuing_subword_prefix", "end_of_word_suffix")),
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": _has_bytes(tokenizer),
        "ignore_merges": True,  # a marker is one piece that no merge makes
        "vocab": vocabulary,
        "merges": _merges(vocabulary, scores),
    }


def _has_bytes(tokenizer: SentencePieceTokenizer) -> bool:
    """Tell whether unknown characters are spelt in bytes, as in models of other projects."""
    return "<0x00>" in tokenizer.pieces


def _merges(vocabulary: dict[str, int], scores: list[float]) -> list[list[str]]:
    """List which neighbours join, in order; SentencePiece keeps only the results, by rank."""
    merges = []
    for piece, i in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-scores[i], vocabulary[left], vocabulary[right], left, right))
    return [[left, right] for *_, left, right in sorted(merges)]


def _config(tokenizer: SentencePieceTokenizer, model_max_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # As in transformers' BigBird tokenizer: segments only on request.
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": model_max_length,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(tokenizer.pieces.index(piece)): {**_as_token(piece), "special": True}
            for piece in CONTROL_PIECES
        },
        **_ROLES,
    }


def _as_token(piece: str) -> dict[str, Any]:
    """Describe a special token: a mask in a text takes the space before it along."""
    plain = dict.fromkeys(("normalized", "rstrip", "single_word"), False)
    return {"content": piece, "lstrip": piece == MASK, **plain}


def to_json(value: Any, indent: int | None = 2) -> bytes:
    """Write a JSON file as Hugging Face's folders have them."""
    return (json.dumps(value, ensure_ascii=False, indent=indent) + "\n").encode()
