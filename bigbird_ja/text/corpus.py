"""Stream documents from files, globs, buckets and TFDS in a fixed order.

    corpus = open_corpus(["tfds:wiki40b/ja:train", "more/*.jsonl.gz", "gs://bucket/x.parquet"])
    for text in corpus.texts(): ...

Document n is the same at every reading.
"""

import dataclasses
import functools
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bigbird_ja import storage
from bigbird_ja.process.console import log
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.option import Option, shortened
from bigbird_ja.storage import paths as storage_paths
from bigbird_ja.text import tfds_source
from bigbird_ja.text.file_source import AUTO, BLANK_LINE, BY_FILE, SUFFIXES, TEXT_FIELD, FileSource
from bigbird_ja.text.tfds_source import TfdsSource

TextSource = FileSource | TfdsSource

WEIGHT = Option(
    "weight", float, 1.0, "How often an epoch takes each document of a corpus.",
    low=0.0001, high=1000.0,
)  # fmt: skip
# A larger .txt file holds more than one document: the longest novels have 5 MB.
_LONGEST_BOOK = 8 << 20


@dataclass(frozen=True)
class Input:
    """One SRC: the source or sources that it names.

    Attributes:
        name: as the user wrote it.
        opened: its sources, in order.
        weight: how often an epoch takes its documents; None where the user gave none.
    """

    name: str
    opened: tuple[TextSource, ...]
    weight: float | None = None

    def texts(self) -> Iterator[str]:
        """Yield the documents, streamed."""
        for source in self.opened:
            yield from source.texts()


class Corpus:
    """Documents in a fixed order; made by `open_corpus`."""

    def __init__(self, parts: Sequence[Input]) -> None:
        """Join what has been opened."""
        self.parts = tuple(parts)
        self._opened = tuple(source for part in parts for source in part.opened)

    def texts(self) -> Iterator[str]:
        """Yield the documents, streamed.

        Raises:
            BadInput: what a file holds is not what it should be; names file and line.
        """
        for part in self.parts:
            yield from part.texts()

    @property
    def sources(self) -> list[str]:
        """List what is read, in order: paths, and `tfds:NAME:SPLIT`."""
        return [source.label for source in self._opened]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash the content in its order, wherever the files lie: SHA-256 in hex.

        Files count by all their bytes and by how these are cut into documents; a TFDS split by its
        version and its shards' names, lengths and size.
        """
        return _sha256(digest for digests in self._digests for digest in digests)

    @property
    def weights(self) -> list[tuple[str, float]]:
        """Return fingerprint and weight (by default 1) of each part; empty if none has a weight."""
        if all(part.weight is None for part in self.parts):
            return []
        weights = [1.0 if part.weight is None else part.weight for part in self.parts]
        return list(zip(map(_sha256, self._digests), weights, strict=True))

    @functools.cached_property
    def _digests(self) -> list[list[bytes]]:
        return [[source.digest() for source in part.opened] for part in self.parts]


def open_corpus(
    sources: Sequence[str],
    tfds_data_dir: str | None = None,
    txt_documents: str = AUTO,
    text_field: str = TEXT_FIELD,
    takes_weights: bool = False,
) -> Corpus:
    """Opens sources of the forms in the module's docstring; the first document is read as a check.

    Args:
        sources: at least one.
        tfds_data_dir: where TFDS data sets lie prepared.
        txt_documents: what a document in a .txt file is, of `file_source.TXT_DOCUMENTS`; what
            `auto` takes is logged.
        text_field: the field or column of text in .jsonl, parquet and Arrow files.
        takes_weights: whether a weight can be written after a source, as in `news.jsonl=0.5`.

    Raises:
        BadInput: no source, a missing or unreadable one, one given twice, or no text in any; a
            weight that cannot be, or where none is taken; an argument that none of them can use.
    """
    if not sources:
        raise BadInput("no --input: give a corpus, such as --input corpus.jsonl")
    parts: list[Input] = []
    for source in sources:
        place, weight = split_weight(source)
        if weight is not None and not takes_weights:
            raise BadInput(f"{source}: weights are for make-data: leave ={weight:g} out")
        opened = _open(place, tfds_data_dir, txt_documents, text_field)
        parts.append(Input(place, opened, weight))
    _check_used(parts, tfds_data_dir, txt_documents, text_field)
    if not any(_has_text(source) for part in parts for source in part.opened):
        raise BadInput(f"no text in {', '.join(sources)}: the corpus is empty")
    return Corpus(parts)


def _check_used(
    parts: Sequence[Input],
    tfds_data_dir: str | None,
    txt_documents: str,
    text_field: str,
) -> None:
    """Refuse a source that is given twice, and an argument that no source can use.

    Raises:
        BadInput: naming it.
    """
    every = [source for part in parts for source in part.opened]
    for label, count in Counter(source.label for source in every).items():
        if count > 1:
            raise BadInput(f"--input names {label} more than once: its text would count twice")
    files = [source for source in every if isinstance(source, FileSource)]
    texts = sum(file.is_text for file in files)
    for is_unused, flag, what in (
        (tfds_data_dir and len(files) == len(every), "tfds_data_dir", "is tfds:..."),
        (txt_documents != AUTO and not texts, "txt_documents", "is a .txt file"),
        (text_field != TEXT_FIELD and texts == len(files), "text_field", "has fields"),
    ):
        if is_unused:
            raise BadInput(f"--{flag}: no --input {what}: leave it out")


def split_weight(source: str) -> tuple[str, float | None]:
    """Split a source from the weight written after it, as in SRC=WEIGHT; None without one.

    A path may hold "=" itself: what exists is a path.

    Raises:
        BadInput: the weight is out of range.
    """
    match = re.fullmatch(r"(.+)=(\d[-+.\de]*)", source)
    if match is None or os.path.lexists(source):
        return source, None
    try:
        return match[1], WEIGHT.read(match[2], "")
    except BadInput as error:
        raise BadInput(
            f"--input {shortened(source)}: {error}: write SRC=WEIGHT, such as news.jsonl=0.5 (a"
            " path that ends in = and a number itself: PATH=1)"
        ) from error


def _sha256(digests: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for one in digests:
        digest.update(one)
    return digest.hexdigest()


def _open(
    source: str, tfds_data_dir: str | None, txt_documents: str, text_field: str
) -> tuple[TextSource, ...]:
    if source.startswith(tfds_source.PREFIX):
        return tuple(tfds_source.open_source(source, tfds_data_dir))
    files = [FileSource(path, txt_documents, text_field) for path in _paths(source)]
    if txt_documents == AUTO and (texts := [file for file in files if file.is_text]):
        taken = _choose_txt_documents(source, texts)
        files = [dataclasses.replace(file, txt_documents=taken) for file in files]
    return tuple(files)


def _choose_txt_documents(source: str, texts: list[FileSource]) -> str:
    """Decide what a document is in the .txt files of a source, and log it."""
    if len(texts) > 1 and all(storage.stat(t.path).size <= _LONGEST_BOOK for t in texts):
        log(f"{source}: each of {len(texts):,} .txt files is a document (--txt_documents file)")
        return BY_FILE
    log(f"{source}: a blank line ends a document (--txt_documents blank_line)")
    return BLANK_LINE


def _has_text(source: TextSource) -> bool:
    """Tell whether there is any text; files are read up to their first.

    Of a TFDS split only the size is read: a process that leaves TensorFlow's iterator over a
    bucket half read may hang when it exits.
    """
    if isinstance(source, TfdsSource):
        return source.num_documents > 0
    return any(text.strip() for text in source.texts())


def _paths(source: str) -> list[str]:
    """List the files that a source names: itself, those of a folder, or those of a pattern."""
    is_remote = storage.is_remote(source)
    if source.endswith("/") if is_remote else os.path.isdir(source):
        paths = _files_of_folder(source.rstrip("/"))
    elif (not is_remote and storage.exists(source)) or not any(c in source for c in "*?["):
        paths = [source]  # or a file whose name holds [ or *
    else:
        paths = storage.glob(source)
        if not paths:
            raise BadInput(f"no file matches {source}: check --input")
    for path in paths:
        storage_paths.check_input_file(path, "--input")
        storage.open_read(path).close()  # before anything is started
        if not path.endswith(SUFFIXES):
            raise BadInput(
                f"{path}: the name must end in {', '.join(SUFFIXES)}, to say what it holds"
            )
    return paths


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
