"""Writes a deterministic, generated Japanese corpus in Wiki40b layout.

Encyclopaedia articles of a few hundred to tens of thousands of characters, with quotations,
numbers, nested brackets, and facts that are stated again hundreds to thousands of tokens later.
The same seed gives the same articles anywhere. About 20 MB a second.

Writes `--output`: a .jsonl, .jsonl.gz or .txt file (on disk or gs://), or `tfds:DIR`, a
TFDS-prepared wiki40b/ja that `--input=tfds:wiki40b/ja --tfds_data_dir=DIR` reads.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import time
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, cast

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags

EXAMPLE = "bigbird-ja sample --output=sample.jsonl.gz --documents=2000 --seed=1"
_TFDS = "tfds:"
_DESCRIPTION = "bigbird-ja sample:"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".txt")


def define_flags(flags: Flags) -> None:
    """This command's flags."""
    flags.path("output", "FILE.jsonl, FILE.jsonl.gz, FILE.txt or tfds:DIR.", required=True)
    flags.integer("documents", 2000, "Articles to write.", unit="articles", low=1, high=10**9)
    flags.integer("seed", 1, "Which articles.", low=-(2**63), high=2**64 - 1)
    flags.integer(
        "mean_length", 3000, "Length of an article, on average.", unit="characters",
        low=250, high=40_000,
    )  # fmt: skip
    flags.number(
        "facts_per_1000_characters", 1.0, "Names that are stated and then stated again far away.",
        low=0.0, high=20.0,
    )  # fmt: skip
    flags.switch("overwrite", "Replaces an output that holds something else.")


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Writes the corpus, or finds that it is there already."""
    from bigbird_ja.process.console import Progress, human_bytes
    from bigbird_ja.text import sample

    started = time.monotonic()
    count = {"characters": 0, "bytes": 0}

    def counted() -> Iterator[str]:
        with Progress(args.documents, "documents") as progress:
            for text in sample.documents(
                args.documents, args.seed, args.mean_length, args.facts_per_1000_characters
            ):
                count["characters"] += len(text)
                count["bytes"] += len(text.encode())
                progress.update()
                yield text

    write = _write_tfds if args.output.startswith(_TFDS) else _write_file
    is_new = write(args, counted())
    said = "wrote" if is_new else "finished already:"
    print(f"{said} {args.documents:,} articles, {human_bytes(count['bytes'])}: {args.output}")
    seconds = round(time.monotonic() - started, 3)
    return {"documents": args.documents, **count, "seconds": seconds, "output": args.output}


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """One `sample` at a time writes to a place; its folder is made where it is missing."""
    from bigbird_ja import storage
    from bigbird_ja.process.console import log
    from bigbird_ja.storage import outputs
    from bigbird_ja.storage.lease import Lease, held

    busy = f"{path}: {{owner}} is writing there: wait for it to end, or choose another --output"
    folder = storage.directory_of(path)
    lock = storage.join(folder, f".{storage.base_name(path)}.sample.lock")
    with outputs.new_folder(folder), held(Lease(lock, busy, log)):
        yield


def _write_tfds(args: absl_flags.FlagValues, documents: Iterator[str]) -> bool:
    from bigbird_ja import storage
    from bigbird_ja.process.errors import BadInput
    from bigbird_ja.storage import outputs
    from bigbird_ja.text import sample_tfds

    directory = os.path.expanduser(args.output.removeprefix(_TFDS))
    if storage.is_remote(directory):
        raise BadInput(f"{args.output}: write the directory on disk, then copy it to the bucket")
    sample_tfds.check_count(args.documents)
    description = (
        f"{_DESCRIPTION} documents={args.documents} seed={args.seed}"
        f" mean_length={args.mean_length} facts={args.facts_per_1000_characters}"
    )
    prepared = sample_tfds.prepared_directory(directory)

    def is_ours(_: str) -> bool:
        return (sample_tfds.description_of(directory) or "").startswith(_DESCRIPTION)

    outputs.refuse_link(prepared, "--output")
    outputs.check_output_directory(prepared, "--output", True, is_ours, "sample")
    with _alone(prepared):
        outputs.check_output_directory(prepared, "--output", True, is_ours, "sample")
        there = sample_tfds.description_of(directory)
        if there == description:
            for _ in documents:  # only counts them
                pass
            return False
        if there and not args.overwrite:
            raise BadInput(
                f"{prepared} holds something else ({there}): choose another directory, or replace"
                " it with --overwrite"
            )
        sample_tfds.write_tfds(directory, documents, args.documents, description, args.overwrite)
    return True


def _write_file(args: absl_flags.FlagValues, documents: Iterator[str]) -> bool:
    from bigbird_ja import storage
    from bigbird_ja.process.errors import BadInput
    from bigbird_ja.storage import outputs

    path = args.output
    if not path.endswith(_SUFFIXES):
        raise BadInput(f"--output={path}: the name must end in {', '.join(_SUFFIXES)}")
    outputs.check_output_file(path, "--output", True, _is_ours, "sample")
    with _alone(path):
        outputs.check_output_file(path, "--output", True, _is_ours, "sample")
        if storage.exists(path) and not args.overwrite:
            with storage.open_read(path) as there:
                comparer = _Comparer(path, there)
                _encode(path, documents, cast("IO[bytes]", comparer))
                comparer.finish()
            return False
        with storage.writing(path) as file:
            _encode(path, documents, file)
    return True


def _is_ours(path: str) -> bool:
    """Whether a file is a corpus of this command's: its first document is one of our articles."""
    from bigbird_ja.process.errors import BadInput
    from bigbird_ja.text import sample
    from bigbird_ja.text.file_source import FileSource

    try:
        return sample.is_generated(next(FileSource(path).texts(), ""))
    except BadInput:
        return False


def _encode(path: str, documents: Iterator[str], file: IO[bytes]) -> None:
    """Writes the documents in the form that `path` names; the same bytes every time."""
    if path.endswith(".gz"):
        # Without a name and a time in its header, the file depends on its content alone.
        with gzip.GzipFile("", "wb", compresslevel=5, fileobj=file, mtime=0) as packed:
            _encode(path.removesuffix(".gz"), documents, cast("IO[bytes]", packed))
        return
    for index, text in enumerate(documents):
        if path.endswith(".txt"):
            file.write(f"{text.strip()}\n\n".encode())
        else:
            line = json.dumps({"id": f"sample-{index:06d}", "text": text}, ensure_ascii=False)
            file.write(f"{line}\n".encode())


class _Comparer:
    """A file to write to that only compares with what is there.

    Raises:
        BadInput: at the first difference.
    """

    def __init__(self, path: str, there: BinaryIO) -> None:
        self._path, self._there = path, there

    def write(self, data: bytes) -> int:
        """Compares the next bytes."""
        if self._there.read(len(data)) != data:
            self._refuse()
        return len(data)

    def flush(self) -> None:
        """Nothing to do; GzipFile calls it."""

    def finish(self) -> None:
        """There must be nothing more."""
        if self._there.read(1):
            self._refuse()

    def _refuse(self) -> None:
        from bigbird_ja.process.errors import BadInput

        raise BadInput(
            f"{self._path} holds something else: choose another --output, or replace it with"
            " --overwrite"
        )
