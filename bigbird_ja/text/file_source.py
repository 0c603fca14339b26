r"""Documents of one file of lines or rows, in constant memory.

- `.jsonl`: one object with a string `text` (or another field) per line. Blank lines are skipped.
- `.txt`: depending on `txt_documents`, a document is the whole file, a run of lines up to a blank
  line, or a line. Line breaks are \n, \r\n or \r, and become \n.
- `.csv`, `.tsv`: a column that the first row names, quoted as in RFC 4180.
- `.parquet`, `.arrow`, `.feather`, and data sets that Hugging Face's `datasets` saved on disk: a
  column of text, read by pyarrow (extra `arrow`), one group of rows at a time.

`.jsonl`, `.txt`, `.csv` and `.tsv` files may be compressed (`.gz`, `.zst`). A `.zip` archive may
contain files of all these formats. Suffixes may be in capitals. A record without text is an empty
document, which `make-data` counts and skips.
"""

import codecs
import contextlib
import csv
import dataclasses
import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import log
from bigbird_ja.text import containers

# EUC-JP is tried first, because nearly every text in EUC-JP can also be decoded as CP932.
_OTHERS_ENCODINGS = ("euc_jp", "cp932")
TEXT_FIELDS = ("text",)
UTF_8 = "utf-8"
# Values of `txt_documents`.
AUTO, BY_FILE, BLANK_LINE, BY_LINE = "auto", "file", "blank_line", "line"

# Maximum size of a document, in bytes. The limit is needed because a whole document is read into
# memory. Real files contain lines of ten megabytes.
MAX_DOCUMENT_BYTES = 64 << 20
_CHUNK = 1 << 20
_WHITE = " \t\u3000"
# With `txt_documents` auto, each of several .txt files is one document if no file is larger than
# this size. The longest novels have 5 MB.
_MAX_BOOK_BYTES = 8 << 20
# A column is rejected if this many cells at its start contain only numbers.
_ROWS_OF_NUMBERS = 10


@dataclass(frozen=True)
class FileSource:
    """Picklable path of a file of documents, with the settings to read the file."""

    path: str
    txt_documents: str = BLANK_LINE
    text_fields: tuple[str, ...] = TEXT_FIELDS
    encoding: str = UTF_8

    @property
    def label(self) -> str:
        """Name of the source in messages and manifests."""
        return self.path

    @property
    def is_text(self) -> bool:
        """Whether the file is a .txt file."""
        return containers.find_suffix(self.path) == ".txt"

    @property
    def _comma(self) -> str:
        return containers.SEPARATORS.get(containers.find_suffix(self.path), "")

    @property
    def is_column(self) -> bool:
        """Whether the file is a Parquet or Arrow file."""
        return containers.has_suffix(self.path, containers.ARROW_SUFFIXES)

    def texts(self) -> Iterator[str]:
        """Yield the documents in order.

        Raises:
            BadInput: The file contains invalid text. The message names file, and line or column.
        """
        if self.is_column:
            for row, text in enumerate(containers.read_rows(self.path, self.text_fields), 1):
                if 4 * len(text) > MAX_DOCUMENT_BYTES < len(text.encode()):
                    _refuse_long(self.path, row, "row")
                yield text
            return
        if comma := self._comma:
            yield from self._read_cells(comma)
            return
        is_by_line = not self.is_text or self.txt_documents == BY_LINE
        for line, record in self._read_lines() if is_by_line else self._read_runs():
            if not record or record.isspace():
                continue
            if self.is_text:
                yield record
                continue
            try:
                yield _parse_json_line(record, self.text_fields)
            except BadInput as error:
                raise BadInput(f"{self.path} line {line}: {error}") from error

    def digest(self) -> bytes:
        """Return the SHA-256 of the file's bytes and of the settings by which they are read."""
        kind = f"table{self._comma}" if self._comma else "jsonl"
        kind = "column" if self.is_column else kind
        how = f"{kind}={','.join(self.text_fields)}"
        how = f"txt={self.txt_documents}" if self.is_text else how
        if self.encoding != UTF_8 and not self.is_column:
            how += f" {self.encoding}"
        digest = hashlib.sha256(f"{how}\0".encode())
        with containers.open_stored(self.path) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        return digest.digest()

    def _read_lines(self) -> Iterator[tuple[int, str]]:
        """Yield number (from 1) and text of each line, without its line break.

        Raises:
            BadInput: A line is not in `encoding` or is too long, or the compressed file is damaged.
        """
        # Invalid bytes become lone surrogates, so that the message can name the line.
        encoding = "utf-8-sig" if self.encoding == UTF_8 else self.encoding
        with (
            containers.open_unpacked(self.path) as stream,
            io.TextIOWrapper(stream, encoding, errors="surrogateescape") as text,
        ):
            number = 0
            while line := text.readline(MAX_DOCUMENT_BYTES + 2):
                number += 1
                try:
                    size = len(line) if len(line) > MAX_DOCUMENT_BYTES else len(line.encode())
                except UnicodeEncodeError as error:
                    byte = ord(line[error.start]) - 0xDC00
                    raise BadInput(
                        f"{self.path} line {number}: not {self.encoding.upper()} (byte"
                        f" 0x{byte:02x}). {_advise_conversion(line, self.encoding)}"
                    ) from error
                if size > MAX_DOCUMENT_BYTES:
                    _refuse_long(self.path, number, "line")
                yield number, line.removesuffix("\n")

    def _read_runs(self) -> Iterator[tuple[int, str]]:
        """Yield the number of the first line, and the text, of each run of non-blank lines.

        If a document is the whole file, blank lines do not end a run.
        """
        is_whole = self.txt_documents == BY_FILE
        pending: list[str] = []
        first = size = 0
        for number, line in self._read_lines():
            if line.strip(_WHITE) or (is_whole and pending):
                if not pending:
                    first, size = number, 0
                pending.append(line)
                size += len(line.encode()) + 1
                if size > MAX_DOCUMENT_BYTES:
                    _refuse_long(self.path, first, "document (see `txt_documents`)")
            elif pending:
                yield first, "\n".join(pending)
                pending = []
        if pending:
            yield first, "\n".join(pending).rstrip("\n")

    def _read_cells(self, comma: str) -> Iterator[str]:
        """Yield the texts of a column of a CSV or TSV file.

        Raises:
            BadInput: The column is missing or contains numbers, a row has more or fewer cells than
                the header, or a quote is unterminated.
        """
        csv.field_size_limit(MAX_DOCUMENT_BYTES)
        lines = (f"{line}\n" for _, line in self._read_lines())
        rows = csv.reader(lines, delimiter=comma, strict=True)
        header = next(rows, [self.text_fields[0]])  # The default is for an empty file.
        field = containers.find_column(self.path, header, self.text_fields)
        column = header.index(field)

        def texts() -> Iterator[str]:
            for row in rows:
                if row and len(row) != len(header):
                    raise csv.Error(f"{len(row)} columns, but the header has {len(header)}")
                yield row[column].removesuffix("\n") if row else ""

        try:
            first = list(itertools.islice(texts(), _ROWS_OF_NUMBERS))
            if any(first) and all(text.strip().isdecimal() for text in first if text):
                raise BadInput(
                    f"{self.path}: column {field} contains numbers, not text. Name another column"
                    f" with `text_fields`{containers.HEADER_ADVICE}"
                )
            yield from first
            yield from texts()
        except csv.Error as error:
            where = f"{self.path} line {rows.line_num}"
            raise BadInput(f"{where}: {error}. Correct the line or its quotes") from error


def _advise_conversion(line: str, encoding: str) -> str:
    """Return advice on the encoding of a file, guessed from a line that cannot be decoded."""
    if encoding != UTF_8:
        return "Give the encoding of these files as `encoding`"
    data = line.encode("utf-8", "surrogateescape")
    looks = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
    for other in () if looks else _OTHERS_ENCODINGS:
        with contextlib.suppress(UnicodeDecodeError):
            data.decode(other)
            looks = looks or other
    if not looks:
        return "Convert the file to UTF-8, or name its `encoding`"
    return f"It looks like {looks}: give that as `encoding`"


def check_encoding(encoding: str) -> str:
    """Return Python's canonical name of a text encoding.

    Raises:
        BadInput: Python has no such encoding.
    """
    with contextlib.suppress(LookupError, UnicodeError):
        "".encode(encoding)  # Raises LookupError for a bytes-to-bytes codec, such as zlib.
        return codecs.lookup(encoding).name
    raise BadInput(
        f"`encoding` {encoding!r}: Python has no such encoding. Give a name such as cp932"
    )


def _refuse_long(path: str, line: int, what: str) -> None:
    limit = MAX_DOCUMENT_BYTES >> 20
    raise BadInput(f"{path} line {line}: this {what} is longer than {limit} MB. Split it")


def _parse_json_line(content: str, fields: Sequence[str]) -> str:
    """Return the text field of a line of a .jsonl file, or "" if the field is null.

    Raises:
        BadInput: The line is invalid. The message does not name file and line.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", "nested too deep")
        raise BadInput(f"not JSON ({why}): {_advise_form(fields)}") from error
    if not isinstance(value, dict):
        raise BadInput(f"not an object: {_advise_form(fields)}")
    field = next((name for name in fields if name in value), None)
    if field is None:
        names = ", ".join(list(value)[:20]) or "none"
        raise BadInput(f"no field {' or '.join(fields)}. {containers.add_field(names)}")
    text = value[field]
    if text is None:
        return ""
    if not isinstance(text, str):
        kind = _JSON_KINDS[type(text)]
        raise BadInput(
            f"field {field} contains {kind}, not a string: correct the line, or name another field"
            " with `text_fields`"
        )
    if "\\ud" in content or "\\uD" in content:
        from bigbird_ja.text.tokenizer import check_encodable

        check_encodable([text])
    return text


_JSON_KINDS = {
    bool: "a truth value",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def _advise_form(fields: Sequence[str]) -> str:
    """Return advice on the form of a .jsonl line."""
    return f'each line must be an object such as {{"{fields[0]}": "..."}}'


def open_files(
    source: str, txt_documents: str, text_fields: Sequence[str], encoding: str
) -> tuple[FileSource, ...]:
    """Open the files of a source, which is the path of a file or folder, or a glob pattern.

    Raises:
        BadInput: There is no file, or a file is unreadable or has an unknown suffix.
    """
    about = (txt_documents, tuple(text_fields), encoding)
    files = [FileSource(path, *about) for path in _find_paths(source)]
    texts = [file.path for file in files if file.is_text]
    if txt_documents != AUTO or not texts:
        return tuple(files)
    if len(texts) > 1 and all(containers.get_size(path) <= _MAX_BOOK_BYTES for path in texts):
        taken, what = BY_FILE, f"each of {len(texts):,} .txt files is a document"
    else:
        taken, what = BLANK_LINE, "a blank line ends a document"
    log(f"{source}: {what} (`txt_documents` {taken})")
    return tuple(dataclasses.replace(file, txt_documents=taken) for file in files)


def _find_paths(source: str) -> list[str]:
    is_remote = storage.is_remote(source)
    if source.endswith("/") if is_remote else os.path.isdir(source):
        files = _list_folder(source.rstrip("/"))
    elif (not is_remote and storage.exists(source)) or not any(c in source for c in "*?["):
        files = [source]  # The name of a file may contain [ or *.
    else:
        files = storage.glob(source)
        if not files:
            raise BadInput(f"no file matches {source}: check `inputs`")
    for path in files:
        storage.open_read(path).close()  # An unreadable file raises here, before any work.
    return [member for path in files for member in containers.list_members(path)]


def _list_folder(folder: str) -> list[str]:
    """List the files of text in a folder, sorted by name.

    If `datasets` saved several splits in the folder, list only the files of the split `train`.
    """
    names = storage.list_tree(folder)
    if "dataset_dict.json" in names:
        folder = storage.join(folder, "train")
        names = storage.list_tree(folder)
    # `datasets` caches results as cache-*.arrow next to the data, and describes the data in JSON.
    is_set = {"state.json", "dataset_info.json"} <= {*names}
    texts = [
        name
        for name in names
        if containers.has_suffix(name) and not (is_set and name.startswith("cache-"))
    ]
    if not texts:
        raise BadInput(
            f"`inputs` {folder}: the folder contains no file whose name ends in"
            f" {', '.join(containers.SUFFIXES)}"
        )
    if not is_set and (left_out := sorted({*names} - {*texts})):
        log(
            f"{folder}: {len(left_out):,} of {len(names):,} files are ignored, such as"
            f" {left_out[0]} (their names do not end in a suffix of text)"
        )
    return [storage.join(folder, name) for name in texts]
