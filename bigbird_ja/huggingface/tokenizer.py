"""Tokenizers that a path names: a SentencePiece model, or a Hugging Face folder.

transformers loads a folder's tokenizer. Data sets and runs store that tokenizer as
`text.folder_tokenizer` describes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import hub
from bigbird_ja.process.console import shorten
from bigbird_ja.storage import decode
from bigbird_ja.text import model_proto
from bigbird_ja.text.folder_tokenizer import (
    CONFIG,
    DEFINITION,
    MAX_BYTES,
    VOCABULARY,
    FolderTokenizer,
    Vocabulary,
    convert_load_errors,
    load,
    pack,
)
from bigbird_ja.text.load import parse_tokenizer
from bigbird_ja.text.tokenizer import (
    CORE,
    SentencePieceTokenizer,
    SpecialIds,
    Tokenizer,
    has_our_tokens,
)

WITH_TOKENS = (DEFINITION, "vocab.txt", "vocab.json", *model_proto.MODEL_NAMES)
# Suffixes of files that a tokenizer may need.
_SUFFIXES = (".json", ".txt", ".model")
# Maximum ratio of the largest id to the number of tokens. The ratio of padded or pruned
# vocabularies is below two.
_MAX_IDS_PER_TOKEN = 16
# Keys of tokenizer_config.json that are removed. They would make transformers change the special
# tokens around a text, or load code from the folder.
_OVERRIDES = ("add_bos_token", "add_eos_token", "auto_map")
# Module that `auto_map` names for a tokenizer in Python. For `model_type: modernbert`, transformers
# 5 rejects the tokenizer's class unless there is an `auto_map`. With `trust_remote_code=True`,
# transformers loads this module. Otherwise it loads its own class of the name in `auto_map`.
_MODULE = "tokenization_of_transformers"


def read_tokenizer(path: str) -> Tokenizer:
    """Load a tokenizer from a `.model` file, or with transformers from a Hugging Face folder.

    If the folder contains a SentencePiece model with the special tokens of `bigbird-ja tokenize`,
    that model is loaded instead. Folders of `bigbird-ja export` may contain such a model.

    Raises:
        BadInput: There is no tokenizer, or it cannot be used.
    """
    if not os.path.isdir(path) and (path.endswith(".model") or not storage.is_remote(path)):
        try:
            return parse_tokenizer(storage.read_bytes(path), path)
        except (FileNotFoundError, NotADirectoryError) as error:
            advice = "train one with `bigbird-ja tokenize`, which writes PREFIX.model"
            advice = hub.advise_download(path) or advice
            raise BadInput(f"no tokenizer {path}: {advice}") from error
    names = storage.list_files(path)
    for name in (name for name in model_proto.MODEL_NAMES if name in names):
        data = storage.read_bytes(storage.join(path, name))
        if has_our_tokens(data):
            return SentencePieceTokenizer(data, storage.join(path, name))
    if {*WITH_TOKENS} & {*names}:
        return read_folder(path)
    models = [storage.join(path, name) for name in names if name.endswith(".model")]
    raise BadInput(
        f"{path} is a folder: give the model in it, {models[0]}"
        if models
        else f"{path}: no tokenizer in this folder. Let transformers write one, by"
        " AutoTokenizer.from_pretrained(...).save_pretrained(...)"
    )


def read_folder(folder: str) -> FolderTokenizer:
    """Load the tokenizer of a folder, on disk or gs://, with transformers.

    Raises:
        BadInput: The package transformers is missing or cannot load the tokenizer, or a required
            special token is missing.
    """
    content = {
        name: storage.read_bytes(storage.join(folder, name), MAX_BYTES)
        for name in storage.list_files(folder)
        if name.endswith(_SUFFIXES)
    }
    return build_tokenizer(content, folder)


def build_tokenizer(content: Mapping[str, bytes], source: str) -> FolderTokenizer:
    """Load a tokenizer with transformers.

    Args:
        content: content of the files of a Hugging Face folder by name.
        source: path of the folder, for messages.

    Raises:
        BadInput: The package transformers is missing or cannot load the tokenizer, or a required
            special token is missing.
    """
    return FolderTokenizer(pack(_load_archive(content, source)), source)


def read_tokens(folder: str) -> dict[str, int | None]:
    """Read a folder's tokens without transformers.

    Returns:
        The id of each token, by token. An id is None if the files do not determine it. If the
        folder contains no tokenizer, the dict is empty.

    Raises:
        BadInput: A file is damaged.
    """
    names = storage.list_files(folder)
    name = next((name for name in WITH_TOKENS if name in names), None)
    if name is None:
        return {}
    path = storage.join(folder, name)
    with decode.convert_errors(path, "a vocabulary", "give a whole file"):
        data = storage.read_bytes(path, MAX_BYTES)
        if name.endswith(".model"):  # Some classes change the model's ids, so the ids are unknown.
            return {piece.name: None for piece in model_proto.read_pieces(data)}
        if name.endswith(".txt"):
            return {
                token: i for i, token in enumerate(re.split("\r?\n", data.decode().rstrip("\r\n")))
            }
        content = json.loads(data)
        if name == DEFINITION:
            content = content["model"]["vocab"]
        if isinstance(content, list):
            content = {token: i for i, (token, _) in enumerate(content)}
        return dict(content)


def _load_archive(content: Mapping[str, bytes], source: str) -> dict[str, bytes]:
    """Load a folder's tokenizer with `AutoTokenizer`, and return the files to store, by name.

    `content` contains the folder's files by name.
    """
    with convert_load_errors(source):
        theirs, config = load(content, source)
        names = _list_names(theirs, source)
        ends = _find_surrounding_ids(theirs, source)
        special = _find_special_ids(theirs, names, ends, source)
        config = {**theirs.special_tokens_map, **config, "mask_token": names[special.mask]}
        for key in _OVERRIDES:
            config.pop(key, None)
        config["model_input_names"] = theirs.model_input_names
        if theirs.is_fast:
            files = {DEFINITION: _make_definition(theirs, names, special, None in ends)}
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
        else:
            kind = config["tokenizer_class"] = type(theirs).__name__
            config["auto_map"] = {"AutoTokenizer": [f"{_MODULE}.{kind}", None]}
            files = {f"{_MODULE}.py": f"from transformers import {kind}\n".encode()}
            kept = (*type(theirs).vocab_files_names.values(), "added_tokens.json")
            files |= {name: content[name] for name in kept if name in content}
    definition = json.loads(files.get(DEFINITION, b"{}"))
    pre_tokenizer, model = definition.get("pre_tokenizer") or {}, definition.get("model") or {}
    if "add_prefix_space" in pre_tokenizer:  # transformers 4 assumes false by default.
        config["add_prefix_space"] = pre_tokenizer["add_prefix_space"]
    prefix = model.get("continuing_subword_prefix") if theirs.is_fast else "##"
    vocabulary = Vocabulary(
        names=names,
        special=special,
        added={i: token.special for i, token in theirs.added_tokens_decoder.items()},
        prefix=prefix if prefix and any(name.startswith(prefix) for name in names) else "",
        is_byte_level='"ByteLevel"' in json.dumps([pre_tokenizer, definition.get("decoder")]),
    )
    text = json.dumps(config, ensure_ascii=False, indent=2, default=str) + "\n"
    return {**files, CONFIG: text.encode(), VOCABULARY: msgspec.json.encode(vocabulary)}


def _list_names(theirs: Any, source: str) -> list[str]:
    """List the token of each id, with "" for an unused id.

    Raises:
        BadInput: An id is far above the number of tokens. Each id up to the largest one would need
            a row of embeddings.
    """
    names = {i: name for name, i in theirs.get_vocab().items()}
    last = max(names, default=-1)
    if last > _MAX_IDS_PER_TOKEN * len(names) + _MAX_IDS_PER_TOKEN:
        raise BadInput(
            f"{source}: token {shorten(names[last], 40)} has the id {last:,} in a vocabulary of"
            f" {len(names):,}. Give the tokens consecutive ids"
        )
    return [names.get(i, "") for i in range(last + 1)]


def _find_surrounding_ids(theirs: Any, source: str) -> tuple[int | None, int | None]:
    """Return the id that a tokenizer adds before a text, and the id that it adds after the text.

    None stands for a side where the tokenizer adds no id.

    Raises:
        BadInput: The tokenizer adds several tokens on one side.
    """
    inner = theirs("a", add_special_tokens=False)["input_ids"]
    whole = theirs("a")["input_ids"]
    added = len(whole) - len(inner)
    start = next(i for i in range(added + 1) if whole[i : i + len(inner)] == inner)
    if start > 1 or added - start > 1:
        raise BadInput(
            f"{source}: its tokenizer adds {start} tokens before a text and {added - start} after"
            " it. Use a tokenizer that adds one token on each side"
        )
    return (whole[0] if start else None), (whole[-1] if added > start else None)


def _find_special_ids(
    theirs: Any, names: Sequence[str], ends: tuple[int | None, int | None], source: str
) -> SpecialIds:
    """Return the ids of the special tokens.

    A token that the tokenizer does not state is found by its usual names. A token that the
    tokenizer adds before a text is cls, and a token that it adds after a text is sep.
    """
    known = {name: i for i, name in enumerate(names)}
    stated = theirs.special_tokens_map
    ids: dict[str, int | None] = {}
    for usual, (part, others) in model_proto.PARTS.items():
        candidates = [str(stated[part])] if stated.get(part) else [usual, *others]
        ids[part.removesuffix("_token")] = next((known[n] for n in candidates if n in known), None)
    for part, other, end in (("cls", "bos", ends[0]), ("sep", "eos", ends[1])):
        ids[part] = next((i for i in (end, ids[part], ids[other]) if i is not None), None)
    lacking = [f"{part}_token" for part in CORE if ids[part] is None]
    if lacking:
        raise BadInput(
            f"{source}: its vocabulary contains no token for {', '.join(lacking)}. Name them in"
            f" {CONFIG}, or use the tokenizer of a masked language model"
        )
    if len({ids[part] for part in CORE}) < len(CORE):
        shown = ", ".join(f"{part} {ids[part]}" for part in CORE)
        raise BadInput(f"{source}: one token has two roles ({shown}). Use another tokenizer")
    return SpecialIds(**ids)  # type: ignore[arg-type]  # the required ones are there


def _make_definition(
    theirs: Any, names: Sequence[str], special: SpecialIds, lacks_ends: bool
) -> bytes:
    """Return the tokenizer.json of a fast tokenizer, with the mask as a special token.

    If `lacks_ends` is true, add rules that put cls and sep around a text.
    """
    from tokenizers import processors

    engine = theirs.backend_tokenizer
    engine.no_truncation()
    engine.no_padding()
    engine.add_special_tokens([names[special.mask]])
    if lacks_ends:
        first, last = names[special.cls], names[special.sep]
        engine.post_processor = processors.TemplateProcessing(
            single=[first, "$A", last],
            pair=[first, "$A", last, "$B:1", f"{last}:1"],
            special_tokens=[(first, special.cls), (last, special.sep)],
        )
    return str(engine.to_str()).encode()
