"""Read columns of text out of parquet and Arrow files, one group of rows at a time."""

from collections.abc import Iterator
from typing import IO, Any

from bigbird_ja.process.errors import BadInput
from bigbird_ja.text.stored import check_column, import_pyarrow, open_stored

_ROWS = 256  # at a time, if they are no larger than this
_BATCH_BYTES = 256 << 20


def read_rows(path: str, field: str) -> Iterator[str]:
    """Yield the texts of a column.

    Raises:
        BadInput: not such a file, damaged, or without that column of text.
    """
    pyarrow = import_pyarrow(path)
    with open_stored(path) as stream:
        for batch in _batches(pyarrow, stream, path, field):
            batch.validate(full=True)  # else invalid UTF-8 and offsets would be read as they are
            for value in batch.column(field):  # one by one: all may be one long text
                yield value.as_py() or ""


def _batches(pyarrow: Any, stream: IO[bytes], path: str, field: str) -> Iterator[Any]:
    """Yield record batches with the column `field`, of any of the three forms of such a file."""
    if path.endswith(".parquet"):
        from pyarrow import parquet

        file = parquet.ParquetFile(stream)
        _check_column(pyarrow, file.schema_arrow, path, field)
        repeated = parquet.ParquetFile(stream, read_dictionary=[field])
        for group in range(file.num_row_groups):
            where: dict[str, Any] = {"row_groups": [group], "columns": [field]}
            # A text that is stored once can stand in every row, and rows are held in memory whole.
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
    _check_column(pyarrow, reader.schema, path, field)
    for batch in batches:
        yield batch.select([field])


def _check_column(pyarrow: Any, schema: Any, path: str, field: str) -> None:
    check_column(path, schema.names, field)
    kind = schema.field(field).type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) not in ("string", "large_string", "string_view", "null"):
        raise BadInput(
            f"{path}: {field} holds no text but {kind}: name another column with --text_field"
        )
