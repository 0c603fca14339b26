"""A corpus: documents from files, globs, buckets and TFDS, streamed in a fixed order.

    corpus = open_corpus(["tfds:wiki40b/ja:train", "more/*.jsonl.gz", "gs://bucket/x.txt"])
    for document in corpus.documents(): ...

Document n is the same at every reading.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.text import file_source, tfds_source
from bigbird_ja.text.file_source import BLANK_LINE, FileSource
from bigbird_ja.text.tfds_source import TfdsSource

Source = FileSource | TfdsSource

# Text files that are looked into for the warning: enough to see how a corpus was written.
_FILES_LOOKED_INTO = 16


@dataclass(frozen=True)
class Document:
    """One document; `index` counts from 0 over the whole corpus."""

    text: str
    source: str
    index: int


class Corpus:
    """Documents in a fixed order; made by `open_corpus`."""

    def __init__(self, opened: Sequence[Source]) -> None:
        self._opened = tuple(opened)

    def documents(self) -> Iterator[Document]:
        """All documents, streamed.

        Raises:
            BadInput: what a file holds is not what it should be; names file and line.
        """
        index = 0
        for source in self._opened:
            for text in source.texts():
                yield Document(text, source.label, index)
                index += 1

    @property
    def sources(self) -> list[str]:
        """What is read, in order: paths, and `tfds:NAME:SPLIT`."""
        return [source.label for source in self._opened]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex sha256 of the content in its order, wherever the files lie.

        Files count by all their bytes and by how these are cut into documents; a TFDS split by its
        version and its shards' names, lengths and size.
        """
        digest = hashlib.sha256()
        for source in self._opened:
            digest.update(source.digest())
        return digest.hexdigest()

    def warnings(self) -> list[str]:
        """What is likely not meant: text files that are a single document each."""
        texts = [
            source
            for source in self._opened
            if isinstance(source, FileSource) and source.is_text and not source.is_by_line
        ]
        lines = {t.path: t.lines_of_single_document() for t in texts[:_FILES_LOOKED_INTO]}
        single = [path for path, count in lines.items() if count]
        if not single:
            return []
        others = f" (and {len(single) - 1} more like it)" if len(single) > 1 else ""
        return [
            f"{single[0]}{others} has no blank line in its first {lines[single[0]]:,} lines, so"
            " they are one document: where each line is a document, give --txt_documents=line"
        ]


def open_corpus(
    sources: Sequence[str], tfds_data_dir: str | None = None, txt_documents: str = BLANK_LINE
) -> Corpus:
    """Opens sources of the forms in the module's docstring; the first document is read as a check.

    Args:
        sources: at least one.
        tfds_data_dir: where TFDS data sets lie prepared.
        txt_documents: what ends a document in a .txt file: `blank_line` or `line`.

    Raises:
        BadInput: no source, a missing or unreadable one, one given twice, or no text in any.
    """
    if not sources:
        raise BadInput("no --input: give a corpus, such as --input=corpus.jsonl")
    opened: list[Source] = []
    for source in sources:
        if source.startswith(tfds_source.PREFIX):
            opened += tfds_source.open_source(source, tfds_data_dir)
        else:
            opened += [FileSource(path, txt_documents) for path in _paths(source)]
    if tfds_data_dir and all(isinstance(source, FileSource) for source in opened):
        raise BadInput(f"--tfds_data_dir={tfds_data_dir}: no --input is tfds:...: leave it out")
    for label, count in Counter(source.label for source in opened).items():
        if count > 1:
            raise BadInput(f"--input names {label} more than once: its text would count twice")
    if txt_documents != BLANK_LINE and not any(
        isinstance(source, FileSource) and source.is_text for source in opened
    ):
        raise BadInput(f"--txt_documents={txt_documents}: no --input is a .txt file: leave it out")
    if not any(map(_has_text, opened)):
        raise BadInput(f"no text in {', '.join(sources)}: the corpus is empty")
    return Corpus(opened)


def _has_text(source: Source) -> bool:
    """Whether there is any text; reads files up to their first.

    A TFDS split is only asked for its size: a process that leaves TensorFlow's iterator over a
    bucket half read may hang when it exits.
    """
    if isinstance(source, FileSource):
        return any(text.strip() for text in source.texts())
    return source.num_documents > 0


def _paths(source: str) -> list[str]:
    is_pattern = any(c in source for c in "*?[")
    if not is_pattern or (not storage.is_remote(source) and storage.exists(source)):
        file_source.check_readable(source)  # or a file whose name holds [ or *
        return [source]
    paths = storage.glob(source)
    if not paths:
        raise BadInput(f"no file matches {source}: check --input")
    for path in paths:
        file_source.check_readable(path)
    return paths
