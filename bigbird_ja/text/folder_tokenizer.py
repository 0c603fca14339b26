"""Tokenizers of Hugging Face folders, with transformers' ids, stored with the data set.

`make-data` loads a folder with `transformers.AutoTokenizer`. The result is stored as one zip
archive, DATA_DIR/tokenizer.model:

- `vocabulary.json`: facts for training, previews and masks. Reading it needs no package of Hugging
  Face, so a machine that trains needs none.
- `tokenizer.json`: the definition built by the tokenizer's class. The library `tokenizers` encodes
  with it, which starts in a tenth of the time of transformers. A tokenizer in Python
  (`BertJapaneseTokenizer`) has its own files instead, and transformers encodes.
- `tokenizer_config.json`. It names a class that reads `tokenizer.json` unchanged in transformers 4
  and 5, next to a model of any type: `export` writes these files.

One difference from transformers: a special token spelled out in a text (`</s>`) is ordinary text,
as in SentencePiece.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.process.classify import summary_line
from bigbird_ja.process.console import shortened
from bigbird_ja.process.extras import require
from bigbird_ja.storage import decode
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.text import model_proto
from bigbird_ja.text.markers import MASK
from bigbird_ja.text.tokenizer import CORE, SpecialIds, Tokenizer, check_encodable

FIRST_BYTES = b"PK\x03\x04"  # of a zip archive
VOCABULARY = "vocabulary.json"
DEFINITION, CONFIG = "tokenizer.json", "tokenizer_config.json"
WITH_TOKENS = (DEFINITION, "vocab.txt", "vocab.json", *model_proto.MODEL_NAMES)
_SUFFIXES = (".json", ".txt", ".model")  # suffixes of files that a tokenizer may need
_MAX_BYTES = 256 << 20  # limit of a file
_MAX_IDS_PER_TOKEN = 16  # folders with padded or pruned vocabularies have fewer than two
_ADVICE = "give a whole folder, or install the version of transformers that wrote it"
# Keys of tokenizer_config.json by which transformers overrides the special tokens around a text, or
# loads code from the folder.
_OVERRIDES = ("add_bos_token", "add_eos_token", "auto_map")
# With `model_type: modernbert`, transformers 5 rejects the class of a tokenizer in Python without
# `auto_map`. It then loads its own class of that name; this module is for `trust_remote_code=True`.
_MODULE = "tokenization_of_transformers"
_UNUSED = re.compile(r"[\[<|]*unused[_ ]?[0-9]+[\]>|]*")
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_NO_TEXT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Vocabulary:
    """Facts about the tokens of a tokenizer."""

    names: list[str]  # by id, in the tokenizer's spelling; empty for an id without a token
    special: SpecialIds
    added: dict[int, bool]  # added tokens by id; whether each is special
    prefix: str  # prefix of tokens that continue a word; empty if there are none
    is_byte_level: bool  # whether names are in the alphabet of byte-level BPE


def read(folder: str) -> FolderTokenizer:
    """Load the tokenizer of a folder, on disk or gs://, with transformers.

    Raises:
        BadInput: transformers is not installed or cannot load it, or it lacks a special token that
            training needs.
    """
    content = {
        name: storage.read_bytes(storage.join(folder, name), _MAX_BYTES)
        for name in storage.list_files(folder)
        if name.endswith(_SUFFIXES)
    }
    return of_files(content, folder)


def of_files(content: Mapping[str, bytes], source: str) -> FolderTokenizer:
    """Load a tokenizer from the files of a folder, read from `source`; errors as in `read`."""
    return FolderTokenizer(pack(_described(content, source)), source)


def tokens_in(folder: str) -> dict[str, int | None]:
    """Read a folder's tokens without transformers.

    Returns:
        Ids by token, None if an id is unknown; empty if the folder has no tokenizer.

    Raises:
        BadInput: a file is damaged.
    """
    names = storage.list_files(folder)
    name = next((name for name in WITH_TOKENS if name in names), None)
    if name is None:
        return {}
    path = storage.join(folder, name)
    with decode.made_by_others(path, "a vocabulary", "give a whole file"):
        data = storage.read_bytes(path, _MAX_BYTES)
        if name.endswith(".model"):  # some classes change the model's ids
            return {piece.name: None for piece in model_proto.pieces(data)}
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


def pack(content: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of files, uncompressed and with a fixed date."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name)  # dated 1980
            entry.create_system = 3  # Unix, on every system
            archive.writestr(entry, content[name])
    return buffer.getvalue()


def _unpacked(data: bytes, source: str) -> dict[str, bytes]:
    """Return the files of an archive of `pack`.

    Raises:
        BadInput: a damaged archive.
    """
    kind = "a whole archive of a tokenizer"
    with (
        decode.made_by_others(source, kind, "restore it from a copy"),
        zipfile.ZipFile(io.BytesIO(data)) as archive,
    ):
        if sum(entry.file_size for entry in archive.infolist()) > 2 * _MAX_BYTES:
            raise BadInput(f"{source}: holds more than {2 * _MAX_BYTES:,} bytes: no tokenizer")
        return {storage.check_inside(name): archive.read(name) for name in archive.namelist()}


def _described(content: Mapping[str, bytes], source: str) -> dict[str, bytes]:
    """Load a folder's files with `AutoTokenizer`; return the files of its archive."""
    with _loading(source):
        theirs, config = _load(content, source)
        names = _names(theirs, source)
        ends = _ends(theirs, source)
        special = _special_ids(theirs, names, ends, source)
        config = {**theirs.special_tokens_map, **config, "mask_token": names[special.mask]}
        for key in _OVERRIDES:
            config.pop(key, None)
        config["model_input_names"] = theirs.model_input_names
        if theirs.is_fast:
            files = {DEFINITION: _definition(theirs, names, special, None in ends)}
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
        else:
            kind = config["tokenizer_class"] = type(theirs).__name__
            config["auto_map"] = {"AutoTokenizer": [f"{_MODULE}.{kind}", None]}
            files = {f"{_MODULE}.py": f"from transformers import {kind}\n".encode()}
            kept = (*type(theirs).vocab_files_names.values(), "added_tokens.json")
            files |= {name: content[name] for name in kept if name in content}
    definition = json.loads(files.get(DEFINITION, b"{}"))
    pre_tokenizer, model = definition.get("pre_tokenizer") or {}, definition.get("model") or {}
    if "add_prefix_space" in pre_tokenizer:  # transformers 4 defaults to false
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


@contextlib.contextmanager
def _loading(source: str) -> Iterator[None]:
    """Convert errors of transformers and missing packages to BadInput."""
    try:
        with decode.made_by_others(source, "a tokenizer that transformers can load", _ADVICE):
            yield
    except ImportError as error:
        advice = "pip install 'bigbird-ja[huggingface,words]', or the package that it names"
        raise BadInput(f"{source}: {summary_line(error)}: {advice}") from error


def _load(content: Mapping[str, bytes], source: str) -> tuple[Any, dict[str, Any]]:
    """Load a tokenizer with transformers; return it and tokenizer_config.json."""
    require("transformers")
    import transformers

    transformers.logging.set_verbosity_error()
    config = json.loads(content.get(CONFIG, b"{}"))
    if (config.get("mecab_kwargs") or {}).get("mecab_option"):
        raise BadInput(f"{source}/{CONFIG}: mecab_option can write files: leave it out")
    only = {"local_files_only": True, "trust_remote_code": False}
    with scratch_directory() as folder:
        for name, data in content.items():
            storage.write_bytes(os.path.join(folder, name), data)
        return transformers.AutoTokenizer.from_pretrained(folder, **only), config


def _names(theirs: Any, source: str) -> list[str]:
    """Return the token of each id; empty for an unused id.

    Raises:
        BadInput: an id far above the number of tokens, each of which would be a row of embeddings.
    """
    names = {i: name for name, i in theirs.get_vocab().items()}
    last = max(names, default=-1)
    if last > _MAX_IDS_PER_TOKEN * len(names) + _MAX_IDS_PER_TOKEN:
        raise BadInput(
            f"{source}: token {shortened(names[last], 40)} has the id {last:,} in a vocabulary of"
            f" {len(names):,}: give the tokens consecutive ids"
        )
    return [names.get(i, "") for i in range(last + 1)]


def _ends(theirs: Any, source: str) -> tuple[int | None, int | None]:
    """Return the ids that a tokenizer adds before and after a text, None if it adds none.

    Raises:
        BadInput: it adds several tokens on one side.
    """
    inner = theirs("a", add_special_tokens=False)["input_ids"]
    whole = theirs("a")["input_ids"]
    added = len(whole) - len(inner)
    start = next(i for i in range(added + 1) if whole[i : i + len(inner)] == inner)
    if start > 1 or added - start > 1:
        raise BadInput(
            f"{source}: its tokenizer adds {start} tokens before a text and {added - start} after"
            " it: use one that adds one on each side"
        )
    return (whole[0] if start else None), (whole[-1] if added > start else None)


def _special_ids(
    theirs: Any, names: Sequence[str], ends: tuple[int | None, int | None], source: str
) -> SpecialIds:
    """Return the ids of special tokens: as the tokenizer states them, else by usual names.

    cls and sep are the tokens that the tokenizer adds around a text, if it adds any.
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
            f"{source}: its vocabulary has no token for {', '.join(lacking)}: name them in"
            f" {CONFIG}, or use the tokenizer of a masked language model"
        )
    if len({ids[part] for part in CORE}) < len(CORE):
        shown = ", ".join(f"{part} {ids[part]}" for part in CORE)
        raise BadInput(f"{source}: one token has two roles ({shown}): use another tokenizer")
    return SpecialIds(**ids)  # type: ignore[arg-type]  # the required ones are there


def _definition(theirs: Any, names: Sequence[str], special: SpecialIds, lacks_ends: bool) -> bytes:
    """Return the tokenizer.json of a fast tokenizer, with both ends and the mask."""
    from tokenizers import processors

    engine = theirs.backend_tokenizer
    engine.no_truncation()
    engine.no_padding()
    engine.add_special_tokens([names[special.mask]])  # no effect if it is one already
    if lacks_ends:
        first, last = names[special.cls], names[special.sep]
        engine.post_processor = processors.TemplateProcessing(
            single=[first, "$A", last],
            pair=[first, "$A", last, "$B:1", f"{last}:1"],
            special_tokens=[(first, special.cls), (last, special.sep)],
        )
    return str(engine.to_str()).encode()


class FolderTokenizer(Tokenizer):
    """Tokenizer of a Hugging Face folder.

    Raises:
        BadInput: a damaged archive.
    """

    def __init__(self, model: bytes, source: str = "the tokenizer") -> None:
        """Unpack `model`, an archive that was read from `source`."""
        super().__init__(model, source)
        content = _unpacked(model, source)
        described = content.pop(VOCABULARY, b"")
        known = decode.decode_json(described, Vocabulary, f"{source}: {VOCABULARY}")
        self.files, self.names, self._known = content, known.names, known
        self.is_byte_level = known.is_byte_level
        self.vocab_size = len(known.names)
        self.special = known.special
        self.special_ids = self._ids_of_no_text()
        self._bytes, self.is_text_token = self._bytes_by_id()
        no_text = set(self.special_ids.values())
        self.written = [
            name if i in no_text else _shown(data)
            for i, (name, data) in enumerate(zip(self.names, self._bytes, strict=True))
        ]
        # Names of byte-level BPE are not readable; `written` shows their characters.
        self.tokens = self.written if known.is_byte_level else self.names
        if known.prefix:
            starts = [name.startswith(known.prefix) for name in self.names]
            self.continues_word = np.array(starts)
            self.continues_word[[*known.added]] = False
        else:
            self.has_partial_characters = known.is_byte_level or "<0x00>" in self.names

    def _ids_of_no_text(self) -> dict[str, int]:
        """Return special ids by name, with unused and other special tokens and unused ids."""
        ids = self.special.by_name()
        named = set(ids.values())
        for i, name in enumerate(self.names):
            is_special = not name or self._known.added.get(i) or _UNUSED.fullmatch(name)
            if is_special and i not in named:
                ids[f"other_{i}"] = i
        return ids

    def _bytes_by_id(self) -> tuple[list[bytes], np.ndarray]:
        """Return the bytes of each token, and whether it is ordinary text: bool [vocab_size]."""
        no_text, known = set(self.special_ids.values()), self._known
        written = []
        for i, name in enumerate(self.names):
            if i in no_text:
                data = _NO_TEXT.encode()
            elif i in known.added:
                data = name.encode()
            elif known.is_byte_level and all(character in _BYTE_OF for character in name):
                data = bytes(_BYTE_OF[character] for character in name)
            elif byte := BYTE.fullmatch(name):
                data = bytes([int(byte[1], 16)])
            else:
                data = name.removeprefix(known.prefix).encode("utf-8", "replace")
            written.append(data)
        is_text = np.array([_text_of(data) is not None for data in written])
        is_text[[*no_text]] = False
        return written, is_text

    @functools.cached_property
    def characters(self) -> np.ndarray:  # type: ignore[override]
        """Implement `Tokenizer.characters`: count those that begin in a token."""
        return np.array([int(_begins(data).sum()) for data in self._bytes], np.int32)

    @functools.cached_property
    def _encode(self) -> Callable[[list[str], bool], list[list[int]]]:
        """Load the encoder: (texts, whether to recognize special tokens in them) -> ids.

        Raises:
            BadInput: a package is not installed, or cannot read the files.
        """
        # Each worker has one core.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        with _loading(self.source):
            if DEFINITION not in self.files:
                return self._in_python()
            import tokenizers

            engine = tokenizers.Tokenizer.from_str(self.files[DEFINITION].decode())

        def encode(texts: list[str], has_special: bool) -> list[list[int]]:
            engine.encode_special_tokens = not has_special
            encoded = engine.encode_batch_fast(texts, add_special_tokens=False)
            return [each.ids for each in encoded]

        return encode

    def _in_python(self) -> Callable[[list[str], bool], list[list[int]]]:
        theirs, _ = _load(self.files, self.source)
        if hasattr(theirs, "subword_tokenizer"):  # words repeat, and splitting one is slow
            cut = theirs.subword_tokenizer.tokenize
            theirs.subword_tokenizer.tokenize = functools.lru_cache(1 << 18)(cut)
        vocabulary, unknown = theirs.get_vocab(), theirs.unk_token_id

        def encode(texts: list[str], has_special: bool) -> list[list[int]]:
            found = []
            for text in texts:
                plain = text.replace("\0", " ")  # MeCab stops at NUL
                tokens = theirs.tokenize(plain, split_special_tokens=not has_special)
                found.append([vocabulary.get(token, unknown) for token in tokens])
            return found

        return encode

    def encode_arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Implement `Tokenizer.encode_arrays`; the library chooses the number of threads."""
        check_encodable(texts)
        with _loading(self.source):  # encoding may fail, as without an unknown token
            result = [np.array(ids, np.int32) for ids in self._encode([*texts], False)]
        control, unknown = [getattr(self.special, part) for part in CORE], self.special.unk
        if unknown is not None:
            for ids in result:
                ids[np.isin(ids, control)] = unknown  # from a text that spells them
        return result

    def encode_with_masks(self, text: str) -> list[int]:
        """Implement `Tokenizer.encode_with_masks`."""
        check_encodable([text])
        return self._encode([text.replace(MASK, self.names[self.special.mask])], True)[0]

    def surface_and_offsets(self, text: str, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """Implement `Tokenizer.surface_and_offsets`, from the ids only.

        A token that begins within a character has the offset of the character.
        """
        parts = [self._bytes[i] for i in ids.tolist()]
        data = b"".join(parts)
        if not data:
            return "", np.zeros(len(ids), np.int64)
        numbers = np.cumsum(_begins(data), dtype=np.int64)
        surface = _text_of(data)
        if surface is None:  # bytes are missing
            surface = _NO_TEXT * int(numbers[-1])
        lengths = np.array([len(part) for part in parts], np.int64)
        starts = np.cumsum(lengths) - lengths
        ends = np.append(numbers, numbers[-1:])  # a last token may write nothing
        return surface, np.maximum(ends[starts] - 1, 0)


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _shown(data: bytes) -> str:
    """Return bytes as readable characters, "▁" for a space; incomplete ones as hex."""
    text = _text_of(data)
    if text is None:
        return "".join(f"<0x{byte:02X}>" for byte in data)
    return text.replace(" ", "▁")


def _begins(data: bytes) -> np.ndarray:
    """Return whether a byte begins a UTF-8 character: bool [bytes]."""
    return (np.frombuffer(data, np.uint8) & 0xC0) != 0x80


def _byte_alphabet() -> dict[str, int]:
    """Map each character of byte-level BPE to its byte (Radford et al. 2019, GPT-2's code).

    Printable ones stand for themselves, the others for 256 and on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    moved = {chr(256 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | moved


_BYTE_OF = _byte_alphabet()
