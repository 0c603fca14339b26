"""Corpora: documents from files, globs, buckets, TFDS and the Hub, streamed in a fixed order.

    corpus = open_corpus(["tfds:wiki40b/ja:train", "more/*.jsonl.gz", "gs://bucket/x.parquet"])
    for text in corpus.texts(): ...

Every pass yields the same documents in the same order.

TFDS data sets are neither downloaded nor generated, but must be prepared. `open_corpus` looks for
them in `tfds_data_dir`, if this folder is given. Otherwise it looks in TFDS's own directory
(`TFDS_DATA_DIR`, `~/tensorflow_datasets`), then in the public copy `gs://tfds-data/datasets`.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.option import shorten
from bigbird_ja.text.containers import get_version
from bigbird_ja.text.file_source import (
    AUTO,
    TEXT_FIELDS,
    UTF_8,
    FileSource,
    check_encoding,
    open_files,
)
from bigbird_ja.text.hub_source import HubSource, open_rows

_MIN_WEIGHT, _MAX_WEIGHT = 0.0001, 1000.0
PUBLIC_COPY = "gs://tfds-data/datasets"
_PUBLIC_URL = "https://storage.googleapis.com/tfds-data/datasets"
_PROBE_SECONDS = 10
_TFDS = re.compile(
    r"tfds:(?P<name>[\w.-]+(?:/[\w.-]+)*)(?::(?P<version>\d+\.\d+\.\d+))?(?::(?P<split>.+))?"
)


@dataclass(frozen=True)
class TfdsSource:
    """Picklable split of a prepared TFDS data set, read by TFDS's own builder."""

    name: str  # NAME:VERSION.
    data_dir: str
    split: str

    @property
    def label(self) -> str:
        """Name of the source in messages and manifests."""
        return f"tfds:{self.name}:{self.split}"

    def texts(self) -> Iterator[str]:
        """Yield the documents in order: by shard, then by position in the shard.

        Raises:
            BadInput: The data set contains no feature `text`.
        """
        import tensorflow_datasets as tfds

        builder = _find_builder(self.name, self.data_dir)
        if "text" not in builder.info.features:
            raise BadInput(f"tfds:{self.name} contains no feature `text`: choose another data set")
        read = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        examples = builder.as_dataset(split=self.split, shuffle_files=False, read_config=read)
        for example in examples.map(lambda e: e["text"]).as_numpy_iterator():
            yield example.decode()

    def digest(self) -> bytes:
        """Return the SHA-256 (hex, as bytes) of name, version, split, shards and size."""
        info = _find_builder(self.name, self.data_dir).info
        split = info.splits[self.split]
        shards = [[i.filename.rpartition("/")[2], i.skip, i.take] for i in split.file_instructions]
        whole = info.splits[self.split.partition("[")[0]]
        size = int(whole.num_bytes * (split.num_examples / max(1, whole.num_examples)))
        content = [self.name, self.split, shards, size, split.num_examples]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest().encode()


TextSource = FileSource | TfdsSource | HubSource


@dataclass(frozen=True)
class Input:
    """One value of `inputs`, with the sources that the value names.

    Attributes:
        name: value as the user wrote it, without a weight.
        opened: sources, in order.
        weight: repetitions of each document per epoch, or None if the user stated none.
    """

    name: str
    opened: tuple[TextSource, ...]
    weight: float | None = None

    def texts(self) -> Iterator[str]:
        """Yield the documents, streamed."""
        for source in self.opened:
            yield from source.texts()


@dataclass
class Corpus:
    """Documents in a fixed order, opened by `open_corpus`."""

    parts: tuple[Input, ...]

    def texts(self) -> Iterator[str]:
        """Yield the documents, streamed.

        Raises:
            BadInput: A file contains invalid text. The message names file and line.
        """
        for part in self.parts:
            yield from part.texts()

    @property
    def opened(self) -> list[TextSource]:
        """Opened sources of all inputs, in order."""
        return [source for part in self.parts for source in part.opened]

    @property
    def sources(self) -> list[str]:
        """Labels of the sources in order, such as a path or `tfds:NAME:VERSION:SPLIT`."""
        return [source.label for source in self.opened]

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the corpus's content in order, independent of the files' paths.

        For a file, the hash covers all bytes and the settings that divide them into documents. For
        a TFDS split, it covers the data set's name and version, and the split's name, shards and
        size. For a Hub split, it covers the data set's name and commit, the config's and the
        split's name, and the text fields.
        """
        return _hash_digests([digest for digests in self._digests for digest in digests])

    @property
    def weights(self) -> list[tuple[str, float]]:
        """Fingerprint and weight (default 1) of each input, or [] if the user stated no weights."""
        weights = [part.weight for part in self.parts]
        if not any(weights):
            return []
        return [(_hash_digests(d), w or 1.0) for d, w in zip(self._digests, weights, strict=True)]

    @functools.cached_property
    def _digests(self) -> list[list[bytes]]:
        self._versions = self._get_file_versions()
        return [[source.digest() for source in part.opened] for part in self.parts]

    def _get_file_versions(self) -> dict[str, str]:
        files = [source.path for source in self.opened if isinstance(source, FileSource)]
        return {path: get_version(path) for path in files}

    def check_unchanged(self) -> None:
        """Check after the last pass that no file has changed since it was hashed.

        Raises:
            BadInput: A file was changed, replaced or removed.
        """
        for path, version in self._get_file_versions().items():
            if version != self._versions[path]:
                raise BadInput(
                    f"{path} changed while this command read it: rerun the same command when"
                    " nothing writes to the file"
                )


def open_corpus(
    sources: Sequence[str],
    tfds_data_dir: str | None = None,
    txt_documents: str = AUTO,
    text_fields: Sequence[str] = (),
    encoding: str = UTF_8,
    takes_weights: bool = False,
) -> Corpus:
    """Open sources, and check that at least one contains text.

    Args:
        sources: values of `inputs`, at least one.
        tfds_data_dir: folder of prepared TFDS data sets.
        txt_documents: unit of a document in a .txt file. The choice of `auto` is logged.
        text_fields: fields or columns of text, by default `TEXT_FIELDS`. The first of them that a
            record or table contains is read. They have no effect on .txt files and tfds:.
        encoding: Python's name of the encoding of .jsonl, .txt, .csv and .tsv files.
        takes_weights: whether a source may have a weight, as in `news.jsonl=0.5`.

    Raises:
        BadInput: There is no source, or one is missing, unreadable or given twice, or none contains
            text. A weight is invalid or not accepted. An argument has no effect on any source.
    """
    if not sources:
        raise BadInput("`inputs` is empty: give a corpus, such as corpus.jsonl")
    fields, encoding = tuple(text_fields) or TEXT_FIELDS, check_encoding(encoding)
    parts: list[Input] = []
    for source in sources:
        place, weight = split_weight(source)
        if weight is not None and not takes_weights:
            raise BadInput(f"{source}: only make-data accepts weights. Leave ={weight:g} out")
        if place.startswith("tfds:"):
            parts.append(Input(place, _open_tfds(place, tfds_data_dir), weight))
        elif place.startswith("hf:"):
            parts.append(Input(place, (open_rows(place, fields),), weight))
        else:
            parts.append(Input(place, open_files(place, txt_documents, fields, encoding), weight))
    corpus = Corpus(tuple(parts))
    _check_used(corpus, tfds_data_dir, txt_documents, bool(text_fields), encoding)
    if not any(_has_text(source) for source in corpus.opened):
        raise BadInput(f"{', '.join(sources)}: the corpus contains no text")
    return corpus


def _check_used(
    corpus: Corpus, tfds_data_dir: str | None, txt_documents: str, has_fields: bool, encoding: str
) -> None:
    """Check that no source is given twice, and that each argument applies to a source.

    Raises:
        BadInput: The check fails. The message names the source or the argument.
    """
    every = corpus.opened
    for label, count in Counter(corpus.sources).items():
        if count > 1:
            raise BadInput(f"`inputs` name {label} more than once: its text would count twice")
    files = [source for source in every if isinstance(source, FileSource)]
    texts = sum(source.is_text for source in files)
    lines = sum(not source.is_column for source in files)
    of_tfds = sum(isinstance(source, TfdsSource) for source in every)
    for is_unused, parameter, needed in (
        (tfds_data_dir and not of_tfds, "tfds_data_dir", "is tfds:..."),
        (txt_documents != AUTO and not texts, "txt_documents", "is a .txt file"),
        (has_fields and texts + of_tfds == len(every), "text_fields", "has fields"),
        (encoding != UTF_8 and not lines, "encoding", "is a file of lines"),
    ):
        if is_unused:
            raise BadInput(f"`{parameter}`: none of `inputs` {needed}. Leave it out")


def split_weight(source: str) -> tuple[str, float | None]:
    """Split SRC=WEIGHT into source and weight. Without a weight, the second value is None.

    The path of an existing file may contain "=" and is not split.

    Raises:
        BadInput: The weight is out of range.
    """
    match = re.fullmatch(r"(.+)=(\d[-+.\de]*)", source)
    if match is None or os.path.lexists(source):
        return source, None
    with contextlib.suppress(ValueError):
        if _MIN_WEIGHT <= float(match[2]) <= _MAX_WEIGHT:
            return match[1], float(match[2])
    raise BadInput(
        f"`inputs` {shorten(source)}: the weight {shorten(match[2])} is not from 0.0001 to"
        " 1000. Write SRC=WEIGHT, such as news.jsonl=0.5. If the path itself ends in =NUMBER,"
        " append =1"
    )


def _hash_digests(digests: list[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _has_text(source: TextSource) -> bool:
    """Return whether a source contains any text.

    Files are read up to their first document with text. For a TFDS split only the size is read,
    because a process may hang at its exit after it has read only a part of a bucket's records.
    """
    if isinstance(source, TfdsSource):
        return bool(
            _find_builder(source.name, source.data_dir).info.splits[source.split].num_examples
        )
    return any(text.strip() for text in source.texts())


def _open_tfds(source: str, data_dir: str | None) -> tuple[TfdsSource, ...]:
    """Open the splits that `source` names, separated by "+".

    Raises:
        BadInput: `source` is not of the form tfds:NAME[:VERSION][:SPLITS], a split is unknown, or
            the data set is not prepared.
    """
    match = _TFDS.fullmatch(source)
    if not match:
        raise BadInput(f"{source!r}: write it as tfds:wiki40b/ja or tfds:wiki40b/ja:train")
    name, version = match["name"], match["version"]
    prepared_dir, builder = _find(f"{name}:{version}" if version else name, data_dir)
    opened = []
    for split in (match["split"] or "train").split("+"):
        try:
            builder.info.splits[split.strip()]
        except (ValueError, KeyError, AssertionError) as error:
            raise BadInput(
                f"{source}: no split {split.strip()!r}. Its splits are"
                f" {', '.join(builder.info.splits)}"
            ) from error
        opened.append(TfdsSource(f"{name}:{builder.version}", prepared_dir, split.strip()))
    return tuple(opened)


def _find(name: str, data_dir: str | None) -> tuple[str, Any]:
    """Find a prepared data set and return its folder and its builder."""
    import tensorflow_datasets as tfds

    local = os.path.expanduser(data_dir or str(tfds.core.constants.DATA_DIR))
    if builder := _find_builder(name, local):
        return local, builder
    tried = local
    if not data_dir:
        if _is_public_copy_reachable() and (builder := _find_builder(name, PUBLIC_COPY)):
            return PUBLIC_COPY, builder
        tried += f" or in the public copy {PUBLIC_COPY}, if that can be reached"
    raise BadInput(
        f"tfds:{name} is not prepared in {tried}: copy it once with `gsutil -m cp -r"
        f" {PUBLIC_COPY}/{name.partition(':')[0]} DIR/{os.path.dirname(name)}` and give"
        " DIR as `tfds_data_dir`"
    )


@functools.lru_cache(maxsize=4)
def _find_builder(name: str, data_dir: str) -> Any:
    """Return TFDS's builder, or None if the data set is not prepared in `data_dir`."""
    import tensorflow_datasets as tfds
    from absl import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # TFDS warns of every unprepared config.
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        return builder if builder.is_prepared() else None
    except Exception as error:  # TFDS raises its own exceptions for a missing data set.
        if "NotFoundError" in type(error).__name__ or "version" in str(error).lower():
            return None
        raise
    finally:
        logging.set_verbosity(verbosity)


def _is_public_copy_reachable() -> bool:
    """Return whether the public copy of prepared data sets is reachable.

    This check is fast. TensorFlow's client would retry for minutes if the copy is unreachable.
    """
    import urllib.request

    try:
        urllib.request.urlopen(_PUBLIC_URL, timeout=_PROBE_SECONDS).close()
    except OSError as error:
        return isinstance(error, urllib.error.HTTPError)
    return True
