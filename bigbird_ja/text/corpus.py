"""A corpus: documents from files, globs, buckets and TFDS, streamed in a fixed order.

    corpus = open_corpus(["tfds:wiki40b/ja:train", "more/*.jsonl.gz", "gs://bucket/x.txt"])
    for document in corpus.documents(): ...

Document n is the same at every reading. `parts` cuts the corpus into runs of documents that worker
processes read on their own.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.text import file_source, tfds_source
from bigbird_ja.text.file_source import FilePiece
from bigbird_ja.text.tfds_source import TfdsPiece

Piece = FilePiece | TfdsPiece


@dataclass(frozen=True)
class Document:
    """One document; `index` counts from 0 over the whole corpus."""

    text: str
    source: str
    index: int


@dataclass(frozen=True)
class Part:
    """A run of documents, picklable: what one worker process reads."""

    pieces: tuple[Piece, ...]
    first_index: int
    num_documents: int

    def documents(self) -> Iterator[Document]:
        """The documents with their indices in the whole corpus.

        Raises:
            BadInput: what a file holds is not what it should be; names file and line.
        """
        return _documents(self.pieces, self.first_index)


class Corpus:
    """Documents in a fixed order; made by `open_corpus`."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = tuple(pieces)

    def documents(self) -> Iterator[Document]:
        """All documents, streamed."""
        return _documents(self._pieces, 0)

    @property
    def sources(self) -> list[str]:
        """What is read, in order: paths, and `tfds:NAME:SPLIT`."""
        return [_name_of(piece) for piece in self._pieces]

    @functools.cached_property
    def size_bytes(self) -> int:
        """Stored bytes (compressed ones for .gz): an estimate of the work, for progress lines."""
        return sum(
            storage.size(piece.path)
            if isinstance(piece, FilePiece)
            else tfds_source.size_bytes(piece)
            for piece in self._pieces
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex sha256 of the content in its order, wherever the files lie.

        Files count by all their bytes; a TFDS split by its version and its shards' names, lengths
        and size.
        """
        digest = hashlib.sha256()
        for piece in self._pieces:
            if isinstance(piece, FilePiece):
                digest.update(_file_digest(piece.path))
            else:
                digest.update(tfds_source.fingerprint(piece).encode())
        return digest.hexdigest()

    def parts(self, num_parts: int) -> list[Part]:
        """Cuts the corpus into at most `num_parts` runs of documents, of like size in bytes.

        Joined in order they are the corpus, for any number of parts. Files are read once to find
        where documents start (without decoding them); a part of a .gz file has to be
        decompressed from its beginning, so large ones are better split into several files.
        """
        atoms = [atom for piece in self._pieces for atom in _atoms(piece, num_parts)]
        return _group([atom for atom in atoms if atom.num_documents], num_parts)


@dataclass(frozen=True)
class _Atom:
    """The smallest run of documents that can be read on its own."""

    piece: Piece
    num_documents: int
    num_bytes: int


def open_corpus(sources: Sequence[str], tfds_data_dir: str | None = None) -> Corpus:
    """Opens sources of the forms in the module's docstring; the first document is read as a check.

    Raises:
        BadInput: no source, a missing or unreadable one, one given twice, or no text in any.
    """
    if not sources:
        raise BadInput("no --input: give a corpus, such as --input=corpus.jsonl")
    pieces: list[Piece] = []
    for source in sources:
        if source.startswith(tfds_source.PREFIX):
            pieces += tfds_source.open_source(source, tfds_data_dir)
        else:
            pieces += [FilePiece(path) for path in _paths(source)]
    names = [_name_of(piece) for piece in pieces]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"--input names {name} more than once: its text would count twice")
    corpus = Corpus(pieces)
    if not any(map(_has_text, pieces)):
        raise BadInput(f"no text in {', '.join(sources)}: the corpus is empty")
    return corpus


def _has_text(piece: Piece) -> bool:
    """Whether there is any text; reads files up to their first.

    A TFDS split is only asked for its size: a process that leaves TensorFlow's iterator over a
    bucket half read may hang when it exits.
    """
    if isinstance(piece, FilePiece):
        return any(text.strip() for text in piece.texts())
    return piece.num_documents > 0


def _paths(source: str) -> list[str]:
    if not any(c in source for c in "*?["):
        file_source.check_readable(source)
        return [source]
    if not storage.is_remote(source) and storage.exists(source):
        file_source.check_readable(source)  # a file whose name holds [ or *
        return [source]
    paths = storage.glob(source)
    if not paths:
        raise BadInput(f"no file matches {source}: check --input")
    for path in paths:
        file_source.check_readable(path)
    return paths


def _documents(pieces: Sequence[Piece], index: int) -> Iterator[Document]:
    for piece in pieces:
        name = _name_of(piece)
        for text in piece.texts():
            yield Document(text, name, index)
            index += 1


def _name_of(piece: Piece) -> str:
    if isinstance(piece, FilePiece):
        return piece.path
    return f"{tfds_source.PREFIX}{piece.name}:{piece.split}"


def _file_digest(path: str) -> bytes:
    digest = hashlib.sha256()
    with storage.open_read(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.digest()


def _atoms(piece: Piece, num_parts: int) -> list[_Atom]:
    if isinstance(piece, FilePiece):
        marks = file_source.scan(piece.path)
        ends = [*marks.offsets[1:], marks.num_bytes]
        counts = [*marks.indices[1:], marks.num_documents]
        return [
            _Atom(FilePiece(piece.path, start, end), count - before, end - start)
            for start, end, before, count in zip(
                marks.offsets, ends, marks.indices, counts, strict=True
            )
        ]
    pieces = max(1, min(num_parts * 4, piece.num_documents))
    evens = [TfdsPiece(piece.name, piece.data_dir, piece.split, i, pieces) for i in range(pieces)]
    size = tfds_source.size_bytes(piece) // pieces
    return [_Atom(even, even.num_documents, size) for even in evens]


def _group(atoms: Sequence[_Atom], num_parts: int) -> list[Part]:
    total = sum(atom.num_bytes for atom in atoms)
    groups: list[list[_Atom]] = [[] for _ in range(max(1, num_parts))]
    before = 0
    for atom in atoms:
        middle = before + atom.num_bytes / 2
        groups[min(len(groups) - 1, int(middle * len(groups) / max(1, total)))].append(atom)
        before += atom.num_bytes
    parts = []
    first_index = 0
    for group in groups:
        if group:
            count = sum(atom.num_documents for atom in group)
            parts.append(Part(_merge([atom.piece for atom in group]), first_index, count))
            first_index += count
    return parts


def _merge(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Neighbouring ranges of one file as one."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if (
            isinstance(piece, FilePiece)
            and isinstance(last, FilePiece)
            and (last.path, last.end) == (piece.path, piece.start)
        ):
            merged[-1] = FilePiece(piece.path, last.start, piece.end)
        else:
            merged.append(piece)
    return tuple(merged)
