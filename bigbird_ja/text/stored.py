"""Open files of text as they are stored: plain, packed by gzip or zstd, or in a .zip archive."""

import gzip
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from bigbird_ja import storage
from bigbird_ja.process.console import shortened
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode

ARROW_SUFFIXES = (".parquet", ".arrow", ".feather")
TABLES = {
    f"{kind}{packed}": comma
    for kind, comma in ((".csv", ","), (".tsv", "\t"))
    for packed in ("", ".gz", ".zst")
}
_PLAIN = (
    *(kind + packed for kind in (".jsonl", ".txt") for packed in ("", ".gz", ".zst")),
    *TABLES,
    *ARROW_SUFFIXES,
)
SUFFIXES = (*_PLAIN, ".zip")
_ADVICE = "fetch or write it again"
_IN_ZIP = ".zip::"  # stands between an archive and the name of a file in it
CONVERT = {
    ".json": "a list becomes lines by jq -c '.[]' FILE.json > FILE.jsonl",
    ".xlsx": "save it as CSV in UTF-8",
    **dict.fromkeys((".tar", ".tgz", ".tar.gz", ".7z"), "unpack it"),
}


@contextmanager
def open_stored(path: str) -> Iterator[IO[bytes]]:
    """Open a file, or one that lies in an archive, as it is stored."""
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
    """Open a file as what was packed."""
    with open_stored(path) as stream:
        if path.endswith(".zst"):
            arrow = import_pyarrow(path)
            yield cast("IO[bytes]", arrow.CompressedInputStream(stream, "zstd"))
        else:
            yield (
                cast("IO[bytes]", gzip.GzipFile(fileobj=stream)) if path.endswith(".gz") else stream
            )


def import_pyarrow(path: str) -> Any:
    """Import pyarrow, which `path` needs."""
    try:
        import pyarrow
    except ImportError as error:
        raise BadInput(f"{path} needs pyarrow: pip install 'bigbird-ja[arrow]'") from error
    return pyarrow


def check_column(path: str, names: list[str], field: str) -> None:
    """Refuse a table of which not one column alone is called `field`."""
    if names.count(field) != 1:
        lacking = "several columns" if field in names else "no column"
        known = shortened(", ".join(names[:20]), 300)
        raise BadInput(f"{path}: {lacking} {field}: name one of {known} with --text_field")


def members(path: str) -> list[str]:
    """List the files of text in an archive, by name; what macOS adds is none."""
    with _archive(path) as opened:
        names = sorted(name for name in opened.namelist() if not name.startswith("__MACOSX/"))
    if not (texts := [name for name in names if name.endswith(_PLAIN)]):
        raise BadInput(f"--input {path}: an archive without files of {', '.join(_PLAIN)}")
    return [f"{path.removesuffix('.zip')}{_IN_ZIP}{name}" for name in texts]


def size_of(path: str) -> int:
    """Return the bytes of a file, unpacked where it lies in an archive."""
    archive, inside, member = path.partition(_IN_ZIP)
    if not inside:
        return storage.stat(path).size
    with _archive(f"{archive}.zip") as opened:
        return opened.getinfo(member).file_size
