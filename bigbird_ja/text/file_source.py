"""Documents out of one `.jsonl[.gz]` or `.txt[.gz]` file, on disk or gs://, in constant memory.

`.jsonl`: one object with a string `text` per line; blank lines are skipped. `.txt`: documents with
a blank line between them; the line breaks inside one are kept as "\\n". Line breaks of both may be
\\n, \\r\\n or \\r, mixed.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, cast

from bigbird_ja import storage
from bigbird_ja.errors import BadInput

SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz")

# A document is handled whole, so that one has to end; lines of ten megabytes are common enough.
MAX_DOCUMENT_BYTES = 64 << 20
_BLOCK = 1 << 20
_MAX_MARKS = 8192

_NEWLINE = rb"(?:\r\n|\r(?!\n)|\n)"
_BLANK = rb"(?:[ \t]|\xe3\x80\x80)*"  # an ideographic space is white space, too
_BLANK_LINES = re.compile(_NEWLINE + rb"(?:" + _BLANK + _NEWLINE + rb")+")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class FilePiece:
    """The documents of a file that start in [start, end) of its uncompressed bytes."""

    path: str
    start: int = 0
    end: int | None = None

    def texts(self) -> Iterator[str]:
        """The documents in order.

        Raises:
            BadInput: naming the file and the line.
        """
        for offset, record in _records(self.path, self.start):
            if self.end is not None and offset >= self.end:
                return
            yield _text_of(self.path, offset, record)


@dataclass(frozen=True)
class Marks:
    """Where documents start, every so often: enough to cut a file into parts of like size."""

    offsets: tuple[int, ...]  # uncompressed bytes
    indices: tuple[int, ...]  # documents before each offset
    num_documents: int
    num_bytes: int  # uncompressed, up to the end of the last document


def scan(path: str) -> Marks:
    """Reads a file once without decoding it, to know where its documents start."""
    marks: list[tuple[int, int]] = []
    spacing = 1 << 14
    index = last = 0
    for offset, record in _records(path, 0):
        if not marks or offset >= marks[-1][0] + spacing:
            marks.append((offset, index))
            if len(marks) > _MAX_MARKS:
                marks = marks[::2]
                spacing *= 2
        last = offset + len(record)
        index += 1
    offsets, indices = zip(*marks, strict=True) if marks else ((), ())
    return Marks(offsets, indices, index, last)


def check_readable(path: str) -> None:
    """Refuses what cannot be a source before anything is started.

    Raises:
        BadInput: missing, a directory, no permission, or a name that says no known format.
    """
    try:
        with storage.open_read(path) as stream:
            stream.read(1)
    except IsADirectoryError as error:
        raise BadInput(
            f"{path} is a directory: give its files, such as '{path}/*.jsonl'"
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInput(f"no such file {path}: check --input") from error
    except PermissionError as error:
        raise BadInput(
            f"no permission to read {path}: check its mode or your credentials"
        ) from error
    if not path.endswith(SUFFIXES):
        raise BadInput(f"{path}: the name must end in {', '.join(SUFFIXES)}, to say what it holds")


def _records(path: str, start: int) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each document from the one at `start` on, blank ones left out."""
    is_lines = path.removesuffix(".gz").endswith(".jsonl")
    with _open(path) as stream:
        blocks = _blocks(path, stream, start)
        records = _lines(blocks, start) if is_lines else _paragraphs(blocks, start)
        for offset, record in records:
            if record and not record.isspace():
                if len(record) > MAX_DOCUMENT_BYTES:
                    _refuse_long(path, offset, is_lines)
                yield offset, record


def _open(path: str) -> IO[bytes]:
    stream = storage.open_read(path)
    return cast("IO[bytes]", gzip.open(stream)) if path.endswith(".gz") else stream


def _blocks(path: str, stream: IO[bytes], start: int) -> Iterator[bytes]:
    try:
        if start:
            stream.seek(start)  # of a gzip stream: reads up to there
        while block := stream.read(_BLOCK):
            yield block
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(
            f"{path}: damaged or truncated gzip file ({error}): fetch or write it again"
        ) from error


def _lines(blocks: Iterator[bytes], at: int) -> Iterator[tuple[int, bytes]]:
    pending: list[bytes] = []
    size = 0
    for block in blocks:
        if b"\r" in block:  # no line break can stand inside JSON, so each one ends a line
            block = block.replace(b"\r", b"\n")
        *whole, rest = block.split(b"\n")
        for line in whole:
            if pending:
                line = b"".join([*pending, line])
                pending = []
            yield at, line
            at += len(line) + 1
        pending.append(rest)
        size = len(rest) if whole else size + len(rest)
        if size > MAX_DOCUMENT_BYTES:
            break
    yield at, b"".join(pending)


def _paragraphs(blocks: Iterator[bytes], at: int) -> Iterator[tuple[int, bytes]]:
    buffer = b""
    for block in blocks:
        searched = len(buffer.rstrip())  # a blank line may go on in the next block
        buffer += block
        done = 0
        for blank in _BLANK_LINES.finditer(buffer, searched):
            if blank.end() == len(buffer):
                break
            yield at + done, buffer[done : blank.start()]
            done = blank.end()
        buffer, at = buffer[done:], at + done
        if len(buffer) > MAX_DOCUMENT_BYTES:
            break
    yield at, buffer


def _refuse_long(path: str, offset: int, is_lines: bool) -> None:
    what = "line" if is_lines else "document (blank lines separate them)"
    raise BadInput(
        f"{path} line {_line_of(path, offset)}: a {what} longer than {MAX_DOCUMENT_BYTES >> 20} MB:"
        " split it"
    )


def _text_of(path: str, offset: int, record: bytes) -> str:
    if offset == 0 and record.startswith(_BOM):
        record, offset = record[len(_BOM) :], len(_BOM)
    try:
        content = record.decode()
    except UnicodeDecodeError as error:
        line = _line_of(path, offset + error.start)
        raise BadInput(
            f"{path} line {line}: not UTF-8 (byte 0x{record[error.start]:02x}): convert the file"
        ) from error
    if not path.removesuffix(".gz").endswith(".jsonl"):
        return content.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        what = getattr(error, "msg", "nested too deep")
        raise BadInput(f"{path} line {_line_of(path, offset)}: not JSON: {what}") from error
    text = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise BadInput(
            f"{path} line {_line_of(path, offset)}: no string `text`: each line must be an object"
            ' such as {"text": "..."}'
        )
    if "\\ud" in content or "\\uD" in content:
        _refuse_surrogates(path, offset, text)
    return text


def _refuse_surrogates(path: str, offset: int, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{path} line {_line_of(path, offset)}: a lone surrogate"
            f" \\u{ord(text[error.start]):x} is no character: correct the line"
        ) from error


def _line_of(path: str, offset: int) -> int:
    """The line, from 1, of a byte; only for messages, so the file is read again."""
    line, last = 1, b""
    with _open(path) as stream:
        while offset > 0 and (block := stream.read(min(_BLOCK, offset))):
            offset -= len(block)
            line += block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")
            line -= last == b"\r" and block[:1] == b"\n"
            last = block[-1:]
    return line
