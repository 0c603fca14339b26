"""Files of text as they are stored: plain, compressed, in a .zip archive, or columns of a table.

Parquet and Arrow files are read one group of rows at a time.
"""

import contextlib
import gzip
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import shortened
from bigbird_ja.storage import decode

ARROW_SUFFIXES = (".parquet", ".arrow", ".feather")
SEPARATORS = {".csv": ",", ".tsv": "\t"}  # of columns
_LINES = (".jsonl", ".txt", *SEPARATORS)
_PLAIN = (*(kind + packed for kind in _LINES for packed in ("", ".gz", ".zst")), *ARROW_SUFFIXES)
SUFFIXES = (*_PLAIN, ".zip")
_ADVICE = "fetch or write it again"
_ROWS = 256  # rows in memory at a time, unless they exceed _BATCH_BYTES
_BATCH_BYTES = 256 << 20
_MAX_EXPANSION = 10_000  # maximum characters of text per byte of a table
_IN_ZIP = ".zip::"  # separates the path of an archive from the name of a file in it
_CONVERT = {
    ".json": "a list becomes lines by jq -c '.[]' FILE.json > FILE.jsonl",
    ".xlsx": "save it as CSV in UTF-8",
    **dict.fromkeys((".tar", ".tgz", ".tar.gz", ".7z"), "unpack it"),
}


def kind_of(path: str) -> str:
    """Return the suffix of a file of text, such as ".csv", without that of its compression."""
    return os.path.splitext(path.removesuffix(".gz").removesuffix(".zst"))[1]


@contextmanager
def open_stored(path: str) -> Iterator[IO[bytes]]:
    """Open a file, or a member of an archive, without decompressing it."""
    archive, inside, member = path.partition(_IN_ZIP)
    advice = "unpack it, and give the files" if inside else _ADVICE
    with decode.made_by_others(path, "a whole file of its kind", advice):
        if inside:
            with _archive(f"{archive}.zip") as opened, opened.open(member) as inner:
                yield inner
        else:
            with storage.open_read(path) as stream:
                yield stream


@contextmanager
def _archive(path: str) -> Iterator[zipfile.ZipFile]:
    with storage.open_read(path) as stream:
        with decode.made_by_others(path, "an archive", _ADVICE):
            opened = zipfile.ZipFile(stream)
        with opened:
            yield opened


@contextmanager
def open_unpacked(path: str) -> Iterator[IO[bytes]]:
    """Open a file and decompress it."""
    with open_stored(path) as stream:
        unpacked: Any = stream
        if path.endswith(".zst"):
            import pyarrow

            unpacked = pyarrow.CompressedInputStream(stream, "zstd")
        elif path.endswith(".gz"):
            unpacked = gzip.GzipFile(fileobj=stream)
        yield unpacked


def check_column(path: str, names: list[str], field: str) -> None:
    """Check that a table has exactly one column `field`."""
    if names.count(field) != 1:
        lacking = "several columns" if field in names else "no column"
        known = shortened(", ".join(names[:20]), 300)
        raise BadInput(f"{path}: {lacking} {field}: name one of {known} with --text_field")


def members(path: str) -> list[str]:
    """List the files of text in an archive by name, without the files that macOS adds.

    A file of text is its own only member.

    Raises:
        BadInput: an archive without text, or a suffix that does not state a format.
    """
    if path.endswith(_PLAIN):
        return [path]
    if not path.endswith(".zip"):
        advice = next((f" ({a})" for end, a in _CONVERT.items() if path.endswith(end)), "")
        raise BadInput(
            f"{path}: the name must end in {', '.join(SUFFIXES)}, to state its format{advice}"
        )
    with _archive(path) as opened:
        names = sorted(name for name in opened.namelist() if not name.startswith("__MACOSX/"))
    if not (texts := [name for name in names if name.endswith(_PLAIN)]):
        raise BadInput(f"--input {path}: an archive without files of {', '.join(_PLAIN)}")
    return [f"{path.removesuffix('.zip')}{_IN_ZIP}{name}" for name in texts]


def size_of(path: str) -> int:
    """Return the size of a file in bytes; for a member of an archive the unpacked size."""
    archive, inside, member = path.partition(_IN_ZIP)
    if not inside:
        return storage.stat(path).size
    with _archive(f"{archive}.zip") as opened:
        return opened.getinfo(member).file_size


def version_of(path: str) -> str:
    """Return the version of the file, or of its archive; every write changes it. "" if missing."""
    archive, inside, _ = path.partition(_IN_ZIP)
    with contextlib.suppress(FileNotFoundError):
        return storage.stat(f"{archive}.zip" if inside else path).token
    return ""


def read_rows(path: str, field: str) -> Iterator[str]:
    """Yield the texts of a column.

    Raises:
        BadInput: another format, a damaged file, no such column of text, or a text that expands to
            more than `_MAX_EXPANSION` characters per byte.
    """
    import pyarrow

    left = _MAX_EXPANSION * size_of(path)
    with open_stored(path) as stream:
        for batch in _batches(pyarrow, stream, path, field):
            batch.validate(full=True)  # Arrow does not check UTF-8 and offsets otherwise
            for value in batch.column(field):  # one by one: all may refer to one long text
                text = value.as_py() or ""
                left -= len(text)
                if left < 0:
                    raise BadInput(
                        f"{path}: {field} repeats a text more than {_MAX_EXPANSION:,} times:"
                        " name another column with --text_field"
                    )
                yield text


def _batches(pyarrow: Any, stream: IO[bytes], path: str, field: str) -> Iterator[Any]:
    """Yield record batches with the column `field` of a parquet or Arrow file or stream."""
    if path.endswith(".parquet"):
        from pyarrow import parquet

        file = parquet.ParquetFile(stream)
        _check_text(pyarrow, file.schema_arrow, path, field)
        repeated = parquet.ParquetFile(stream, read_dictionary=[field])
        for group in range(file.num_row_groups):
            where: dict[str, Any] = {"row_groups": [group], "columns": [field]}
            # A text that is stored once can be in every row, and rows are expanded in memory.
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
    else:  # as `datasets` writes them
        reader = batches = pyarrow.ipc.open_stream(stream)
    _check_text(pyarrow, reader.schema, path, field)
    for batch in batches:
        yield batch.select([field])


def _check_text(pyarrow: Any, schema: Any, path: str, field: str) -> None:
    check_column(path, schema.names, field)
    kind = schema.field(field).type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) not in ("string", "large_string", "string_view", "null"):
        raise BadInput(
            f"{path}: {field} holds no text but {kind}: name another column with --text_field"
        )
