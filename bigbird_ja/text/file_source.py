r"""Read documents out of one file of lines or of rows, in constant memory.

`.jsonl`: one object with a string `text` (or another field) per line; blank lines are skipped.
`.txt`: by `txt_documents` a document is the whole file, or what stands between blank lines, or a
line; line breaks inside one are kept as "\\n". Line breaks may be \\n, \\r\\n or \\r, mixed.
Both also as `.gz` or `.zst`.

`.parquet`, `.arrow`, `.feather`, and data sets that Hugging Face's `datasets` saved on disk: a
column of text, read by pyarrow (extra `arrow`), one group of rows at a time.

A record without text is an empty document: `make-data` counts and leaves it out.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

from bigbird_ja import storage
from bigbird_ja.process.console import log, shortened
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import paths

ARROW_SUFFIXES = (".parquet", ".arrow", ".feather")
SUFFIXES = (
    *(kind + packed for kind in (".jsonl", ".txt") for packed in ("", ".gz", ".zst")),
    *ARROW_SUFFIXES,
)
TEXT_FIELD = "text"
# Of --txt_documents.
AUTO, BY_FILE, BLANK_LINE, BY_LINE = TXT_DOCUMENTS = ("auto", "file", "blank_line", "line")

# A document is held in memory whole, so its length is bounded; lines of ten megabytes do occur.
MAX_DOCUMENT_BYTES = 64 << 20
_CHUNK = 1 << 20
_WHITE = " \t\u3000"  # an ideographic space is white space, too
_ROWS = 256
# A larger .txt file holds more than one document: the longest novels have 5 MB.
_LONGEST_BOOK = 8 << 20


@dataclass(frozen=True)
class FileSource:
    """A file of documents; picklable."""

    path: str
    txt_documents: str = BLANK_LINE  # of a .txt file
    text_field: str = TEXT_FIELD  # of other files

    @property
    def label(self) -> str:
        """Return its name in messages and manifests."""
        return self.path

    @property
    def is_text(self) -> bool:
        """Tell whether it is a .txt file."""
        return self.path.endswith((".txt", ".txt.gz", ".txt.zst"))

    @property
    def is_arrow(self) -> bool:
        """Tell whether it has columns."""
        return self.path.endswith(ARROW_SUFFIXES)

    def texts(self) -> Iterator[str]:
        """Yield the documents in order.

        Raises:
            BadInput: naming the file, and the line or the column.
        """
        if self.is_arrow:
            yield from _rows(self.path, self.text_field)
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
        """Hash how the file is read and its bytes: SHA-256."""
        how = f"{'column' if self.is_arrow else 'jsonl'}={self.text_field}"
        how = f"txt={self.txt_documents}" if self.is_text else how
        digest = hashlib.sha256(f"{how}\0".encode())
        with storage.open_read(self.path) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        return digest.digest()


def _open(path: str) -> IO[bytes]:
    stream = storage.open_read(path)
    if path.endswith(".zst"):
        return cast("IO[bytes]", _import_pyarrow(path).CompressedInputStream(stream, "zstd"))
    return cast("IO[bytes]", gzip.open(stream)) if path.endswith(".gz") else stream


def _import_pyarrow(path: str) -> Any:
    """Import pyarrow, which `path` needs."""
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
    except (EOFError, zlib.error, OSError) as error:
        if getattr(error, "errno", None) is not None:  # the disk's, which the libraries' lack
            raise
        raise BadInput(
            f"{path}: damaged or truncated ({error}): fetch or write it again"
        ) from error


def _runs(path: str, is_whole: bool) -> Iterator[tuple[int, str]]:
    """Yield first line and text of each run of lines without a blank one, or of the whole file."""
    pending: list[str] = []
    first = size = 0
    for number, line in _lines(path):
        if line.strip(_WHITE) or (is_whole and pending):
            if not pending:
                first, size = number, 0
            pending.append(line)
            size += len(line.encode()) + 1
            if size > MAX_DOCUMENT_BYTES:
                _refuse_long(path, first, "document (--txt_documents says what ends one)")
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
        BadInput: what is wrong with the line.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {getattr(error, 'msg', 'nested too deep')}") from error
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
    """Describe what a line of a .jsonl file holds in place of a text, and what to do."""
    if not isinstance(value, dict):
        return f'each line must be an object such as {{"{field}": "..."}}'
    if field not in value:
        there = ", ".join(list(value)[:20]) or "none"
        return f"fields are {there}: name one with --text_field"
    return "it is no text: correct the line, or name another field with --text_field"


def _rows(path: str, field: str) -> Iterator[str]:
    """Yield the texts of a column.

    Raises:
        BadInput: not such a file, damaged, or without that column of text.
    """
    pyarrow = _import_pyarrow(path)
    with _arrow_errors(pyarrow, path), storage.open_read(path) as stream:
        for batch in _batches(pyarrow, stream, path, field):
            batch.validate(full=True)  # else invalid UTF-8 and offsets would be read as they are
            column = batch.column(field)
            for start in range(0, len(column), _ROWS):
                for text in column.slice(start, _ROWS).to_pylist():
                    yield text or ""


@contextmanager
def _arrow_errors(pyarrow: Any, path: str) -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not of the library
            raise
        why = shortened(str(error), 200)
        raise BadInput(f"{path}: cannot be read ({why}): fetch or write it again") from error


def _batches(pyarrow: Any, stream: IO[bytes], path: str, field: str) -> Iterator[Any]:
    """Yield record batches with the column `field`, of any of the three forms of such a file."""
    if path.endswith(".parquet"):
        from pyarrow import parquet

        file = parquet.ParquetFile(stream)
        _check_column(pyarrow, file.schema_arrow, path, field)
        yield from file.iter_batches(_ROWS, columns=[field])
        return
    is_file = stream.read(6) == b"ARROW1"
    stream.seek(0)
    if is_file:
        reader = pyarrow.ipc.open_file(stream)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:  # as `datasets` writes them
        reader = batches = pyarrow.ipc.open_stream(stream)
    _check_column(pyarrow, reader.schema, path, field)
    for batch in batches:
        yield batch.select([field])


def _check_column(pyarrow: Any, schema: Any, path: str, field: str) -> None:
    if schema.names.count(field) != 1:
        raise BadInput(
            f"{path}: no column {field}: name one of {', '.join(schema.names[:20])} with"
            " --text_field"
        )
    kind = schema.field(field).type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) not in ("string", "large_string", "string_view", "null"):
        raise BadInput(
            f"{path}: {field} holds no text but {kind}: name another column with --text_field"
        )


def open_files(source: str, txt_documents: str, text_field: str) -> tuple[FileSource, ...]:
    """Open the files that a source names: itself, those of a folder, or those of a pattern.

    Raises:
        BadInput: none, one that cannot be read, or one whose name does not say what it holds.
    """
    files = [FileSource(path, txt_documents, text_field) for path in _paths(source)]
    texts = [file.path for file in files if file.is_text]
    if txt_documents != AUTO or not texts:
        return tuple(files)
    if len(texts) > 1 and all(storage.stat(path).size <= _LONGEST_BOOK for path in texts):
        taken, what = BY_FILE, f"each of {len(texts):,} .txt files is a document"
    else:
        taken, what = BLANK_LINE, "a blank line ends a document"
    log(f"{source}: {what} (--txt_documents {taken})")
    return tuple(dataclasses.replace(file, txt_documents=taken) for file in files)


def _paths(source: str) -> list[str]:
    is_remote = storage.is_remote(source)
    if source.endswith("/") if is_remote else os.path.isdir(source):
        found = _files_of_folder(source.rstrip("/"))
    elif (not is_remote and storage.exists(source)) or not any(c in source for c in "*?["):
        found = [source]  # or a file whose name holds [ or *
    else:
        found = storage.glob(source)
        if not found:
            raise BadInput(f"no file matches {source}: check --input")
    for path in found:
        paths.check_input_file(path, "--input")
        storage.open_read(path).close()  # before anything is started
        if not path.endswith(SUFFIXES):
            raise BadInput(
                f"{path}: the name must end in {', '.join(SUFFIXES)}, to say what it holds"
            )
    return found


def _files_of_folder(folder: str) -> list[str]:
    """List the files of a folder by name; of a data set of `datasets` those of `train`."""
    names = storage.list_tree(folder)
    if "dataset_dict.json" in names:
        folder = storage.join(folder, "train")
        names = storage.list_tree(folder)
    # `datasets` keeps what it has computed as cache-*.arrow beside the data.
    names = [n for n in names if n.endswith(SUFFIXES) and not n.startswith("cache-")]
    if not names:
        raise BadInput(f"--input {folder}: a folder without files of {', '.join(SUFFIXES)}")
    return [storage.join(folder, name) for name in names]
