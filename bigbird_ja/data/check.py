"""Comparison of a data set with its manifest.

`check_files` compares the tokenizer, and the sizes and checksums of the shards. `check` also reads
every record, and compares the contents and the totals.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import masking, tfrecords
from bigbird_ja.data.manifest import SPLITS, Manifest, Shard
from bigbird_ja.errors import BadInput

_OTHER = "was changed (its checksum differs from the manifest)"


def check_files(data_dir: str, splits: Sequence[str] = SPLITS) -> Manifest:
    """Load the manifest and compare the tokenizer and the shards of some splits with it.

    On a bucket, the listing contains the shards' checksums. On disk, they are computed from the
    content, because shards of another data set may have the same sizes.

    Raises:
        BadInput: A file is missing, extra, unreadable or changed. The message names the first one.
    """
    manifest = manifest_lib.load(data_dir)
    listing = storage.list_stats(data_dir)
    problems = _compare_shards(manifest, data_dir, listing, splits)
    if problem := compare_tokenizer(manifest, data_dir):
        problems.append(problem)
    raise_first(problems, data_dir)
    return manifest


def check_held_out(manifest: Manifest, data_dir: str) -> None:
    """Check that a data set has held-out records, before a run that evaluates on them.

    Raises:
        BadInput: The data set contains none.
    """
    if not manifest.eval_shards:
        raise BadInput(
            f"{data_dir} contains no held-out records. Make the data again from more documents (now"
            f" {manifest.documents:,}), with `eval_fraction` above 0"
        )


def raise_first(problems: Sequence[str], data_dir: str) -> None:
    """Raise BadInput with the first problem, if there is one."""
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BadInput(
            f"{data_dir}: {problems[0]}{more}. Copy the file again, or make the data again;"
            " `bigbird-ja check-data` lists all problems"
        )


def compare_files(
    manifest: Manifest, listing: Mapping[str, storage.Stat], splits: Sequence[str] = SPLITS
) -> list[str]:
    """Compare the shards of a manifest with a listing of the folder.

    Returns:
        A line for each shard that is missing or that has another size or checksum, and for each
        shard file that is not in the manifest.
    """
    problems = []
    for shard in (shard for split in splits for shard in manifest.select_shards(split)):
        if shard.name not in listing:
            problems.append(f"{shard.name} is missing")
        elif difference := _compare_file(shard, listing[shard.name]):
            problems.append(f"{shard.name} {difference}")
    extra = {*listing} - {shard.name for shard in manifest.every_shard}
    names = sorted(name for name in extra if name.endswith(".tfrecord"))
    return [*problems, *(f"{name} is not in the manifest" for name in names)]


def _compare_file(shard: Shard, info: storage.Stat) -> str | None:
    if info.size != shard.bytes:
        return f"has {info.size} bytes instead of {shard.bytes}"
    if info.crc32c and info.crc32c != shard.crc32c:
        return _OTHER
    return None


def _compare_shards(
    manifest: Manifest, data_dir: str, listing: Mapping[str, storage.Stat], splits: Sequence[str]
) -> list[str]:
    """Compare sizes and checksums of shards with the manifest, and return the problems.

    A shard is read if its checksum is not in the listing.
    """
    if problems := compare_files(manifest, listing, splits):
        return problems
    return [
        f"{shard.name} {_OTHER}"
        for split in splits
        for shard in manifest.select_shards(split)
        if not is_shard(storage.join(data_dir, shard.name), listing[shard.name], shard)
    ]


def is_shard(path: str, info: storage.Stat, shard: Shard) -> bool:
    """Return whether a file has the size and the checksum that the manifest states for a shard.

    The file is read if `info` does not contain its checksum.
    """
    if _compare_file(shard, info):
        return False
    return (info.crc32c or storage.compute_file_crc32c(path)[0]) == shard.crc32c


def compare_tokenizer(manifest: Manifest, data_dir: str) -> str | None:
    """Compare the data set's tokenizer.model with the manifest, and return the problem or None."""
    if not manifest.tokenizer_sha256:
        return None
    try:
        data = storage.read_bytes(storage.join(data_dir, manifest_lib.TOKENIZER_NAME))
    except FileNotFoundError:
        return f"{manifest_lib.TOKENIZER_NAME} is missing"
    if hashlib.sha256(data).hexdigest() != manifest.tokenizer_sha256:
        return f"{manifest_lib.TOKENIZER_NAME} is not the tokenizer of this data set"
    return None


_BATCH = 64
# Totals of a split's records, by field of `Split`. `predictions` is counted only if the masks are
# static.
_Counts = Counter[str]


def check(
    manifest: Manifest, data_dir: str, progress: Callable[[int], None] | None = None
) -> list[str]:
    """Check every file and record of a data set.

    Args:
        manifest: manifest of the data set.
        data_dir: data set, on disk or gs://.
        progress: called with the number of bytes of each read.

    Returns:
        A line for each problem.
    """
    listing = storage.list_stats(data_dir)
    problems = compare_files(manifest, listing)
    if problem := compare_tokenizer(manifest, data_dir):
        problems.append(problem)
    totals = {}
    for split in SPLITS:
        totals[split] = _Counts()
        for shard in manifest.select_shards(split):
            if shard.name in listing:
                problems += _check_shard(manifest, data_dir, shard, totals[split], progress)
    return problems or _compare_totals(manifest, totals)


def _check_shard(
    manifest: Manifest,
    data_dir: str,
    shard: Shard,
    totals: _Counts,
    progress: Callable[[int], None] | None,
) -> list[str]:
    """Check one shard, and add its records to `totals`.

    Returns:
        Up to three problems, and a line with the number of further problems.
    """
    problems: list[str] = []
    count = 0
    with storage.open_read(storage.join(data_dir, shard.name)) as file:
        stream = tfrecords.Summed(file, progress)
        try:
            records = tfrecords.read_frames(stream)
            while batch := list(islice(records, _BATCH)):
                problems += _check_batch(manifest, batch, count, totals)
                count += len(batch)
        except tfrecords.DamagedRecord as error:
            problems.append(str(error))
        else:
            if count != shard.records:
                problems.append(f"contains {count} records instead of {shard.records}")
            if stream.compute_sums()["sha256"] != shard.sha256:
                problems.append("was changed (its SHA-256 differs from the manifest)")
    totals["sequences"] += count
    shown = problems[:3] + ([f"{len(problems) - 3} more problems"] if len(problems) > 3 else [])
    return [f"{shard.name}: {problem}" for problem in shown]


def _check_batch(manifest: Manifest, batch: list[bytes], first: int, totals: _Counts) -> list[str]:
    import tensorflow as tf

    from bigbird_ja.data import parsing

    is_dynamic = manifest.masking == "dynamic"
    parse = parsing.parse_dynamic if is_dynamic else parsing.parse_static
    try:
        parsed = {
            name: value.numpy() for name, value in parse(manifest, tf.constant(batch)).items()
        }
    except (tf.errors.OpError, ValueError) as error:
        text = str(error).strip().splitlines()[0].split("} ", 1)[-1]
        return [f"records {first} to {first + len(batch) - 1} cannot be parsed: {text}"]
    tokens = parsed["tokens" if is_dynamic else "input_ids"]
    totals["used_positions"] += int((tokens != manifest.pad_id).sum())
    checks = _check_layout(manifest, tokens)
    if not ((tokens < 0) | (tokens >= manifest.vocab_size)).any():
        more_checks = _check_dynamic if is_dynamic else _check_static
        checks += more_checks(manifest, tokens, parsed)
    if not is_dynamic:
        totals["predictions"] += int((parsed["masked_lm_weights"] > 0).sum())
    return [
        f"record {first + int(np.argmax(is_bad))} {fault}"
        for fault, is_bad in checks
        if is_bad.any()
    ]


_Array = npt.NDArray[Any]
# Each problem that a record may have, with an array bool [b]: whether each record of a batch has
# the problem.
_Checks = list[tuple[str, npt.NDArray[np.bool_]]]


def _check_layout(manifest: Manifest, tokens: _Array) -> _Checks:
    ids = manifest.special_ids
    is_padding = tokens == ids["pad"]
    last = np.maximum((~is_padding).sum(1) - 1, 0)
    ends = tokens[np.arange(len(tokens)), last]
    return [
        ("has ids outside the vocabulary", ((tokens < 0) | (tokens >= manifest.vocab_size)).any(1)),
        ("has padding before text", (is_padding[:, :-1] & ~is_padding[:, 1:]).any(1)),
        ("does not begin with [CLS]", tokens[:, 0] != ids["cls"]),
        ("does not end with [SEP]", ends != ids["sep"]),
    ]


def _check_dynamic(manifest: Manifest, tokens: _Array, parsed: dict[str, _Array]) -> _Checks:
    rule = manifest.make_rule()
    ordinary = masking.is_ordinary(tokens, rule)
    is_padding = tokens == manifest.pad_id
    labels = parsed["next_sentence_labels"]
    return [
        ("predicts nothing", ~ordinary.any(1)),
        ("contains [MASK]", (tokens == rule.mask_id).any(1)),
        ("has word starts in its padding", (parsed["word_starts"] & is_padding).any(1)),
        ("has a next-sentence label other than 0 and 1", (labels < 0) | (labels > 1)),
    ]


def _check_static(manifest: Manifest, tokens: _Array, parsed: dict[str, _Array]) -> _Checks:
    positions, ids = parsed["masked_lm_positions"], parsed["masked_lm_ids"]
    is_target = parsed["masked_lm_weights"] > 0
    inside = (positions >= 0) & (positions < manifest.seq_length)
    at = np.take_along_axis(tokens, np.where(inside, positions, 0).astype(np.int64), 1)
    repeats = (np.diff(positions, axis=1) <= 0) & is_target[:, 1:]
    outside = (ids < 0) | (ids >= manifest.vocab_size)
    special = ~masking.is_ordinary(np.where(outside, 0, ids), manifest.make_rule())
    return [
        ("predicts nothing", ~is_target.any(1)),
        ("predicts outside the sequence", (~inside & is_target).any(1)),
        ("predicts padding", ((at == manifest.pad_id) & is_target).any(1)),
        ("predicts an id outside the vocabulary", outside.any(1)),
        ("has segment ids other than 0 and 1", (parsed["segment_ids"] >> 1 != 0).any(1)),
        ("predicts a special token", (special & is_target).any(1)),
        ("predicts a position twice or out of order", repeats.any(1)),
    ]


def _compare_totals(manifest: Manifest, totals: dict[str, _Counts]) -> list[str]:
    problems = []
    for split, counted in totals.items():
        stated = getattr(manifest, split)
        names = ["sequences", "used_positions"]
        for name in [*names, "predictions"] if manifest.masking == "static" else names:
            number, expected = counted[name], getattr(stated, name)
            if number != expected:
                words = name.replace("_", " ")
                problems.append(f"{split}: {number} {words} instead of {expected}")
    return problems
