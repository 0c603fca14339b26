"""Where a bucket lies against where a TPU runs: traffic between regions costs time and money."""

from __future__ import annotations

from collections.abc import Iterable

from bigbird_ja import storage
from bigbird_ja.accelerators.hardware import region_of
from bigbird_ja.accelerators.prices import Prices
from bigbird_ja.storage.paths import split_remote


def mismatch(
    path: str, location: str, zone: str, prices: Prices, bytes_per_epoch: int = 0
) -> str | None:
    """A warning with its price where a bucket and a TPU are in different regions, else None.

    Args:
        path: a gs:// path on the bucket, for the message.
        location: the bucket's: a region (`europe-west4`), a pair of regions (`nam4`) or a
            multi-region (`us`), in any case.
        zone: the TPU's, such as `us-central1-b`.
        prices: US dollars per GB.
        bytes_per_epoch: what one pass over the data reads; 0 where that is not known.
    """
    per_gb = prices.egress_per_gb(location, zone)
    if per_gb == 0:
        return None
    epoch = ""
    if bytes_per_epoch:
        gigabytes = bytes_per_epoch / 1e9
        epoch = f", {gigabytes * per_gb:.2f} USD per pass over the data ({gigabytes:.2f} GB)"
    return (
        f"{path} is in {location.lower()}, the TPU in {region_of(zone)}: traffic between them costs"
        f" {per_gb:.2f} USD per GB{epoch} (prices of {prices.as_of}), and is slower: a bucket in"
        f" {region_of(zone)} costs nothing to read"
    )


def warning_for(
    path: str, zone: str | None, prices: Prices, bytes_per_epoch: int = 0
) -> str | None:
    """`mismatch` for the bucket of `path`, where both places can be known; never an error of its
    own, since the right to ask for a bucket's region is not needed for training."""
    if not storage.is_remote(path) or not zone:
        return None
    try:
        location = storage.bucket_location(path)
    except (OSError, storage.StorageError):
        return None
    return mismatch(path, location, zone, prices, bytes_per_epoch) if location else None


def warnings_for(
    paths: Iterable[str], zone: str | None, prices: Prices, bytes_per_epoch: int = 0
) -> list[str]:
    """`warning_for` of the first path on each bucket; the first path is the one that is read."""
    said: list[str] = []
    seen: set[str] = set()
    for number, path in enumerate(paths):
        bucket = split_remote(path)[0] if storage.is_remote(path) else ""
        if bucket and bucket not in seen:
            seen.add(bucket)
            warning = warning_for(path, zone, prices, 0 if number else bytes_per_epoch)
            said += [warning] if warning else []
    return said
