"""Files of a Hugging Face tokenizer with the same ids as a SentencePiece model.

The library `tokenizers` writes `tokenizer.json`. `AutoTokenizer` loads it unchanged, because
`tokenizer_class` names a class that adds nothing. BigBird's class cannot be used. In transformers 5
that class reads only the tokens, and uses a normalizer without NFKC. In transformers 4 it strips
spaces before Wiki40b's markers (`_START_SECTION_`, ...), and does not compose half-width kana with
their voicing marks.

The ids are the same for three reasons:

- The whole text is normalized, and then divided at the markers, as by SentencePiece. After the
  model's own normalization rules, NFC is applied, because Hugging Face applies these rules only to
  single characters.
- A space is added only in front of the text, and not after `[MASK]`.
- `text.model_proto.round_scores` rounds scores, so that float32 and float64 sums are equal.

Control symbols in a text (`[CLS]`, `[SEP]`, `<s>`, ...) are special tokens for Hugging Face, and
ordinary characters for SentencePiece.
"""

import json
from typing import Any

from bigbird_ja.text import model_proto
from bigbird_ja.text.folder_tokenizer import CONFIG, FolderTokenizer
from bigbird_ja.text.markers import MARKERS, MASK
from bigbird_ja.text.tokenizer import CONTROL_TOKENS, SentencePieceTokenizer, Tokenizer

# Control symbol of each role, by transformers' name of the role.
_ROLES = {role: token for token, (role, _) in model_proto.PARTS.items()}


def make_files(tokenizer: Tokenizer, model_max_length: int) -> dict[str, bytes]:
    """Return the content of a tokenizer's files by name.

    The files of a Hugging Face tokenizer are returned as they are, except for `model_max_length`.

    Args:
        tokenizer: tokenizer of the data set.
        model_max_length: maximum length of the model, in tokens.
    """
    if isinstance(tokenizer, FolderTokenizer):
        config = {**json.loads(tokenizer.files[CONFIG]), "model_max_length": model_max_length}
        return {**tokenizer.files, CONFIG: encode_json(config)}
    assert isinstance(tokenizer, SentencePieceTokenizer)
    return {
        "spiece.model": tokenizer.model_bytes,
        "tokenizer.json": encode_json(make_tokenizer_json(tokenizer), indent=None),
        "tokenizer_config.json": encode_json(_make_config(tokenizer, model_max_length)),
        "special_tokens_map.json": encode_json(
            {role: _describe_token(token) for role, token in _ROLES.items()}
        ),
    }


def make_tokenizer_json(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    """Return the content of `tokenizer.json` for the library `tokenizers`."""
    import tokenizers
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors

    settings = model_proto.read_settings(tokenizer.model_bytes)
    made = tokenizers.Tokenizer(_make_model(tokenizer, settings))
    steps: list[Any] = []
    if settings.charsmap:
        steps += [normalizers.Precompiled(settings.charsmap), normalizers.NFC()]
    if settings.remove_extra_whitespaces:
        steps += [normalizers.Strip(left=False), normalizers.Replace(Regex(" {2,}"), " ")]
    made.normalizer = normalizers.Sequence(steps)
    # "first" adds a space only at the start of the text, as SentencePiece does.
    scheme = "first" if settings.add_dummy_prefix else "never"
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace("▁", scheme, split=False),
            pre_tokenizers.Split(Regex("|".join(MARKERS)), "isolated"),
        ]
    )
    special = tokenizer.special
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", special.cls), ("[SEP]", special.sep)],
    )
    scheme = "always" if settings.add_dummy_prefix else "never"
    made.decoder = decoders.Metaspace("▁", scheme, split=False)
    if _has_bytes(tokenizer):
        made.decoder = decoders.Sequence([decoders.ByteFallback(), made.decoder])
    made.add_special_tokens(
        [tokenizers.AddedToken(**_describe_token(token)) for token in CONTROL_TOKENS]
    )
    return dict(json.loads(made.to_str()))


def _make_model(tokenizer: SentencePieceTokenizer, settings: model_proto.ModelSettings) -> Any:
    from tokenizers import models

    scores = [piece.score for piece in model_proto.read_pieces(tokenizer.model_bytes)]
    if settings.model_type == model_proto.UNIGRAM:
        vocabulary = list(zip(tokenizer.tokens, scores, strict=True))
        return models.Unigram(vocabulary, tokenizer.special.unk, _has_bytes(tokenizer))
    ids = {token: i for i, token in enumerate(tokenizer.tokens)}
    return models.BPE(
        ids,
        _list_merges(ids, scores),
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=_has_bytes(tokenizer),
        ignore_merges=True,  # A marker is a token that no merge produces.
    )


def _has_bytes(tokenizer: SentencePieceTokenizer) -> bool:
    """Return whether the tokenizer encodes unknown characters as bytes (byte fallback)."""
    return "<0x00>" in tokenizer.tokens


def _list_merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """List the BPE merges, as pairs of tokens in the order of their ranks.

    A SentencePiece model contains a rank for each token that is formed by a merge, but not the pair
    that is merged. So all pairs of tokens that form this token are listed.
    """
    merges = []
    for token, i in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-scores[i], vocabulary[left], vocabulary[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def _make_config(tokenizer: SentencePieceTokenizer, model_max_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Segment ids are not listed, as in transformers' BigBird tokenizer.
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": model_max_length,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(tokenizer.tokens.index(token)): {**_describe_token(token), "special": True}
            for token in CONTROL_TOKENS
        },
        **_ROLES,
    }


def _describe_token(token: str) -> dict[str, Any]:
    """Return the properties of a special token. Only a mask consumes the space before it."""
    plain = dict.fromkeys(("normalized", "rstrip", "single_word"), False)
    return {"content": token, "lstrip": token == MASK, **plain}


def encode_json(value: Any, indent: int | None = 2) -> bytes:
    """Encode a JSON file in the style of Hugging Face's folders."""
    return (json.dumps(value, ensure_ascii=False, indent=indent) + "\n").encode()
