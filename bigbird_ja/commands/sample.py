"""Writes a deterministic, generated Japanese corpus in Wiki40b layout.

Encyclopaedia articles of a few hundred to tens of thousands of characters, with quotations,
numbers, nested brackets, and facts that are stated again hundreds to thousands of tokens later.
The same seed gives the same articles anywhere. About 20 MB a second.

Writes `--output`: a .jsonl, .jsonl.gz or .txt file, on disk or gs://.
"""

import gzip
import json
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any, cast

from bigbird_ja.cli.command_flags import Args, Flags

EXAMPLE = "bigbird-ja sample --output sample.jsonl.gz --documents 2000 --seed 1"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".txt")


def define_flags(flags: Flags) -> None:
    """Declares the command's flags."""
    flags.path("output", "FILE.jsonl, FILE.jsonl.gz or FILE.txt.", required=True)
    flags.integer("documents", 2000, "Articles to write.", unit="articles", low=1, high=10**9)
    flags.integer("seed", 1, "Random seed.", low=-(2**63), high=2**64 - 1)
    length = "Length of an article, on average."
    flags.integer("mean_length", 3000, length, unit="characters", low=250, high=40_000)
    facts = "Names that are stated and then stated again far away."
    flags.number("facts_per_1000_characters", 1.0, facts, low=0.0, high=20.0)
    flags.switch("overwrite", "Keeps a generated corpus of other settings as OUTPUT.replaced-N.")


def run(args: Args) -> dict[str, Any]:
    """Writes the corpus, unless the output holds it already."""
    from bigbird_ja.process.console import Progress, human_bytes
    from bigbird_ja.text import articles

    started = time.monotonic()
    count = {"characters": 0, "bytes": 0}

    def counted() -> Iterator[str]:
        with Progress(args.documents, "documents") as progress:
            for text in articles.documents(
                args.documents, args.seed, args.mean_length, args.facts_per_1000_characters
            ):
                count["characters"] += len(text)
                count["bytes"] += len(text.encode())
                progress.update()
                yield text

    outcome = "wrote" if _write(args.output, counted(), args.overwrite) else "finished already:"
    print(f"{outcome} {args.documents:,} articles, {human_bytes(count['bytes'])}: {args.output}")
    seconds = round(time.monotonic() - started, 3)
    return {"documents": args.documents, **count, "seconds": seconds, "output": args.output}


def _write(path: str, documents: Iterator[str], overwrite: bool) -> bool:
    """Writes the documents; returns False where the file holds just these already.

    Raises:
        BadInput: the file holds something else.
    """
    from bigbird_ja import storage
    from bigbird_ja.process.errors import BadInput
    from bigbird_ja.storage import outputs
    from bigbird_ja.storage.ownership import FILES, Made, Owned

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
