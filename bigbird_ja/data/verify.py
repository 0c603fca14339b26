"""Compare the files of a data set with its manifest, by one listing.

`fast_check` looks before work begins, `DataGuard` while a run reads, `named_damage` when reading
has failed. None of them parses a record: that is `check`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.manifest import SPLITS, Manifest, Shard
from bigbird_ja.process.errors import SHARD_CHANGED, BadInput, StorageError
from bigbird_ja.text import tokenizer_of

_OTHER = "is not the file that was made (its checksum differs)"


def fast_check(data_dir: str, splits: Sequence[str] = SPLITS) -> tuple[Manifest, DataGuard]:
    """Load the manifest and compare the tokenizer and the shards of some splits with it.

    A bucket states checksums in its listing. On disk the shards are read for theirs (at
    some GB/s from memory), because shards of another data set may have the same sizes.

    Returns:
        The manifest, and what notices later that a shard is replaced.

    Raises:
        BadInput: naming the first file that is missing, extra, unreadable or another one.
    """
    manifest = manifest_lib.load(data_dir)
    listing = storage.list_stats(data_dir)
    problems = _shard_problems(manifest, data_dir, listing, splits)
    if problem := tokenizer_problem(manifest, data_dir):
        problems.append(problem)
    raise_first(problems, data_dir)
    return manifest, DataGuard(manifest, data_dir, listing)


def raise_first(problems: Sequence[str], data_dir: str) -> None:
    """Refuses a data set that has problems.

    Raises:
        BadInput: naming the first one.
    """
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BadInput(
            f"{data_dir}: {problems[0]}{more}: copy the file again, or make the data again with"
            f" --overwrite; see `bigbird-ja check-data --data_dir {data_dir}`"
        )


def file_problems(
    manifest: Manifest, listing: Mapping[str, storage.Stat], splits: Sequence[str] = SPLITS
) -> list[str]:
    """Describe each shard that a listing shows to be missing, extra or another one, in a line."""
    every = {shard.name for shard in manifest.every_shard}
    shards = [shard for split in splits for shard in manifest.shards(split)]
    problems = [f"{shard.name} is missing" for shard in shards if shard.name not in listing]
    extra = [name for name in listing if name.endswith(".tfrecord") and name not in every]
    problems += [f"{name} is not in the manifest" for name in extra]
    for shard in shards:
        if shard.name in listing and (what := _difference(shard, listing[shard.name])):
            problems.append(f"{shard.name} {what}")
    return problems


def _difference(shard: Shard, info: storage.Stat) -> str | None:
    if info.size != shard.bytes:
        return f"has {info.size} bytes instead of {shard.bytes}"
    if info.crc32c and info.crc32c != shard.crc32c:
        return _OTHER
    return None


def _shard_problems(
    manifest: Manifest, data_dir: str, listing: Mapping[str, storage.Stat], splits: Sequence[str]
) -> list[str]:
    """Compare shards with the manifest by a listing, then by checksum.

    Shards whose checksum is not in the listing are read.
    """
    if problems := file_problems(manifest, listing, splits):
        return problems
    return [
        f"{shard.name} {_OTHER}"
        for split in splits
        for shard in manifest.shards(split)
        if not is_shard(storage.join(data_dir, shard.name), listing[shard.name], shard)
    ]


def is_shard(path: str, info: storage.Stat, shard: Shard) -> bool:
    """Tell whether a file holds what the manifest states of a shard.

    It is read where its checksum is not in `info`.
    """
    if _difference(shard, info):
        return False
    return (info.crc32c or storage.crc32c_of_file(path)[0]) == shard.crc32c


def tokenizer_problem(manifest: Manifest, data_dir: str) -> str | None:
    """Describe what is wrong with the data set's tokenizer.model, or return None."""
    if not manifest.tokenizer_sha256:  # made without one
        return None
    try:
        data = storage.read_bytes(storage.join(data_dir, manifest_lib.TOKENIZER_NAME))
    except FileNotFoundError:
        return f"{manifest_lib.TOKENIZER_NAME} is missing"
    if hashlib.sha256(data).hexdigest() != manifest.tokenizer_sha256:
        return f"{manifest_lib.TOKENIZER_NAME} is not the one that the data was made with"
    tokenizer = tokenizer_of(data, manifest_lib.TOKENIZER_NAME)
    # Earlier versions took other pieces for the first and the last of a sequence.
    ids, stated = ({*each.special_ids.values()} for each in (tokenizer, manifest))
    if tokenizer.vocab_size != manifest.vocab_size or ids != stated:
        return f"{manifest_lib.TOKENIZER_NAME} has other ids than the manifest states"
    return None


@contextlib.contextmanager
def named_damage(
    manifest: Manifest, data_dir: str, splits: Sequence[str] = SPLITS
) -> Iterator[None]:
    """Name the shard where reading inside meets a record that does not match its checksum.

    TensorFlow says the place in the file, not which file. So the shards are read once more: what
    is damaged then is damaged at rest; otherwise it was a passing fault.

    Raises:
        BadInput: a shard is not the one that was made.
        StorageError: all are: what was read of one of them was cut short or damaged on the way.
    """
    try:
        yield
    except Exception as error:
        if not _is_data_loss(error):
            raise
        listing = storage.list_stats(data_dir)
        raise_first(_shard_problems(manifest, data_dir, listing, splits), data_dir)
        raise StorageError(
            f"{storage.join(data_dir, '*.tfrecord')}: a shard was read short or damaged, and all of"
            " them are whole: run the same command again"
        ) from error


def _is_data_loss(error: BaseException | None) -> bool:
    while error is not None:
        if type(error).__name__ == "DataLossError":
            return True
        error = error.__cause__ or error.__context__
    return False


class DataGuard:
    """Notices that a data set is changed while a run reads it.

    TensorFlow's readers do not stay with one version of an object: replaced while it is read, they
    go on in the new one, and where records are equally long nothing looks wrong. So the versions of
    all shards are noted at the start and compared before each checkpoint becomes the
    latest: no checkpoint that is trusted holds anything learnt from a mixed shard.

    Args:
        manifest, data_dir: the data set.
        listing: of `data_dir`; shards that it lacks are not looked after.
    """

    def __init__(
        self, manifest: Manifest, data_dir: str, listing: Mapping[str, storage.Stat]
    ) -> None:
        """Note the versions in a listing."""
        self._data_dir = data_dir
        shards = manifest.every_shard
        self._tokens = {s.name: listing[s.name].token for s in shards if s.name in listing}

    def check(self) -> None:
        """Raises if a shard is no longer the version that was listed at the start.

        Raises:
            StorageError: names the shard; nothing learnt since can be trusted.
        """
        listing = storage.list_stats(self._data_dir)
        for name, token in self._tokens.items():
            if name not in listing or listing[name].token != token:
                path = storage.join(self._data_dir, name)
                raise StorageError(
                    f"{SHARD_CHANGED} {path}: replaced or removed while training read it: the last"
                    " checkpoint is good, see `bigbird-ja check-data`"
                )
