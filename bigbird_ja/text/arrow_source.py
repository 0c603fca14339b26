"""Documents out of a column of text: parquet, Arrow files, and data sets that Hugging Face's
`datasets` saved on disk, read by pyarrow, which owns those formats (extra `arrow`).

Rows come in the file's order, one group of them at a time. A row without text is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode

SUFFIXES = (".parquet", ".arrow", ".feather")
_ROWS = 256
_CHUNK = 1 << 20
_STATE, _SPLITS = "state.json", "dataset_dict.json"


@dataclass(frozen=True)
class ArrowSource:
    """A file with a column of documents; picklable."""

    path: str
    text_field: str = "text"

    @property
    def label(self) -> str:
        """What it is called in messages and manifests."""
        return self.path

    def texts(self) -> Iterator[str]:
        """The documents in order.

        Raises:
            BadInput: not such a file, or without that column of text.
        """
        row = 0
        with _reading(self.path) as stream:
            for batch in _batches(stream, self.path, self.text_field):
                for value in batch:
                    row += 1
                    if value is not None and not isinstance(value, str):
                        raise BadInput(
                            f"{self.path} row {row}: {self.text_field} holds no text: name another"
                            " column with --text_field"
                        )
                    if value:
                        yield value

    def digest(self) -> bytes:
        """SHA-256 of the bytes of the file and of the column's name."""
        digest = hashlib.sha256(f"column={self.text_field}\0".encode())
        with storage.open_read(self.path) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        return digest.digest()


def files_of(folder: str) -> list[str] | None:
    """The files of a data set that `datasets` saved in a folder; None where it is none.

    Raises:
        BadInput: several splits, and none of them `train`.
    """
    if storage.exists(storage.join(folder, _SPLITS)):
        said = decode.read_json(storage.join(folder, _SPLITS), dict[str, Any])
        splits = [name for name in said.get("splits", []) if isinstance(name, str)]
        if "train" not in splits:
            raise BadInput(f"{folder}: no split `train`: give one of {_named(folder, splits)}")
        folder = storage.join(folder, "train")
    if not storage.exists(storage.join(folder, _STATE)):
        return None
    state = decode.read_json(storage.join(folder, _STATE), dict[str, Any])
    names = [file["filename"] for file in state.get("_data_files", [])]
    return [storage.join(folder, storage.check_inside(name)) for name in names]


def _named(folder: str, splits: list[str]) -> str:
    return ", ".join(storage.join(folder, split) for split in splits) or "its folders"


@contextmanager
def _reading(path: str) -> Iterator[Any]:
    try:
        import pyarrow
    except ImportError as error:
        raise BadInput(f"{path} needs pyarrow: pip install 'bigbird-ja[arrow]'") from error
    try:
        with storage.open_read(path) as stream:
            yield stream
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not of the library
            raise
        why = " ".join(str(error).split())[:200]
        raise BadInput(f"{path}: cannot be read ({why}): fetch or write it again") from error


def _batches(stream: Any, path: str, field: str) -> Iterator[list[Any]]:
    """The column's values, some rows at a time."""
    import pyarrow

    if path.endswith(".parquet"):
        from pyarrow import parquet

        file = parquet.ParquetFile(stream)
        _check_column(file.schema_arrow, path, field)
        for batch in file.iter_batches(_ROWS, columns=[field]):
            yield batch.column(0).to_pylist()
        return
    for batch in _arrow_batches(pyarrow, stream):
        _check_column(batch.schema, path, field)
        column = batch.column(field)
        for start in range(0, len(column), _ROWS):
            yield column.slice(start, _ROWS).to_pylist()


def _arrow_batches(pyarrow: Any, stream: Any) -> Iterator[Any]:
    """Record batches of either form of an Arrow file: `datasets` writes the streaming one."""
    is_file = stream.read(6) == b"ARROW1"
    stream.seek(0)
    if not is_file:
        yield from pyarrow.ipc.open_stream(stream)
        return
    reader = pyarrow.ipc.open_file(stream)
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def _check_column(schema: Any, path: str, field: str) -> None:
    if field not in schema.names:
        raise BadInput(
            f"{path}: no column {field}: name one of {', '.join(schema.names[:20])} with"
            " --text_field"
        )
