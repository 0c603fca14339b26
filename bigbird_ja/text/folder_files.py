"""Read the files of a Hugging Face folder's tokenizer, and keep them as one.

The files travel as one: `pack` puts them into a zip archive whose bytes follow from the files'
content alone, and that is DATA_DIR/tokenizer.model.

tohoku-nlp's kind (`BertJapaneseTokenizer`: MeCab's words, then WordPiece) has no tokenizer.json;
one is made of its `vocab.txt`, for text whose words MeCab has set apart by spaces.
"""

from __future__ import annotations

import functools
import io
import json
import unicodedata
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode
from bigbird_ja.text import model_proto, words

FIRST_BYTES = b"PK\x03\x04"  # of a zip archive
DEFINITION = "tokenizer.json"
_CONFIG, _PARTS = model_proto.PART_FILES
_VOCABULARY, _ADDED = "vocab.txt", "added_tokens.json"
_OF_MODELS = (_VOCABULARY, "vocab.json", "merges.txt", *model_proto.MODEL_NAMES)
_NAMES = (DEFINITION, _CONFIG, _PARTS, _ADDED, *_OF_MODELS)
_MOST_BYTES = 256 << 20  # of all files together
MECAB_CLASS = "BertJapaneseTokenizer"
_DICTIONARIES = ("unidic_lite", "unidic", "ipadic")  # packages

T = TypeVar("T")
_Id = Annotated[int, Meta(ge=0, lt=10_000_000)]


@dataclass(frozen=True)
class Added:
    """A piece beside the model's vocabulary, or one of it that has a part to play."""

    id: _Id
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = True


@dataclass(frozen=True)
class _Model:
    vocab: dict[str, _Id] | list[tuple[str, float]]
    type: str = ""
    continuing_subword_prefix: str | None = None


@dataclass(frozen=True)
class Definition:
    """The part of tokenizer.json that is read."""

    model: _Model
    added_tokens: list[Added] = field(default_factory=list)
    pre_tokenizer: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Mecab:
    """`mecab_kwargs` of tokenizer_config.json."""

    mecab_dic: str | None = "unidic_lite"
    mecab_option: str | None = None
    normalize_text: bool = True


@dataclass(frozen=True)
class _Japanese:
    """tokenizer_config.json of a `BertJapaneseTokenizer`."""

    word_tokenizer_type: str = "basic"
    subword_tokenizer_type: str = "wordpiece"
    do_lower_case: bool = False
    mecab_kwargs: _Mecab | None = None


class FolderFiles:
    """The tokenizer's files of one folder: name -> content."""

    def __init__(self, content: Mapping[str, bytes], source: str) -> None:
        """Take files by name; `source` is where they lie, for messages."""
        self.content = content
        self.source = source
        self.config: dict[str, Any] = self._decoded(_CONFIG, dict[str, Any])
        self.is_mecab = self.config.get("tokenizer_class") == MECAB_CLASS and _VOCABULARY in content

    @classmethod
    def read(cls, folder: str) -> FolderFiles | None:
        """Read a folder's files; None without a tokenizer.json and without MeCab with WordPiece.

        Raises:
            BadInput: tokenizer_config.json is damaged.
        """
        content = {}
        for name in _NAMES:
            path = storage.join(folder, name)
            if storage.exists(path):
                content[name] = storage.read_bytes(path, _MOST_BYTES)
        files = cls(content, folder)
        return files if files.is_mecab or DEFINITION in content else None

    def pack(self) -> bytes:
        """Write one zip archive, stored, with the same date always."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in sorted(self.content):
                entry = zipfile.ZipInfo(name)  # of 1980
                entry.create_system = 3  # as on Unix, wherever this runs
                archive.writestr(entry, self.content[name])
        return buffer.getvalue()

    @classmethod
    def unpack(cls, data: bytes, source: str) -> FolderFiles:
        """Read what `pack` made.

        Raises:
            BadInput: it is damaged.
        """
        with (
            decode.made_by_others(
                source, "a whole archive of a tokenizer", "restore it from a copy"
            ),
            zipfile.ZipFile(io.BytesIO(data)) as archive,
        ):
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > _MOST_BYTES:
                raise BadInput(f"{source}: holds more than {_MOST_BYTES:,} bytes: no tokenizer")
            content = {e.filename: archive.read(e) for e in entries if e.filename in _NAMES}
        return cls(content, source)

    def path(self, name: str) -> str:
        """Return the path of one of them, for messages."""
        return storage.join(self.source, name)

    def _decoded(self, name: str, kind: type[T]) -> T:
        """Decode the object in one of them; an empty one where there is none."""
        return decode.decode_json(self.content.get(name, b"{}"), kind, self.path(name))

    @functools.cached_property
    def definition_json(self) -> bytes:
        """Return tokenizer.json, as it is or made of vocab.txt."""
        return _mecab_definition(self) if self.is_mecab else self.content.get(DEFINITION, b"")

    @functools.cached_property
    def definition(self) -> Definition:
        """Decode what is needed of `definition_json`."""
        return decode.decode_json(self.definition_json, Definition, self.path(DEFINITION))

    def added(self) -> dict[str, Added]:
        """Collect the pieces beside the model's vocabulary, by content."""
        every = [Added(i, content) for content, i in self._decoded(_ADDED, dict[str, _Id]).items()]
        where = self.path(_CONFIG)
        listed = self.config.get("added_tokens_decoder", {})
        for i, properties in decode.convert(listed, dict[str, dict[str, Any]], where).items():
            every.append(decode.convert({**properties, "id": i}, Added, where, strict=False))
        every += self.definition.added_tokens
        return {each.content: each for each in every}

    def parts(self) -> dict[str, str]:
        """Collect the pieces that are stated to play a part; see `foreign.stated_parts`."""
        return model_proto.stated_parts([self.config, self._decoded(_PARTS, dict[str, Any])])

    def ends(self) -> tuple[int | None, int | None]:
        """Return the ids that tokenizer.json's own template puts before and after a text.

        Returns:
            The two ids; None for a side where it puts nothing.

        Raises:
            BadInput: it puts several pieces on one side, or the template is damaged.
        """
        where = self.path(DEFINITION)
        before, after = _template(self.definition.post_processor or {}, where)
        if len(before) > 1 or len(after) > 1:
            raise BadInput(
                f"{where}: its post_processor puts {len(before)} pieces before a text and"
                f" {len(after)} after it: use a tokenizer that puts one on each side"
            )
        return next(iter(before), None), next(iter(after), None)

    def prepared(self, text: str) -> str:
        """Prepare a text for the definition: MeCab's words, if it has these, are set apart."""
        return self._words_apart(text) if self.is_mecab else text

    @functools.cached_property
    def _words_apart(self) -> Callable[[str], str]:
        """Put spaces between MeCab's words, as tokenizer_config.json states.

        Raises:
            BadInput: it states other words, or another way than WordPiece to cut them.
        """
        where = self.path(_CONFIG)
        japanese = decode.convert(self.config, _Japanese, where)
        kinds = (japanese.word_tokenizer_type, japanese.subword_tokenizer_type)
        mecab = japanese.mecab_kwargs or _Mecab()
        if kinds != ("mecab", "wordpiece"):
            raise BadInput(
                f"{where}: words by {kinds[0]}, pieces by {kinds[1]}: only mecab with wordpiece can"
                " be used"
            )
        if mecab.mecab_dic not in _DICTIONARIES or mecab.mecab_option:
            raise BadInput(
                f"{where}: mecab_dic={mecab.mecab_dic}, mecab_option={mecab.mecab_option}: only the"
                f" dictionaries {', '.join(_DICTIONARIES)} without options can be used"
            )
        parse = words.mecab_parser(mecab.mecab_dic, f"{self.source}: its words")

        def words_apart(text: str) -> str:
            plain = text.replace("\0", " ")  # ends a text for MeCab
            if mecab.normalize_text:
                plain = unicodedata.normalize("NFKC", plain)
            apart = " ".join(parse(plain).split())
            return apart.lower() if japanese.do_lower_case else apart

        return words_apart


def _template(processor: Mapping[str, Any], where: str) -> tuple[list[int], list[int]]:
    """Return the ids that a post_processor puts before and after a single text."""
    before: list[int] = []
    after: list[int] = []
    with decode.made_by_others(where, "a tokenizer with a post_processor", "give a whole file"):
        for each in processor.get("processors", ()):  # of a Sequence
            outer, inner = _template(each, where), (before, after)
            before, after = outer[0] + inner[0], inner[1] + outer[1]
        if "cls" in processor:  # BERT's and RoBERTa's
            return [int(processor["cls"][1])], [int(processor["sep"][1])]
        side = before
        for part in processor.get("single", ()):
            if "Sequence" in part:
                side = after
            else:
                name = part["SpecialToken"]["id"]
                side += map(int, processor["special_tokens"][name]["ids"])
    return before, after


def _mecab_definition(files: FolderFiles) -> bytes:
    """Make a tokenizer.json of `vocab.txt`, whose n-th line has id n, for words that are apart."""
    path = files.path(_VOCABULARY)
    unknown = model_proto.stated_parts([{"unk_token": "[UNK]"}, files.config])["unk_token"]
    with decode.made_by_others(path, f"pieces in UTF-8, {unknown} among them", "give a whole file"):
        text = files.content[_VOCABULARY].decode("utf-8")
        lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        vocabulary = {piece: i for i, piece in enumerate(lines)}
        lines.index(unknown)  # raises where it is missing
    definition = {
        "version": "1.0",
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }
    return json.dumps(definition, ensure_ascii=False).encode()
