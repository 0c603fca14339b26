"""Tokenizers of Hugging Face folders, stored with the data set. The ids equal transformers' ids.

`huggingface.tokenizer` loads a folder with transformers. The result is stored as one zip archive,
DATA_DIR/tokenizer.model:

- `vocabulary.json`: facts about the tokens, for training, previews and masks. A machine that trains
  reads only this file, so it needs no package of Hugging Face.
- `tokenizer.json`: the definition built by the tokenizer's class. The library `tokenizers` encodes
  with it. That library starts in a tenth of the time of transformers. A tokenizer in Python
  (`BertJapaneseTokenizer`) has its own files instead, and transformers encodes with them.
- `tokenizer_config.json`, which names a tokenizer class. In transformers 4 and 5 this class reads
  `tokenizer.json` unchanged, for a model of any type. `export` writes these files.

If a text spells out a special token (`</s>`), these characters are encoded as ordinary text, as by
SentencePiece. transformers itself would encode them as the special token.
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

import numpy as np

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.process.classify import summarize_error
from bigbird_ja.process.extras import require
from bigbird_ja.storage import decode
from bigbird_ja.storage.disk import create_scratch_directory
from bigbird_ja.text.markers import MASK
from bigbird_ja.text.tokenizer import CORE, SpecialIds, Tokenizer, check_encodable

FIRST_BYTES = b"PK\x03\x04"  # Signature of a zip archive.
VOCABULARY = "vocabulary.json"
DEFINITION, CONFIG = "tokenizer.json", "tokenizer_config.json"

MAX_BYTES = 256 << 20  # Maximum size of each file.

_ADVICE = "give a whole folder, or install the version of transformers that wrote it"
_UNUSED = re.compile(r"[\[<|]*unused[_ ]?[0-9]+[\]>|]*")
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_NO_TEXT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Vocabulary:
    """Facts about the tokens of a tokenizer."""

    names: list[str]  # Token of each id in the tokenizer's spelling, "" for an unused id.
    special: SpecialIds
    added: dict[int, bool]  # Ids of added tokens, and whether each is special.
    prefix: str  # Prefix of tokens that continue a word, or "".
    is_byte_level: bool  # Whether names are in the alphabet of byte-level BPE.


def pack(content: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of files, uncompressed and with a fixed date."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name)  # Its default date is always the same, in 1980.
            entry.create_system = 3  # Unix, so that the bytes are equal on every system.
            archive.writestr(entry, content[name])
    return buffer.getvalue()


def _unpack(data: bytes, source: str) -> dict[str, bytes]:
    """Return the files of an archive that `pack` made.

    Raises:
        BadInput: The archive is damaged.
    """
    kind = "a whole archive of a tokenizer"
    with (
        decode.convert_errors(source, kind, "restore it from a copy"),
        zipfile.ZipFile(io.BytesIO(data)) as archive,
    ):
        if sum(entry.file_size for entry in archive.infolist()) > 2 * MAX_BYTES:
            raise BadInput(
                f"{source} unpacks to more than {2 * MAX_BYTES:,} bytes, too many for a tokenizer."
                " The file is probably damaged: restore it from a copy"
            )
        return {storage.check_inside(name): archive.read(name) for name in archive.namelist()}


@contextlib.contextmanager
def convert_load_errors(source: str) -> Iterator[None]:
    """Context manager: convert errors of `transformers`, and missing packages, to BadInput."""
    try:
        with decode.convert_errors(source, "a tokenizer that transformers can load", _ADVICE):
            yield
    except ImportError as error:
        advice = "pip install 'bigbird-ja[huggingface,words]', or install the package that it names"
        raise BadInput(f"{source}: {summarize_error(error)}. Run {advice}") from error


def load(content: Mapping[str, bytes], source: str) -> tuple[Any, dict[str, Any]]:
    """Load a tokenizer with transformers, and return it with its parsed tokenizer_config.json."""
    require("transformers")
    import transformers

    transformers.logging.set_verbosity_error()
    config = json.loads(content.get(CONFIG, b"{}"))
    if (config.get("mecab_kwargs") or {}).get("mecab_option"):
        raise BadInput(
            f"{source}/{CONFIG}: mecab_option is refused, as it can write files. Remove it"
        )
    only = {"local_files_only": True, "trust_remote_code": False}
    with create_scratch_directory() as folder:
        for name, data in content.items():
            storage.write_bytes(os.path.join(folder, name), data)
        return transformers.AutoTokenizer.from_pretrained(folder, **only), config


class FolderTokenizer(Tokenizer):
    """Tokenizer of a Hugging Face folder, whose files are stored in one zip archive.

    Raises:
        BadInput: The archive is damaged.
    """

    def __init__(self, model: bytes, source: str = "the tokenizer") -> None:
        """Unpack `model`, an archive that was read from `source`."""
        super().__init__(model, source)
        content = _unpack(model, source)
        described = content.pop(VOCABULARY, b"")
        known = decode.decode_json(described, Vocabulary, f"{source}: {VOCABULARY}")
        self.files, self.names, self._known = content, known.names, known
        self.is_byte_level = known.is_byte_level
        self.vocab_size = len(known.names)
        self.special = known.special
        self.special_ids = self._find_ids_without_text()
        self._bytes, self.is_text_token = self._find_bytes_by_id()
        no_text = set(self.special_ids.values())
        self.written = [
            name if i in no_text else _format_bytes(data)
            for i, (name, data) in enumerate(zip(self.names, self._bytes, strict=True))
        ]
        # Names of byte-level BPE are not readable, so `written` replaces them.
        self.tokens = self.written if known.is_byte_level else self.names
        if known.prefix:
            starts = [name.startswith(known.prefix) for name in self.names]
            self.continues_word = np.array(starts)
            self.continues_word[[*known.added]] = False
        else:
            self.has_partial_characters = known.is_byte_level or "<0x00>" in self.names

    def _find_ids_without_text(self) -> dict[str, int]:
        """Return, by name, the ids of special tokens, unused tokens, and ids without a token."""
        ids = self.special.to_dict()
        named = set(ids.values())
        for i, name in enumerate(self.names):
            is_special = not name or self._known.added.get(i) or _UNUSED.fullmatch(name)
            if is_special and i not in named:
                ids[f"other_{i}"] = i
        return ids

    def _find_bytes_by_id(self) -> tuple[list[bytes], np.ndarray]:
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
        is_text = np.array([_decode_text(data) is not None for data in written])
        is_text[[*no_text]] = False
        return written, is_text

    @functools.cached_property
    def characters(self) -> np.ndarray:  # type: ignore[override]
        """Implement `Tokenizer.characters`.

        A character counts for the token that contains its first byte.
        """
        return np.array([int(_mark_beginnings(data).sum()) for data in self._bytes], np.int32)

    @functools.cached_property
    def _encode(self) -> Callable[[list[str], bool], list[list[int]]]:
        """Function that encodes texts.

        Its second argument is whether special tokens in the texts are recognized.

        Raises:
            BadInput: A package is not installed, or cannot read the files.
        """
        # One thread, as each worker process has one core.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        with convert_load_errors(self.source):
            if DEFINITION not in self.files:
                return self._load_python_encoder()
            import tokenizers

            engine = tokenizers.Tokenizer.from_str(self.files[DEFINITION].decode())

        def encode(texts: list[str], has_special: bool) -> list[list[int]]:
            engine.encode_special_tokens = not has_special
            encoded = engine.encode_batch_fast(texts, add_special_tokens=False)
            return [each.ids for each in encoded]

        return encode

    def _load_python_encoder(self) -> Callable[[list[str], bool], list[list[int]]]:
        theirs, _ = load(self.files, self.source)
        if hasattr(theirs, "subword_tokenizer"):  # Splitting a word is slow, so cache its tokens.
            cut = theirs.subword_tokenizer.tokenize
            theirs.subword_tokenizer.tokenize = functools.lru_cache(1 << 18)(cut)
        vocabulary, unknown = theirs.get_vocab(), theirs.unk_token_id

        def encode(texts: list[str], has_special: bool) -> list[list[int]]:
            found = []
            for text in texts:
                plain = text.replace("\0", " ")  # MeCab stops at NUL.
                tokens = theirs.tokenize(plain, split_special_tokens=not has_special)
                found.append([vocabulary.get(token, unknown) for token in tokens])
            return found

        return encode

    def encode_arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Implement `Tokenizer.encode_arrays`."""
        check_encodable(texts)
        # A tokenizer without an unknown token may fail for a character that it does not know.
        with convert_load_errors(self.source):
            result = [np.array(ids, np.int32) for ids in self._encode([*texts], False)]
        control, unknown = [getattr(self.special, part) for part in CORE], self.special.unk
        if unknown is not None:
            for ids in result:
                ids[np.isin(ids, control)] = unknown  # The text spells out a special token.
        return result

    def encode_with_masks(self, text: str) -> list[int]:
        """Implement `Tokenizer.encode_with_masks`."""
        check_encodable([text])
        return self._encode([text.replace(MASK, self.names[self.special.mask])], True)[0]

    def spell_with_offsets(self, text: str, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """Implement `Tokenizer.spell_with_offsets`, from the ids only.

        A token that begins within a character has the offset of the character.
        """
        parts = [self._bytes[i] for i in ids.tolist()]
        data = b"".join(parts)
        if not data:
            return "", np.zeros(len(ids), np.int64)
        numbers = np.cumsum(_mark_beginnings(data), dtype=np.int64)
        surface = _decode_text(data)
        if surface is None:  # The bytes are not valid UTF-8.
            surface = _NO_TEXT * int(numbers[-1])
        lengths = np.array([len(part) for part in parts], np.int64)
        starts = np.cumsum(lengths) - lengths
        # The start of a last token without bytes is len(data), so `ends` needs one more entry.
        ends = np.append(numbers, numbers[-1:])
        return surface, np.maximum(ends[starts] - 1, 0)


def _decode_text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _format_bytes(data: bytes) -> str:
    """Format bytes as text, with "▁" for a space and hex for incomplete characters."""
    text = _decode_text(data)
    if text is None:
        return "".join(f"<0x{byte:02X}>" for byte in data)
    return text.replace(" ", "▁")


def _mark_beginnings(data: bytes) -> np.ndarray:
    """Mark the bytes that begin a UTF-8 character: bool [bytes]."""
    return (np.frombuffer(data, np.uint8) & 0xC0) != 0x80


def _make_byte_alphabet() -> dict[str, int]:
    """Map each character of byte-level BPE to its byte (Radford et al. 2019, GPT-2's code).

    A printable byte is represented by its own code point. The other bytes are represented by the
    code points from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    moved = {chr(256 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | moved


_BYTE_OF = _make_byte_alphabet()
