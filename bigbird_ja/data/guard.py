"""Notices that a data set is changed while a run reads it.

TensorFlow's readers do not stay with one version of an object: replaced while it is read, they go
on in the new one, and where records are equally long nothing looks wrong. So the versions of all
shards are noted at the start (one listing) and compared before each checkpoint becomes the latest:
no checkpoint that is trusted holds anything learnt from a mixed shard.
"""

from __future__ import annotations

from bigbird_ja import storage
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.errors import SHARD_CHANGED, BadInput, StorageError


class DataGuard:
    """The versions of a data set's shards as a run found them.

    Raises:
        BadInput: a shard is missing, or its size or checksum (known without reading on a bucket)
            is not the manifest's.
    """

    def __init__(self, manifest: Manifest, data_dir: str) -> None:
        self._data_dir = data_dir
        found = storage.list_stats(data_dir)
        self._tokens: dict[str, str] = {}
        for shard in manifest.train_shards + manifest.eval_shards:
            path = storage.join(data_dir, shard.name)
            info = found.get(shard.name)
            if info is None:
                raise BadInput(f"{path}: missing: make the data again")
            is_other = bool(shard.crc32c and info.crc32c) and shard.crc32c != info.crc32c
            if info.size != shard.bytes or is_other:
                raise BadInput(
                    f"{path}: not the file that the manifest describes ({info.size} bytes, stated"
                    f" {shard.bytes}): see `bigbird-ja check-data`, or make the data again"
                )
            self._tokens[shard.name] = info.token

    def check(self) -> None:
        """Raises where a shard is no longer the version that was found at the start.

        Raises:
            StorageError: names the shard; nothing learnt since can be trusted.
        """
        found = storage.list_stats(self._data_dir)
        for name, token in self._tokens.items():
            if name not in found or found[name].token != token:
                path = storage.join(self._data_dir, name)
                raise StorageError(
                    f"{SHARD_CHANGED} {path}: replaced or removed while training read it: the last"
                    " checkpoint is good, see `bigbird-ja check-data`"
                )
