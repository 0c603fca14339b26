r"""Documents of one file of lines or of rows, in constant memory.

`.jsonl`: one object with a string `text` (or another field) per line; blank lines are skipped.
`.txt`: by `txt_documents` a document is the whole file, a run of lines up to a blank line, or a
line; line breaks inside one are kept as "\\n". Line breaks may be \\n, \\r\\n or \\r, mixed.
`.csv`, `.tsv`: a column that the first row names, quoted as in RFC 4180.
These also as `.gz` or `.zst`, and all files in a `.zip`.

`.parquet`, `.arrow`, `.feather`, and data sets that Hugging Face's `datasets` saved on disk: a
column of text, read by pyarrow (extra `arrow`), one group of rows at a time.

A record without text is an empty document, which `make-data` counts and leaves out.
"""

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import log
from bigbird_ja.text import containers

_OTHERS_ENCODINGS = ("euc_jp", "cp932")  # EUC-JP can nearly always be decoded as CP932, too
TEXT_FIELD = "text"
# Values of --txt_documents.
AUTO, BY_FILE, BLANK_LINE, BY_LINE = "auto", "file", "blank_line", "line"

# A document is held in memory whole, so its length is bounded; lines of ten megabytes do occur.
MAX_DOCUMENT_BYTES = 64 << 20
_CHUNK = 1 << 20
_WHITE = " \t\u3000"  # an ideographic space is white space, too
# A larger .txt file is taken for more than one document: the longest novels have 5 MB.
_MAX_BOOK_BYTES = 8 << 20


@dataclass(frozen=True)
class FileSource:
    """File of documents; picklable."""

    path: str
    txt_documents: str = BLANK_LINE  # for a .txt file
    text_field: str = TEXT_FIELD  # for other files

    @property
    def label(self) -> str:
        """Return its name in messages and manifests."""
        return self.path

    @property
    def is_text(self) -> bool:
        """Return whether it is a .txt file."""
        return containers.kind_of(self.path) == ".txt"

    @property
    def _comma(self) -> str:
        return containers.SEPARATORS.get(containers.kind_of(self.path), "")

    def texts(self) -> Iterator[str]:
        """Yield the documents in order.

        Raises:
            BadInput: invalid content; the message names file, and line or column.
        """
        if self.path.endswith(containers.ARROW_SUFFIXES):
            for row, text in enumerate(containers.read_rows(self.path, self.text_field), 1):
                if 4 * len(text) > MAX_DOCUMENT_BYTES < len(text.encode()):
                    _refuse_long(self.path, row, "row")
                yield text
            return
        if comma := self._comma:
            yield from _cells(self.path, self.text_field, comma)
            return
        is_by_line = not self.is_text or self.txt_documents == BY_LINE
        is_whole = self.txt_documents == BY_FILE
        for line, record in _lines(self.path) if is_by_line else _runs(self.path, is_whole):
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
        """Return the SHA-256 of the file's bytes and the way in which they are read."""
        kind = f"table{self._comma}" if self._comma else "jsonl"
        kind = "column" if self.path.endswith(containers.ARROW_SUFFIXES) else kind
        how = f"{kind}={self.text_field}"
        how = f"txt={self.txt_documents}" if self.is_text else how
        digest = hashlib.sha256(f"{how}\0".encode())
        with containers.open_stored(self.path) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        return digest.digest()


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line, without its line break.

    Raises:
        BadInput: invalid UTF-8, a line that is too long, or a damaged compressed file.
    """
    # Bytes that are not UTF-8 become lone surrogates, so that the message can name the line.
    with (
        containers.open_unpacked(path) as stream,
        io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape") as text,
    ):
        number = 0
        while line := text.readline(MAX_DOCUMENT_BYTES + 2):
            number += 1
            try:
                is_long = len(line) > MAX_DOCUMENT_BYTES or len(line.encode()) > MAX_DOCUMENT_BYTES
            except UnicodeEncodeError as error:
                byte = ord(line[error.start]) - 0xDC00
                raise BadInput(
                    f"{path} line {number}: not UTF-8 (byte 0x{byte:02x}): {_conversion(line)}"
                ) from error
            if is_long:
                _refuse_long(path, number, "line")
            yield number, line.removesuffix("\n")


def _conversion(line: str) -> str:
    """Return advice on converting a file, by a line of it that is not UTF-8."""
    data = line.encode("utf-8", "surrogateescape")
    looks = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
    for encoding in () if looks else _OTHERS_ENCODINGS:
        with contextlib.suppress(UnicodeDecodeError):
            data.decode(encoding)
            looks = looks or encoding
    if not looks:
        return "convert the file to UTF-8"
    name = looks.upper().replace("_", "-")
    return f"it looks like {name}: iconv -f {name} -t UTF-8 FILE > NEW_FILE"


def _runs(path: str, is_whole: bool) -> Iterator[tuple[int, str]]:
    """Yield first line and text of each run of non-blank lines, or of the whole file."""
    pending: list[str] = []
    first = size = 0
    for number, line in _lines(path):
        if line.strip(_WHITE) or (is_whole and pending):
            if not pending:
                first, size = number, 0
            pending.append(line)
            size += len(line.encode()) + 1
            if size > MAX_DOCUMENT_BYTES:
                _refuse_long(path, first, "document (see --txt_documents)")
        elif pending:
            yield first, "\n".join(pending)
            pending = []
    if pending:
        yield first, "\n".join(pending).rstrip("\n")


def _refuse_long(path: str, line: int, what: str) -> None:
    limit = MAX_DOCUMENT_BYTES >> 20
    raise BadInput(f"{path} line {line}: a {what} longer than {limit} MB: split it")


def _text_of_json(content: str, field: str) -> str:
    """Return the text of a line of a .jsonl file; "" for null, as in a column.

    Raises:
        BadInput: the problem of the line.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", "nested too deep")
        raise BadInput(f"not JSON ({why}): {_instead(None, field)}") from error
    text = value.get(field, False) if isinstance(value, dict) else False
    if text is None:
        return ""
    if not isinstance(text, str):
        raise BadInput(f"no string `{field}`: {_instead(value, field)}")
    if "\\ud" in content or "\\uD" in content:
        from bigbird_ja.text.tokenizer import check_encodable

        check_encodable([text])
    return text


def _instead(value: Any, field: str) -> str:
    """Return a description of a .jsonl line without text, and advice."""
    if not isinstance(value, dict):
        return f'each line must be an object such as {{"{field}": "..."}}'
    if field not in value:
        names = ", ".join(list(value)[:20]) or "none"
        return f"fields are {names}: name one with --text_field"
    return "it is no text: correct the line, or name another field with --text_field"


def _cells(path: str, field: str, comma: str) -> Iterator[str]:
    """Yield the texts of a column of a CSV or TSV file.

    Raises:
        BadInput: no such column, a row of another length, or an unterminated quote.
    """
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    rows = csv.reader((f"{line}\n" for _, line in _lines(path)), delimiter=comma, strict=True)
    header = next(rows, [field])  # of an empty file
    containers.check_column(path, header, field)
    column = header.index(field)
    try:
        for row in rows:
            if row and len(row) != len(header):
                raise csv.Error(f"{len(row)} columns, not {len(header)}")
            yield row[column].removesuffix("\n") if row else ""
    except csv.Error as error:
        raise BadInput(f"{path} line {rows.line_num}: {error}: correct its quotes") from error


def open_files(source: str, txt_documents: str, text_field: str) -> tuple[FileSource, ...]:
    """Open the files that a source names: one file, a folder's, or those of a pattern.

    Raises:
        BadInput: no file, an unreadable one, or a suffix that does not state a format.
    """
    files = [FileSource(path, txt_documents, text_field) for path in _paths(source)]
    texts = [file.path for file in files if file.is_text]
    if txt_documents != AUTO or not texts:
        return tuple(files)
    if len(texts) > 1 and all(containers.size_of(path) <= _MAX_BOOK_BYTES for path in texts):
        taken, what = BY_FILE, f"each of {len(texts):,} .txt files is a document"
    else:
        taken, what = BLANK_LINE, "a blank line ends a document"
    log(f"{source}: {what} (--txt_documents {taken})")
    return tuple(dataclasses.replace(file, txt_documents=taken) for file in files)


def _paths(source: str) -> list[str]:
    is_remote = storage.is_remote(source)
    if source.endswith("/") if is_remote else os.path.isdir(source):
        files = _files_of_folder(source.rstrip("/"))
    elif (not is_remote and storage.exists(source)) or not any(c in source for c in "*?["):
        files = [source]  # or a file with [ or * in its name
    else:
        files = storage.glob(source)
        if not files:
            raise BadInput(f"no file matches {source}: check --input")
    for path in files:
        storage.open_read(path).close()  # before anything is started
    return [member for path in files for member in containers.members(path)]


def _files_of_folder(folder: str) -> list[str]:
    """List a folder's files by name; for a `datasets` folder with splits those of `train`."""
    names = storage.list_tree(folder)
    if "dataset_dict.json" in names:
        folder = storage.join(folder, "train")
        names = storage.list_tree(folder)
    # `datasets` caches results as cache-*.arrow next to the data.
    names = [n for n in names if n.endswith(containers.SUFFIXES) and not n.startswith("cache-")]
    if not names:
        raise BadInput(
            f"--input {folder}: a folder without files of {', '.join(containers.SUFFIXES)}"
        )
    return [storage.join(folder, name) for name in names]
