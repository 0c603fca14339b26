"""File of generated articles, the same bytes anywhere."""

import gzip
import json
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any, cast

from bigbird_ja import storage
from bigbird_ja.process.console import Progress, human_bytes
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import outputs
from bigbird_ja.storage.ownership import FILES, Made, Owned
from bigbird_ja.text import articles

_SUFFIXES = (".jsonl", ".jsonl.gz", ".txt")


def write(
    path: str, count: int, seed: int, mean_length: int, facts: float, overwrite: bool
) -> dict[str, Any]:
    """Write generated articles, unless the file holds them already; return the `--json` results.

    Args:
        path: file that ends in .jsonl, .jsonl.gz or .txt, on disk or gs://.
        count: number of articles.
        seed: random seed.
        mean_length: mean length of an article, in characters.
        facts: names per 1,000 characters that are stated and then stated again far away.
        overwrite: whether another generated corpus is kept as `PATH.replaced-N`.

    Raises:
        BadInput: the file holds something else.
    """
    started = time.monotonic()
    totals = {"characters": 0, "bytes": 0}

    def counted() -> Iterator[str]:
        with Progress(count, "documents") as progress:
            for text in articles.documents(count, seed, mean_length, facts):
                totals["characters"] += len(text)
                totals["bytes"] += len(text.encode())
                progress.update()
                yield text

    outcome = "wrote" if _write(path, counted(), overwrite) else "finished already:"
    print(f"{outcome} {count:,} articles, {human_bytes(totals['bytes'])}: {path}")
    seconds = round(time.monotonic() - started, 3)
    return {"documents": count, **totals, "seconds": seconds, "output": path}


def _write(path: str, documents: Iterator[str], overwrite: bool) -> bool:
    """Write the documents; return False if the file already holds them.

    Raises:
        BadInput: the file holds something else.
    """
    folder, name = storage.directory_of(path), storage.base_name(path)
    if not path.endswith(_SUFFIXES):
        raise BadInput(f"--output {path}: the name must end in {', '.join(_SUFFIXES)}")
    outputs.check_output_file(path, "--output", replaces=overwrite)
    if overwrite or not storage.exists(path):
        with outputs.new_folder(folder), Owned.create(folder, FILES).writing(name) as file:
            _encode(path, documents, file)
        return True
    with tempfile.NamedTemporaryFile() as scratch:
        _encode(path, documents, scratch)
        scratch.flush()
        is_same = Made.of_file(scratch.name) == Made.of_file(path)
    if not is_same:
        raise BadInput(
            f"{path} holds something else: choose another --output, or, if it is a"
            " generated corpus, replace it with --overwrite"
        )
    return False


def _encode(path: str, documents: Iterator[str], file: IO[bytes]) -> None:
    """Write the documents in the format that `path` names; the same bytes every time."""
    if path.endswith(".gz"):
        # Without a name and a time in its header, the file depends only on its content.
        with gzip.GzipFile("", "wb", compresslevel=5, fileobj=file, mtime=0) as packed:
            _encode(path.removesuffix(".gz"), documents, cast("IO[bytes]", packed))
        return
    for index, text in enumerate(documents):
        if path.endswith(".txt"):
            file.write(f"{text.strip()}\n\n".encode())
        else:
            line = json.dumps({"id": f"sample-{index:06d}", "text": text}, ensure_ascii=False)
            file.write(f"{line}\n".encode())
