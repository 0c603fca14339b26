"""Documents out of one `.jsonl` or `.txt` file, also as `.gz` or `.zst`, in constant memory.

`.jsonl`: one object with a string `text` (or another field) per line; blank lines are skipped.
`.txt`: documents with a blank line between them, the line breaks inside one kept as "\\n"; or,
where it is said, each line is a document. Line breaks of both may be \\n, \\r\\n or \\r, mixed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import paths

SUFFIXES = tuple(kind + packed for kind in (".jsonl", ".txt") for packed in ("", ".gz", ".zst"))
TEXT_FIELD = "text"
BLANK_LINE, BY_LINE = "blank_line", "line"  # of --txt_documents

# A document is handled whole, so that one has to end; lines of ten megabytes are common enough.
MAX_DOCUMENT_BYTES = 64 << 20
_CHUNK = 1 << 20

_NEWLINE = rb"(?:\r\n|\r(?!\n)|\n)"
_WIDE_SPACE = "\u3000".encode()  # an ideographic space is white space, too
_BLANK = rb"(?:[ \t]|" + _WIDE_SPACE + rb")*"
_BLANK_BYTES = b" \t" + _WIDE_SPACE  # bytes of which no other character consists
_BLANK_LINES = re.compile(_NEWLINE + rb"(?:" + _BLANK + _NEWLINE + rb")+")
_BOM = b"\xef\xbb\xbf"


class _Line:
    """The line in which chunks of text end: where it starts, and how long it is so far."""

    start = _at = 0

    def add(self, chunk: bytes) -> int:
        """Its length after one more chunk."""
        if last := max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1:
            self.start = self._at + last
        self._at += len(chunk)
        return self._at - self.start


@dataclass(frozen=True)
class FileSource:
    """A file of documents; picklable."""

    path: str
    txt_documents: str = BLANK_LINE
    text_field: str = TEXT_FIELD  # of a .jsonl file

    @property
    def label(self) -> str:
        """What it is called in messages and manifests."""
        return self.path

    @property
    def is_text(self) -> bool:
        """Whether it is a .txt file, not a .jsonl one."""
        return self.path.removesuffix(".gz").removesuffix(".zst").endswith(".txt")

    @property
    def is_by_line(self) -> bool:
        """Whether each line is a document."""
        return not self.is_text or self.txt_documents == BY_LINE

    def texts(self) -> Iterator[str]:
        """The documents in order.

        Raises:
            BadInput: naming the file and the line.
        """
        for offset, record in self._records():
            yield self._text(offset, record)

    def digest(self) -> bytes:
        """SHA-256 of the bytes of the file, and of how they are read where that is not plain.

        A .txt file that could be a .jsonl one (it begins with "{") must not count as that. All
        others need no mark, so fingerprints of earlier versions stay valid. A line that is too long
        ends it: a file of terabytes that a copy left unfinished is not hashed to its end.
        """
        digest = hashlib.sha256()
        if self.is_text and self.txt_documents != BLANK_LINE:
            digest.update(f"txt_documents={self.txt_documents}\0".encode())
        elif self.is_text and self._begins_with(b"{"):
            digest.update(b"txt\0")
        elif not self.is_text and self.text_field != TEXT_FIELD:
            digest.update(f"text_field={self.text_field}\0".encode())
        line = _Line()
        with storage.open_read(self.path) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                if not self.path.endswith((".gz", ".zst")) and line.add(chunk) > MAX_DOCUMENT_BYTES:
                    self._refuse_long(line.start)
        return digest.digest()

    def lines_of_single_document(self) -> int:
        """Lines in the first megabyte, if there are several and no blank one among them; else 0."""
        with _open(self.path) as stream:
            head = next(_chunks(self.path, stream), b"")
        text = _trimmed(head)
        if _BLANK_LINES.search(text):
            return 0
        lines = len(re.findall(_NEWLINE, text)) + 1
        return lines if lines > 1 else 0

    def _begins_with(self, character: bytes) -> bool:
        with _open(self.path) as stream:
            for chunk in _chunks(self.path, stream):
                if chunk := chunk.removeprefix(_BOM).lstrip():
                    return chunk.startswith(character)
        return False

    def _records(self) -> Iterator[tuple[int, bytes]]:
        """Offset and bytes of each document, blank ones left out."""
        with _open(self.path) as stream:
            chunks = _chunks(self.path, stream)
            for offset, record in _lines(chunks) if self.is_by_line else _paragraphs(chunks):
                if len(record) > MAX_DOCUMENT_BYTES:
                    self._refuse_long(offset)
                if offset == 0 and record.startswith(_BOM):
                    record, offset = record[len(_BOM) :], len(_BOM)
                if record and not record.isspace():
                    yield offset, record

    def _refuse_long(self, offset: int) -> None:
        what = "line" if self.is_by_line else "document (blank lines separate them)"
        raise BadInput(
            f"{self.path} line {_line_of(self.path, offset)}: a {what} longer than"
            f" {MAX_DOCUMENT_BYTES >> 20} MB: split it"
        )

    def _text(self, offset: int, record: bytes) -> str:
        try:
            content = record.decode()
        except UnicodeDecodeError as error:
            line = _line_of(self.path, offset + error.start)
            raise BadInput(
                f"{self.path} line {line}: not UTF-8 (byte 0x{record[error.start]:02x}): convert"
                " the file"
            ) from error
        if self.is_text:
            return content.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
        try:
            return _text_of_json(content, self.text_field)
        except BadInput as error:
            raise BadInput(f"{self.path} line {_line_of(self.path, offset)}: {error}") from error


def check_readable(path: str) -> None:
    """Refuses what cannot be a source before anything is started.

    Raises:
        BadInput: missing, not a regular file, no permission, or it needs a library that is missing.
    """
    paths.check_input_file(path, "--input")
    try:
        with storage.open_read(path) as stream:
            stream.read(1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInput(f"no such file {path}: check --input") from error
    except PermissionError as error:
        raise BadInput(
            f"no permission to read {path}: check its mode or your credentials"
        ) from error
    if path.endswith(".zst"):
        _import_pyarrow(path)


def _open(path: str) -> IO[bytes]:
    stream = storage.open_read(path)
    if path.endswith(".zst"):
        return cast("IO[bytes]", _import_pyarrow(path).CompressedInputStream(stream, "zstd"))
    return cast("IO[bytes]", gzip.open(stream)) if path.endswith(".gz") else stream


def _import_pyarrow(path: str) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise BadInput(f"{path} needs pyarrow: pip install 'bigbird-ja[arrow]'") from error
    return pyarrow


def _chunks(path: str, stream: IO[bytes]) -> Iterator[bytes]:
    try:
        while chunk := stream.read(_CHUNK):
            yield chunk
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(
            f"{path}: damaged or truncated gzip file ({error}): fetch or write it again"
        ) from error
    except OSError as error:
        if not path.endswith(".zst") or error.errno is not None:  # the library's errors have none
            raise
        raise BadInput(
            f"{path}: damaged or truncated zstd file ({error}): fetch or write it again"
        ) from error


def _lines(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each line."""
    at = 0
    pending: list[bytes] = []
    size = 0
    for chunk in chunks:
        if b"\r" in chunk:  # \r\n makes a blank line more, and those do not count
            chunk = chunk.replace(b"\r", b"\n")
        *whole, rest = chunk.split(b"\n")
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


def _paragraphs(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each run of lines without a blank one.

    Each byte is looked at once, but for the white space at the end of a chunk: what comes next
    decides whether that is a blank line. White space at the end of the file stays with the last
    document.
    """
    at = 0  # where `pending` begins
    pending: list[bytes] = []  # of a document, without a blank line
    tail: list[bytes] = []  # white space that follows it
    ended: tuple[int, list[bytes]] | None = None  # the document before, and blank lines after it
    size = 0
    for chunk in chunks:
        tail.append(chunk)
        size += len(chunk)
        if size > MAX_DOCUMENT_BYTES + _CHUNK:
            break
        if not chunk.strip(_BLANK_BYTES):
            continue
        text = b"".join(tail)
        done = 0
        for blank in _BLANK_LINES.finditer(text):
            document = b"".join([*pending, text[done : blank.start()]])
            if document or ended is None:
                if ended:
                    yield ended[0], ended[1][0]
                ended = (at, [document, blank[0]])
            else:
                ended[1].append(blank[0][1:])  # its first line break ended what was there already
            done = blank.end()
            at += len(document) + done - blank.start()
            pending, size = [], len(text) - done
        keep = len(text.rstrip(b"\r\n" + _BLANK_BYTES))
        if ended and keep > done:
            yield ended[0], ended[1][0]
            ended = None
        elif done:  # the last line break stays: more blank lines may follow it
            done, at = done - 1, at - 1
        pending.append(text[done : max(done, keep)])
        tail = [text[max(done, keep) :]]
    rest = b"".join([*pending, *tail])
    if ended and rest in (b"\n", b"\r", b"\r\n"):
        yield ended[0], b"".join([*ended[1], rest[1:]])
        return
    if ended:
        yield ended[0], ended[1][0]
    yield at, rest


def _trimmed(text: bytes) -> bytes:
    """Text without the white space at both ends, and without a byte order mark."""
    text = text.removeprefix(_BOM).rstrip(b"\r\n" + _BLANK_BYTES)
    return text[re.match(_BLANK + rb"(?:[\r\n]" + _BLANK + rb")*", text).end() :]  # type: ignore[union-attr]


def _text_of_json(content: str, field: str) -> str:
    """The text of a line of a .jsonl file.

    Raises:
        BadInput: what is wrong with the line.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {getattr(error, 'msg', 'nested too deep')}") from error
    text = value.get(field) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise BadInput(
            f'no string `{field}`: each line must be an object such as {{"{field}": "..."}}'
            " (--text_field names another one)"
        )
    if "\\ud" in content or "\\uD" in content:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(
                f"a lone surrogate \\u{ord(text[error.start]):x} is no character: correct the line"
            ) from error
    return text


def _line_of(path: str, offset: int) -> int:
    """The line, from 1, of a byte; only for messages, so the file is read again."""
    line, last = 1, b""
    with _open(path) as stream:
        while offset > 0 and (chunk := stream.read(min(_CHUNK, offset))):
            offset -= len(chunk)
            line += chunk.count(b"\n") + chunk.count(b"\r") - chunk.count(b"\r\n")
            line -= last == b"\r" and chunk[:1] == b"\n"
            last = chunk[-1:]
    return line
