"""Is a data set what its manifest says? Fast at the start of training, in full for `check-data`."""

from __future__ import annotations

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.errors import BadInput


def fast_check(data_dir: str) -> Manifest:
    """Loads the manifest and compares which shards there are and how long each is.

    One listing and one look per shard; no record is read. On a bucket the checksum that it states
    is compared too.

    Raises:
        BadInput: naming the first shard that is missing, extra or of another size.
    """
    manifest = manifest_lib.load(data_dir)
    check_files(manifest, data_dir)
    return manifest


def check_files(manifest: Manifest, data_dir: str) -> None:
    """The comparison of `fast_check`, for a manifest that is not written yet too."""
    problems = file_problems(manifest, data_dir)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BadInput(
            f"{data_dir}: {problems[0]}{more}: make the data again with --overwrite, or see"
            f" `bigbird-ja check-data --data_dir={data_dir}`"
        )


def file_problems(manifest: Manifest, data_dir: str) -> list[str]:
    """One line for each shard that is missing, extra, or of another size than the manifest says."""
    shards = {s.name: s for s in manifest.train_shards + manifest.eval_shards}
    there = [n for n in storage.list_files(data_dir) if n.endswith(".tfrecord") or n in shards]
    problems = [f"{name} is missing" for name in shards if name not in there]
    for name in there:
        if name not in shards:
            problems.append(f"{name} is not in the manifest")
            continue
        found = storage.stat(storage.join(data_dir, name))
        if found.size != shards[name].bytes:
            problems.append(f"{name} has {found.size} bytes instead of {shards[name].bytes}")
        elif found.crc32c and shards[name].crc32c and found.crc32c != shards[name].crc32c:
            problems.append(f"{name} has another checksum than the manifest states")
    return problems
