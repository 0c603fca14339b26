"""Files of text: plain, compressed, in a .zip archive, or as a column of a table.

Parquet and Arrow files are read one group of rows at a time.
"""

import contextlib
import gzip
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import shorten
from bigbird_ja.storage import decode

ARROW_SUFFIXES = (".parquet", ".arrow", ".feather")
SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LINES = (".jsonl", ".txt", *SEPARATORS)
_PLAIN = (*(kind + packed for kind in _LINES for packed in ("", ".gz", ".zst")), *ARROW_SUFFIXES)
SUFFIXES = (*_PLAIN, ".zip")
_ADVICE = "fetch or write it again"
# Maximum length of a column's name in a message. If a CSV file lacks a header, the "name" is a text
# of its first row.
_SHOWN = 40
# Maximum number of rows of a Parquet file in memory, and maximum size of their texts in bytes.
_ROWS = 256
_BATCH_BYTES = 256 << 20
# Path of a file in an archive, ARCHIVE.zip::NAME.
_IN_ZIP = re.compile(r"(?P<archive>.*\.zip)::(?P<member>.*)", re.IGNORECASE | re.DOTALL)
HEADER_ADVICE = ", or add a header line if the file has none"
_CONVERT = {
    ".json": "convert a list to lines with jq -c '.[]' FILE.json > FILE.jsonl",
    ".xlsx": "save it as CSV in UTF-8",
    **dict.fromkeys((".tar", ".tgz", ".tar.gz", ".7z"), "unpack it"),
}


def find_suffix(path: str) -> str:
    """Return the suffix of a file of text, such as ".csv" for NAME.csv.gz."""
    return os.path.splitext(path.lower().removesuffix(".gz").removesuffix(".zst"))[1]


def has_suffix(path: str, suffixes: tuple[str, ...] = SUFFIXES) -> bool:
    """Return whether a name ends in one of the suffixes, regardless of case."""
    return path.lower().endswith(suffixes)


def _split_member(path: str) -> tuple[str, str]:
    """Split ARCHIVE.zip::NAME into archive and name. Any other path has the name ""."""
    match = _IN_ZIP.fullmatch(path)
    return (match["archive"], match["member"]) if match else (path, "")


@contextmanager
def open_stored(path: str) -> Iterator[IO[bytes]]:
    """Open a file, or a member of a .zip archive. A .gz or .zst file is not decompressed."""
    archive, member = _split_member(path)
    advice = "unpack it, and give the files" if member else _ADVICE
    with decode.convert_errors(path, "a whole file of its kind", advice):
        if member:
            with _open_archive(archive) as opened, opened.open(member) as inner:
                yield inner
        else:
            with storage.open_read(path) as stream:
                yield stream


@contextmanager
def _open_archive(path: str) -> Iterator[zipfile.ZipFile]:
    with storage.open_read(path) as stream:
        with decode.convert_errors(path, "an archive", _ADVICE):
            opened = zipfile.ZipFile(stream)
        with opened:
            yield opened


@contextmanager
def open_unpacked(path: str) -> Iterator[IO[bytes]]:
    """Open a file, or a member of a .zip archive. A .gz or .zst file is decompressed."""
    with open_stored(path) as stream:
        unpacked: Any = stream
        if has_suffix(path, (".zst",)):
            import pyarrow

            unpacked = pyarrow.CompressedInputStream(stream, "zstd")
        elif has_suffix(path, (".gz",)):
            unpacked = gzip.GzipFile(fileobj=stream)
        yield unpacked


def find_column(path: str, names: list[str], fields: Sequence[str]) -> str:
    """Return the first of `fields` that is the name of a column.

    Raises:
        BadInput: The table contains no such column, or two columns of that name.
    """
    field = next((field for field in fields if field in names), None)
    if field is None or names.count(field) > 1:
        lacking = f"no column {' or '.join(fields)}" if field is None else f"two columns {field}"
        known = ", ".join(shorten(name, _SHOWN) for name in names[:20])
        is_csv = find_suffix(path) in SEPARATORS
        advice = add_field(known) + (HEADER_ADVICE if is_csv else "")
        raise BadInput(f"{path}: {lacking}. {advice}")
    return field


def add_field(names: str) -> str:
    """Return the advice to add one of the fields `names` to `text_fields`."""
    return f"Its fields are {names}. Add one to `text_fields`, which are tried in order"


def list_members(path: str) -> list[str]:
    """List the files of text in an archive, sorted, without the files that macOS adds.

    If `path` is not an archive, the list contains only `path`.

    Raises:
        BadInput: The archive contains no text, or the suffix does not state a format.
    """
    if has_suffix(path, _PLAIN):
        return [path]
    if not has_suffix(path, (".zip",)):
        advice = next((f" ({a})" for end, a in _CONVERT.items() if has_suffix(path, (end,))), "")
        raise BadInput(
            f"{path}: the name must end in {', '.join(SUFFIXES)}, to state its format{advice}"
        )
    with _open_archive(path) as opened:
        names = sorted(name for name in opened.namelist() if not name.startswith("__MACOSX/"))
    if not (texts := [name for name in names if has_suffix(name, _PLAIN)]):
        raise BadInput(
            f"`inputs` {path}: the archive contains no file whose name ends in {', '.join(_PLAIN)}"
        )
    return [f"{path}::{name}" for name in texts]


def get_size(path: str) -> int:
    """Return the size of a file, or of an unpacked member of an archive, in bytes."""
    archive, member = _split_member(path)
    if not member:
        return storage.stat(path).size
    with _open_archive(archive) as opened:
        return opened.getinfo(member).file_size


def get_version(path: str) -> str:
    """Return a text that changes with every write of a file, or "" if the file is missing.

    All members of an archive have the same text, which changes with every write of the archive.
    """
    with contextlib.suppress(FileNotFoundError):
        return storage.stat(_split_member(path)[0]).token
    return ""


def read_rows(path: str, fields: Sequence[str]) -> Iterator[str]:
    """Yield the texts of one column, which is the first of `fields` that the file contains.

    Raises:
        BadInput: The file is damaged, is not of the format that its suffix states, or contains no
            such column of text.
    """
    import pyarrow

    with open_stored(path) as stream:
        for batch in _read_record_batches(pyarrow, stream, path, fields):
            batch.validate(full=True)  # Otherwise Arrow does not check UTF-8 and offsets.
            # Rows are converted one by one. Many rows may refer to one long text in the batch, and
            # each conversion copies the text.
            for value in batch.column(0):
                yield value.as_py() or ""


def _read_record_batches(
    pyarrow: Any, stream: IO[bytes], path: str, fields: Sequence[str]
) -> Iterator[Any]:
    """Yield the text column of a Parquet file, Arrow file or Arrow stream as record batches."""
    if has_suffix(path, (".parquet",)):
        from pyarrow import parquet

        file = parquet.ParquetFile(stream)
        field = _find_text_column(pyarrow, file.schema_arrow, path, fields)
        repeated = parquet.ParquetFile(stream, read_dictionary=[field])
        for group in range(file.num_row_groups):
            where: dict[str, Any] = {"row_groups": [group], "columns": [field]}
            # A file may store a text once for many rows, but in memory each row contains a copy.
            # So the number of rows in a batch depends on the longest text.
            first = next(repeated.iter_batches(1, **where), None)
            dictionary = getattr(first and first.column(field), "dictionary", ())
            sizes = [text.as_buffer().size for text in dictionary if text.is_valid]
            rows = _BATCH_BYTES // max([1, *sizes])
            yield from file.iter_batches(max(1, min(_ROWS, rows)), **where)
        return
    is_file = stream.read(6) == b"ARROW1"
    stream.seek(0)
    if is_file:
        reader = pyarrow.ipc.open_file(stream)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:  # Arrow's stream format, which `datasets` writes.
        reader = batches = pyarrow.ipc.open_stream(stream)
    field = _find_text_column(pyarrow, reader.schema, path, fields)
    for batch in batches:
        yield batch.select([field])


def _find_text_column(pyarrow: Any, schema: Any, path: str, fields: Sequence[str]) -> str:
    """Find a column with `find_column`, and check that the column contains text."""
    field = find_column(path, schema.names, fields)
    kind = schema.field(field).type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) not in ("string", "large_string", "string_view", "null"):
        raise BadInput(
            f"{path}: column {field} contains {kind}, not text. Name another column with"
            " `text_fields`"
        )
    return field
