"""Encode by the tokenizer of a Hugging Face folder as it is: its ids, its special pieces.

Text is encoded by the `tokenizers` library, which needs nothing of transformers. What needs pieces
and ids, but encodes nothing, works without it.

One thing differs from transformers: a special piece that a text spells out (`</s>`) is
ordinary text, as it is to SentencePiece.
"""

import functools
import json
import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode
from bigbird_ja.text import MASK, model_proto
from bigbird_ja.text.folder_files import DEFINITION, FolderFiles
from bigbird_ja.text.tokenizer import CORE, SpecialIds, Tokenizer, check_encodable

_UNUSED = re.compile(r"[\[<|]*unused[_ ]?[0-9]+[\]>|]*")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_NO_TEXT = "\N{REPLACEMENT CHARACTER}"


class FolderTokenizer(Tokenizer):
    """The tokenizer of one Hugging Face folder.

    Raises:
        BadInput: a file of it is damaged, or it lacks a special piece that training needs.
    """

    def __init__(self, model: bytes, source: str = "the tokenizer") -> None:
        """Unpack `model`, what `FolderFiles.pack` made; `source` is where it was read from."""
        super().__init__(model, source)
        self.folder = FolderFiles.unpack(model, source)
        self.files = self.folder.content
        self._definition = self.folder.definition
        self._added = self.folder.added()
        self._names = self._names_by_id()
        self.vocab_size = len(self._names)
        self.special = self._special_ids()
        self.special_ids = self._ids_of_no_text()
        self._bytes, self.is_text_piece = self._bytes_by_id()
        self.written = self._shown_by_id()
        # Of byte-level BPE the characters, where they are whole.
        self.pieces = self.written if self._has_byte_level else self._names
        prefix = self._definition.model.continuing_subword_prefix
        if prefix:
            self.continues_word = np.array(
                [name.startswith(prefix) and name not in self._added for name in self._names]
            )
        else:
            self.has_partial_characters = self._has_byte_level or "<0x00>" in self._names

    def _names_by_id(self) -> list[str]:
        """Return the piece of each id as the folder names it; empty for an id that none has."""
        vocabulary = self._definition.model.vocab
        if isinstance(vocabulary, list):
            vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
        ids = vocabulary | {content: each.id for content, each in self._added.items()}
        names = {i: name for name, i in ids.items()}
        return [names.get(i, "") for i in range(max(names, default=-1) + 1)]

    def _special_ids(self) -> SpecialIds:
        """Find the pieces that play the parts: as the folder states them, else by usual names.

        A sequence begins and ends with the pieces that the tokenizer itself adds to a text, where
        it adds any.
        """
        stated = self.folder.parts()
        known = {piece: i for i, piece in enumerate(self._names)}
        ids: dict[str, int | None] = {}
        for usual, (part, others) in model_proto.PARTS.items():
            names = [stated[part]] if part in stated else [usual, *others]
            ids[part.removesuffix("_token")] = next((known[n] for n in names if n in known), None)
        pairs = (("cls", "bos"), ("sep", "eos"))
        for (part, other), end in zip(pairs, self.folder.ends(), strict=True):
            if end is not None and not (0 <= end < len(self._names) and self._names[end]):
                raise BadInput(
                    f"{self.folder.path(DEFINITION)}: its post_processor adds id {end} to a"
                    " text, and no piece has it: give a whole file"
                )
            ids[part] = next((i for i in (end, ids[part], ids[other]) if i is not None), None)
        lacking = [f"{part}_token" for part in CORE if ids[part] is None]
        if lacking:
            raise BadInput(
                f"{self.source}: its vocabulary has no piece for {', '.join(lacking)}: name them in"
                " tokenizer_config.json, or use the tokenizer of a masked language model"
            )
        if len({ids[part] for part in CORE}) < len(CORE):
            shown = ", ".join(f"{part} {ids[part]}" for part in CORE)
            raise BadInput(f"{self.source}: one piece plays two parts ({shown}): use another one")
        return SpecialIds(**ids)  # type: ignore[arg-type]  # the four that must be are there

    @functools.cached_property
    def _has_byte_level(self) -> bool:
        shapes = json.dumps([self._definition.pre_tokenizer, self._definition.decoder])
        return '"ByteLevel"' in shapes

    def _bytes_by_id(self) -> tuple[list[bytes], np.ndarray]:
        """Return what each piece writes, and bool [vocab_size]: that it is ordinary text."""
        no_text = set(self.special_ids.values())
        prefix = self._definition.model.continuing_subword_prefix or ""
        written = []
        for i, name in enumerate(self._names):
            if i in no_text:
                data = _NO_TEXT.encode()
            elif name in self._added:
                data = name.encode()
            elif self._has_byte_level and all(character in _BYTE_OF for character in name):
                data = bytes(_BYTE_OF[character] for character in name)
            elif byte := _BYTE.fullmatch(name):
                data = bytes([int(byte[1], 16)])
            else:
                data = name.removeprefix(prefix).encode("utf-8", "replace")
            written.append(data)
        is_text = np.array([_text_of(data) is not None for data in written])
        is_text[[*no_text]] = False
        return written, is_text

    def _ids_of_no_text(self) -> dict[str, int]:
        """Name special ids: also unused ones, other special pieces, and ids without a piece."""
        ids = self.special.by_name()
        named = set(ids.values())
        for i, name in enumerate(self._names):
            added = self._added.get(name)
            is_special = added is not None and added.special
            if (not name or is_special or _UNUSED.fullmatch(name)) and i not in named:
                ids[f"other_{i}"] = i
        return ids

    def _shown_by_id(self) -> list[str]:
        """Return what each piece writes; of a special piece its name."""
        special = set(self.special_ids.values())
        return [
            name if i in special else _shown(data)
            for i, (name, data) in enumerate(zip(self._names, self._bytes, strict=True))
        ]

    @functools.cached_property
    def characters(self) -> np.ndarray:  # type: ignore[override]
        """Implement `Tokenizer.characters`: those that begin in a piece."""
        return np.array([int(_begins(data).sum()) for data in self._bytes], np.int32)

    @functools.cached_property
    def _engine(self) -> Any:
        """Build the `tokenizers.Tokenizer`.

        Raises:
            BadInput: the library is not installed, or cannot read the file.
        """
        try:
            import tokenizers
        except ImportError as error:
            raise BadInput(
                f"{self.source}: its tokenizer.json needs the package tokenizers: pip install"
                " 'bigbird-ja[huggingface]'"
            ) from error
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each worker has one core
        with self._reading():
            engine = tokenizers.Tokenizer.from_str(self.folder.definition_json.decode("utf-8"))
            self._add_to(engine, tokenizers.AddedToken)
            engine.no_truncation()
            engine.no_padding()
        return engine

    def _reading(self) -> AbstractContextManager[None]:
        return decode.made_by_others(
            self.folder.path(DEFINITION),
            "a tokenizer that the installed version of the package tokenizers can use",
            "give a whole file, or install a later version",
        )

    def _add_to(self, engine: Any, kind: Any) -> None:
        """Adds what other files of the folder add; transformers does so, too."""
        known = {each.content for each in self._definition.added_tokens}
        for each in sorted(self._added.values(), key=lambda each: each.id):
            if each.content not in known:
                if self.folder.is_mecab and each.id not in self.special_ids.values():
                    raise BadInput(
                        f"{self.source}: {each.content!r} is a piece beside MeCab's words: use a"
                        " tokenizer without such pieces"
                    )
                properties = {k: v for k, v in vars(each).items() if k not in ("id", "content")}
                engine.add_tokens([kind(each.content, **properties)])
            if engine.token_to_id(each.content) != each.id:
                raise BadInput(
                    f"{self.source}: {each.content!r} has another id in {DEFINITION} than in the"
                    " other files: let transformers write the folder again"
                )

    def encode_arrays(self, texts: Sequence[str], num_threads: int = 1) -> list[np.ndarray]:
        """Implement `Tokenizer.encode_arrays`; the library chooses the number of threads."""
        check_encodable(texts)
        self._engine.encode_special_tokens = True  # special pieces in a text are ordinary text
        prepared = [self.folder.prepared(text) for text in texts]
        with self._reading():  # it may lack its own unknown piece, say
            encoded = self._engine.encode_batch_fast(prepared, add_special_tokens=False)
        result = [np.array(each.ids, np.int32) for each in encoded]
        control, unknown = [getattr(self.special, part) for part in CORE], self.special.unk
        if unknown is not None:
            for ids in result:
                ids[np.isin(ids, control)] = unknown  # made of a text that spells them
        return result

    def encode_with_masks(self, text: str) -> list[int]:
        """Implement `Tokenizer.encode_with_masks`."""
        check_encodable([text])
        self._engine.encode_special_tokens = False
        mask = self._names[self.special.mask]
        self._engine.add_special_tokens([mask])  # does nothing where it is one
        joined = mask.join(self.folder.prepared(part) for part in text.split(MASK))
        ids: list[int] = self._engine.encode(joined, add_special_tokens=False).ids
        return ids

    def surface_and_offsets(self, text: str, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """Implement `Tokenizer.surface_and_offsets`, of the ids alone.

        A token that begins within a character starts where that does.
        """
        parts = [self._bytes[i] for i in ids.tolist()]
        data = b"".join(parts)
        if not data:
            return "", np.zeros(len(ids), np.int64)
        numbers = np.cumsum(_begins(data), dtype=np.int64)
        surface = _text_of(data)
        if surface is None:  # a piece for some byte is missing: no character is known
            surface = _NO_TEXT * int(numbers[-1])
        lengths = np.array([len(part) for part in parts], np.int64)
        starts = np.cumsum(lengths) - lengths
        ends = np.append(numbers, numbers[-1:])  # a last piece may write nothing
        return surface, np.maximum(ends[starts] - 1, 0)


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _shown(data: bytes) -> str:
    """Show bytes as people read them: characters, "▁" for a space; bytes where not whole."""
    text = _text_of(data)
    if text is None:
        return "".join(f"<0x{byte:02X}>" for byte in data)
    return text.replace(" ", "▁")


def _begins(data: bytes) -> np.ndarray:
    """Tell where characters of UTF-8 begin: bool [bytes]."""
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
