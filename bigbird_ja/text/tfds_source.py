"""Read documents out of a prepared TensorFlow data set: `tfds:wiki40b/ja[:SPLIT]`.

The real TFDS builder reads; nothing is downloaded or generated here. Looked for, in this order:
`--tfds_data_dir`, or else TFDS's own directory (`TFDS_DATA_DIR`, `~/tensorflow_datasets`), then the
public prepared copy in `gs://tfds-data/datasets`, where it can be reached.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bigbird_ja.process.errors import BadInput

PREFIX = "tfds:"
DEFAULT_SPLIT = "train"
PUBLIC_COPY = "gs://tfds-data/datasets"
_PUBLIC_URL = "https://storage.googleapis.com/tfds-data/datasets"
_PROBE_SECONDS = 10

_SOURCE = re.compile(
    r"tfds:(?P<name>[\w.-]+(?:/[\w.-]+)*)(?::(?P<version>\d+\.\d+\.\d+))?(?::(?P<split>.+))?"
)


@dataclass(frozen=True)
class TfdsSource:
    """A split; picklable, it opens the builder itself."""

    name: str  # with its version
    data_dir: str
    split: str

    @property
    def label(self) -> str:
        """Return its name in messages and manifests."""
        return f"{PREFIX}{self.name}:{self.split}"

    def texts(self) -> Iterator[str]:
        """Yield the documents in order: by shard, then by place in it.

        Raises:
            BadInput: the data set has no feature `text`, or a text is not UTF-8.
        """
        import tensorflow_datasets as tfds

        builder = _builder(self.name, self.data_dir)
        if "text" not in builder.info.features:
            raise BadInput(f"tfds:{self.name} has no feature `text`: choose another data set")
        read = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        examples = builder.as_dataset(split=self.split, shuffle_files=False, read_config=read)
        for example in examples.map(lambda e: e["text"]).as_numpy_iterator():
            try:
                yield example.decode()
            except UnicodeDecodeError as error:
                raise BadInput(f"tfds:{self.name}:{self.split}: a text is not UTF-8") from error

    @property
    def num_documents(self) -> int:
        """Count the documents in the split."""
        return int(_builder(self.name, self.data_dir).info.splits[self.split].num_examples)

    def digest(self) -> bytes:
        """Hash name, version, split, and each shard's name, length and size.

        The corpus's fingerprint takes it: hex SHA-256, as bytes.
        """
        info = _builder(self.name, self.data_dir).info
        split = info.splits[self.split]
        shards = [[i.filename.rpartition("/")[2], i.skip, i.take] for i in split.file_instructions]
        whole = info.splits[self.split.partition("[")[0]]
        size = int(whole.num_bytes * (split.num_examples / max(1, whole.num_examples)))
        content = [self.name, self.split, shards, size, split.num_examples]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest().encode()


def open_source(source: str, data_dir: str | None) -> list[TfdsSource]:
    """Open the splits that `source` names, joined by "+".

    Raises:
        BadInput: not of this form, an unknown split, or not prepared where it was looked for.
    """
    match = _SOURCE.fullmatch(source)
    if not match:
        raise BadInput(f"{source!r}: write it as tfds:wiki40b/ja or tfds:wiki40b/ja:train")
    name, version = match["name"], match["version"]
    prepared_dir, builder = _find(f"{name}:{version}" if version else name, data_dir)
    opened = []
    for split in (match["split"] or DEFAULT_SPLIT).split("+"):
        try:
            builder.info.splits[split.strip()]
        except (ValueError, KeyError, AssertionError) as error:
            raise BadInput(
                f"{source}: no split {split.strip()!r}: there are {', '.join(builder.info.splits)}"
            ) from error
        opened.append(TfdsSource(f"{name}:{builder.version}", prepared_dir, split.strip()))
    return opened


def _find(name: str, data_dir: str | None) -> tuple[str, Any]:
    """Find where the data set lies prepared; return the place and its builder."""
    import tensorflow_datasets as tfds

    local = os.path.expanduser(data_dir or str(tfds.core.constants.DATA_DIR))
    if builder := _builder(name, local):
        return local, builder
    tried = local
    if not data_dir:
        if _public_copy_answers() and (builder := _builder(name, PUBLIC_COPY)):
            return PUBLIC_COPY, builder
        tried += f", and the public copy in {PUBLIC_COPY} cannot be reached or lacks it"
    raise BadInput(
        f"tfds:{name} is not prepared in {tried}: copy it once with `gsutil -m cp -r"
        f" {PUBLIC_COPY}/{name.partition(':')[0]} DIR/{os.path.dirname(name)}` and give"
        " --tfds_data_dir DIR"
    )


@functools.lru_cache(maxsize=4)
def _builder(name: str, data_dir: str) -> Any:
    """Return TFDS's builder, or None where the data set is not prepared in `data_dir`."""
    import tensorflow_datasets as tfds
    from absl import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # it warns of every configuration that is not prepared
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except Exception as error:  # a missing data set or version has exceptions of TFDS's own
        if "NotFoundError" in type(error).__name__ or "version" in str(error).lower():
            return None
        raise
    finally:
        logging.set_verbosity(verbosity)
    return builder if builder.is_prepared() else None


def _public_copy_answers() -> bool:
    """Asks once, briefly: TensorFlow's own client would retry for minutes without a network."""
    import urllib.request

    try:
        urllib.request.urlopen(_PUBLIC_URL, timeout=_PROBE_SECONDS).close()
    except urllib.error.HTTPError:  # something answers
        return True
    except OSError:
        return False
    return True
