"""Documents out of one `.jsonl` or `.txt` file, also as `.gz` or `.zst`, in constant memory.

`.jsonl`: one object with a string `text` (or another field) per line; blank lines are skipped.
`.txt`: documents with a blank line between them, the line breaks inside one kept as "\\n"; or,
with `txt_documents=line`, each line is a document. Line breaks may be \\n, \\r\\n or \\r, mixed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
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

# A document is held in memory whole, so its length is bounded; lines of ten megabytes do occur.
MAX_DOCUMENT_BYTES = 64 << 20
_CHUNK = 1 << 20
_WHITE = " \t\u3000"  # an ideographic space is white space, too


@dataclass(frozen=True)
class FileSource:
    """A file of documents; picklable."""

    path: str
    txt_documents: str = BLANK_LINE
    text_field: str = TEXT_FIELD  # of a .jsonl file

    @property
    def label(self) -> str:
        """Its name in messages and manifests."""
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
        records = _lines(self.path) if self.is_by_line else _paragraphs(self.path)
        for line, record in records:
            if not record or record.isspace():
                continue
            if self.is_text:
                yield record
                continue
            try:
                yield _text_of_json(record, self.text_field)
            except BadInput as error:
                raise BadInput(f"{self.path} line {line}: {error}") from error

    def digest(self) -> bytes:
        """SHA-256 of how the file is read and of its bytes."""
        how = f"txt={self.txt_documents}" if self.is_text else f"jsonl={self.text_field}"
        digest = hashlib.sha256(f"{how}\0".encode())
        with storage.open_read(self.path) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        return digest.digest()

    def lines_of_single_document(self) -> int:
        """Lines in the first megabyte, if there are several and no blank one among them; else 0."""
        count = size = 0
        ended = False
        for _, line in _lines(self.path):
            size += len(line.encode())
            if size > _CHUNK:
                break
            if not line.strip(_WHITE):
                ended = count > 0
            elif ended:
                return 0  # text after a blank line
            else:
                count += 1
        return count if count > 1 else 0


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


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of each line, without its line break.

    Raises:
        BadInput: not UTF-8, too long a line, or a damaged compressed file.
    """
    # Bytes that are not UTF-8 become lone surrogates, so that their line is known.
    with (
        _open(path) as stream,
        io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape") as text,
    ):
        number = 0
        while line := _read_line(path, text):
            number += 1
            try:
                is_long = len(line) > MAX_DOCUMENT_BYTES or len(line.encode()) > MAX_DOCUMENT_BYTES
            except UnicodeEncodeError as error:
                byte = ord(line[error.start]) - 0xDC00
                raise BadInput(
                    f"{path} line {number}: not UTF-8 (byte 0x{byte:02x}): convert the file"
                ) from error
            if is_long:
                _refuse_long(path, number, "line")
            yield number, line.removesuffix("\n")


def _read_line(path: str, text: io.TextIOWrapper) -> str:
    try:
        return text.readline(MAX_DOCUMENT_BYTES + 2)
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


def _paragraphs(path: str) -> Iterator[tuple[int, str]]:
    """First line and text of each run of lines without a blank one."""
    pending: list[str] = []
    first = size = 0
    for number, line in _lines(path):
        if line.strip(_WHITE):
            if not pending:
                first, size = number, 0
            pending.append(line)
            size += len(line.encode()) + 1
            if size > MAX_DOCUMENT_BYTES:
                _refuse_long(path, first, "document (blank lines separate them)")
        elif pending:
            yield first, "\n".join(pending)
            pending = []
    if pending:
        yield first, "\n".join(pending)


def _refuse_long(path: str, line: int, what: str) -> None:
    limit = MAX_DOCUMENT_BYTES >> 20
    raise BadInput(f"{path} line {line}: a {what} longer than {limit} MB: split it")


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
