"""Read columns of text out of parquet and Arrow files, one group of rows at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from bigbird_ja.process.console import shortened
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text.stored import import_pyarrow, open_stored

_ROWS = 256


def read_rows(path: str, field: str) -> Iterator[str]:
    """Yield the texts of a column.

    Raises:
        BadInput: not such a file, damaged, or without that column of text.
    """
    pyarrow = import_pyarrow(path)
    with _arrow_errors(pyarrow, path), open_stored(path) as stream:
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
