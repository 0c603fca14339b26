"""Compare every byte and record of a data set with its manifest, and show what is in it.

Each shard's size, SHA-256, record checksums and count; each record's lengths, ids, layout and
targets; the tokenizer; the totals. A problem is one line that names the shard.
"""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import masking, tfrecords, verify
from bigbird_ja.data.manifest import Manifest, Shard
from bigbird_ja.process.console import human_bytes, human_count, human_time, table

_BATCH = 64


# Totals of a split's records, by the names that `Split` has; `predictions` of static ones alone.
_Counts = Counter[str]


def check(
    manifest: Manifest, data_dir: str, progress: Callable[[int], None] | None = None
) -> list[str]:
    """Checks everything.

    Args:
        manifest: of the data set.
        data_dir: on disk or gs://.
        progress: called with the bytes that were read since the last call.

    Returns:
        The problems; empty when all is well.
    """
    listing = storage.list_stats(data_dir)
    problems = verify.file_problems(manifest, listing)
    if problem := verify.tokenizer_problem(manifest, data_dir):
        problems.append(problem)
    totals = {}
    for split in manifest_lib.SPLITS:
        totals[split] = _Counts()
        for shard in manifest.shards(split):
            if shard.name in listing:
                problems += _check_shard(manifest, data_dir, shard, totals[split], progress)
    return problems or _total_problems(manifest, totals)


def _check_shard(
    manifest: Manifest,
    data_dir: str,
    shard: Shard,
    totals: _Counts,
    progress: Callable[[int], None] | None,
) -> list[str]:
    """Return at most three problems of one shard; add its records to `totals`."""
    problems: list[str] = []
    count = 0
    with storage.open_read(storage.join(data_dir, shard.name)) as file:
        stream = tfrecords.Summed(file, progress)
        try:
            records = tfrecords.frames(stream)
            while batch := list(islice(records, _BATCH)):
                problems += _check_batch(manifest, batch, count, totals)
                count += len(batch)
        except tfrecords.DamagedRecord as error:
            problems.append(str(error))
        else:
            if count != shard.records:
                problems.append(f"holds {count} records instead of {shard.records}")
            if stream.sums()["sha256"] != shard.sha256:
                problems.append("is not the file that was made (its SHA-256 differs)")
    totals["sequences"] += count
    shown = problems[:3] + ([f"{len(problems) - 3} more problems"] if len(problems) > 3 else [])
    return [f"{shard.name}: {problem}" for problem in shown]


def _check_batch(manifest: Manifest, batch: list[bytes], first: int, totals: _Counts) -> list[str]:
    import tensorflow as tf

    is_dynamic = manifest.masking == "dynamic"
    parse = tfrecords.parse_dynamic if is_dynamic else tfrecords.parse_static
    try:
        parsed = {
            name: value.numpy() for name, value in parse(manifest, tf.constant(batch)).items()
        }
    except (tf.errors.OpError, ValueError) as error:
        text = str(error).strip().splitlines()[0].split("} ", 1)[-1]
        return [f"records {first} to {first + len(batch) - 1} are not of this data set: {text}"]
    tokens = parsed["tokens" if is_dynamic else "input_ids"]
    totals["used_positions"] += int((tokens != manifest.pad_id).sum())
    checks = _layout_checks(manifest, tokens)
    if not ((tokens < 0) | (tokens >= manifest.vocab_size)).any():
        if is_dynamic:
            checks += _dynamic_checks(manifest, tokens, parsed)
        else:
            checks += _static_checks(manifest, tokens, parsed)
            totals["predictions"] += int((parsed["masked_lm_weights"] > 0).sum())
    return [
        f"record {first + int(np.argmax(is_bad))} {fault}"
        for fault, is_bad in checks
        if is_bad.any()
    ]


Checks = list[tuple[str, npt.NDArray[np.bool_]]]  # a problem, and bool [b] of records


def _layout_checks(manifest: Manifest, tokens: npt.NDArray[Any]) -> Checks:
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


def _dynamic_checks(
    manifest: Manifest, tokens: npt.NDArray[Any], parsed: dict[str, npt.NDArray[Any]]
) -> Checks:
    rule = manifest.rule()
    ordinary = masking.is_ordinary(tokens, rule)
    is_padding = tokens == manifest.pad_id
    labels = parsed["next_sentence_labels"]
    return [
        ("predicts nothing", ~ordinary.any(1)),
        ("holds [MASK]", (tokens == rule.mask_id).any(1)),
        ("marks words in its padding", (parsed["word_starts"] & is_padding).any(1)),
        ("has a next-sentence label other than 0 and 1", (labels < 0) | (labels > 1)),
    ]


def _static_checks(
    manifest: Manifest, tokens: npt.NDArray[Any], parsed: dict[str, npt.NDArray[Any]]
) -> Checks:
    positions, ids = parsed["masked_lm_positions"], parsed["masked_lm_ids"]
    is_target = parsed["masked_lm_weights"] > 0
    inside = (positions >= 0) & (positions < manifest.seq_length)
    at = np.take_along_axis(tokens, np.where(inside, positions, 0).astype(np.int64), 1)
    repeats = (np.diff(positions, axis=1) <= 0) & is_target[:, 1:]
    outside = (ids < 0) | (ids >= manifest.vocab_size)
    special = ~masking.is_ordinary(ids, manifest.rule())
    return [
        ("predicts nothing", ~is_target.any(1)),
        ("predicts outside the sequence", (~inside & is_target).any(1)),
        ("predicts padding", ((at == manifest.pad_id) & is_target).any(1)),
        ("predicts an id outside the vocabulary", outside.any(1)),
        ("has segment ids other than 0 and 1", (parsed["segment_ids"] >> 1 != 0).any(1)),
        ("predicts a special token", (special & is_target).any(1)),
        ("predicts a position twice or out of order", repeats.any(1)),
    ]


def _total_problems(manifest: Manifest, totals: dict[str, _Counts]) -> list[str]:
    problems = []
    for split, counted in totals.items():
        stated = getattr(manifest, split)
        names = ["sequences", "used_positions"]
        for name in [*names, "predictions"] if manifest.masking == "static" else names:
            number, expected = counted[name], getattr(stated, name)
            if number != expected:
                words = name.replace("_", " ")
                problems.append(f"{split}: {number} {words}, the manifest states {expected}")
    return problems


# --- for people and scripts ---


def summary(manifest: Manifest, seconds: float) -> dict[str, Any]:
    """Collect the `--json` results that `make-data` and `check-data` share."""
    return {
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "sequences": manifest.sequences,
        "shards": len(manifest.every_shard),
        "density": manifest.density,
        "mean_predictions": manifest.mean_predictions,
        "seconds": round(seconds, 3),
        "skipped": manifest.statistics.get("skipped"),
        "train_sequences": manifest.train.sequences,
        "eval_sequences": manifest.eval.sequences,
        "bytes": sum(s.bytes for s in manifest.every_shard),
        "fingerprint": manifest.fingerprint,
    }


def report(manifest: Manifest, results: dict[str, Any], where: str) -> str:
    """Describe a data set to people."""
    fragments = manifest.statistics.get("documents_per_sequence", [])
    skipped = results["skipped"]
    mean_fragments = sum(i * n for i, n in enumerate(fragments)) / max(1, sum(fragments))
    rows = [
        ["masks", f"{manifest.masking}, {manifest.mask_unit}, words by {manifest.word_boundaries}"],
        ["documents", f"{manifest.train.documents:,} train, {manifest.eval.documents:,} eval"],
        *([["without text", f"{skipped:,} records, left out"]] if skipped is not None else []),
        ["tokens per epoch", human_count(manifest.train.tokens * manifest.dupe_factor)],
        ["sequences", f"{manifest.train.sequences:,} train, {manifest.eval.sequences:,} eval"],
        ["shards", f"{len(manifest.train_shards)} train, {len(manifest.eval_shards)} eval"],
        ["density", f"{manifest.density:.2%} of {manifest.seq_length:,} positions are tokens"],
        ["predictions", f"{manifest.mean_predictions:.1f} per sequence"],
        ["documents per sequence", f"{mean_fragments:.2f} on average"],
        ["next sentence", "yes" if manifest.nsp else "no"],
        ["readers", f"{manifest.num_readers} (hosts must divide them)"],
        ["size", human_bytes(results["bytes"])],
        ["time", human_time(results["seconds"])],
    ]
    lengths = manifest.statistics.get("document_tokens", [])
    most = max(lengths, default=1)
    bars = [
        [f"{2**i:,} to {2 ** (i + 1) - 1:,} tokens", n, "#" * max(1, round(40 * n / most))]
        for i, n in enumerate(lengths)
        if n
    ]
    tables = [table(rows, ["what", "value"]), table(bars, ["length of documents", "number", ""])]
    return f"{where}\n" + "\n\n".join(tables)
