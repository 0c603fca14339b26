"""`check-data`: every byte and every record of a data set against its manifest.

Each shard's size, SHA-256, record checksums and count; each record's lengths, ids, layout and
targets; the tokenizer; the totals. A problem is one line that names the shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import masking, records, records_tf, verify
from bigbird_ja.data.manifest import LENGTH_BINS, MOST_FRAGMENTS, Manifest, Shard
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import tokenizer as tokenizer_lib

_BATCH = 64


@dataclass
class Found:
    """What the records hold."""

    records: int = 0
    used_positions: int = 0
    predictions: int = 0
    densities: list[float] = field(default_factory=list)  # of each record
    fragments: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(MOST_FRAGMENTS, np.int64)
    )  # records by number of packed documents, the last: or more
    fragment_tokens: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(LENGTH_BINS, np.int64)
    )  # packed documents by the power of two of their length
    corpora: Counter[int] = field(default_factory=Counter)  # records by the corpus they are of


def full_check(
    manifest: Manifest, data_dir: str, progress: Callable[[int], None] | None = None
) -> tuple[list[str], dict[str, Found]]:
    """Checks everything.

    Args:
        manifest: of the data set.
        data_dir: on disk or gs://.
        progress: told the bytes that were read since the last call.

    Returns:
        The problems (empty when all is well) and what each split holds.
    """
    listing = storage.list_stats(data_dir)
    problems = verify.file_problems(manifest, listing) + _tokenizer_problems(manifest, data_dir)
    found = {}
    for split in verify.SPLITS:
        found[split] = Found()
        for shard in manifest.shards(split):
            if shard.name in listing:
                problems += _check_shard(manifest, data_dir, shard, found[split], progress)
    if not problems:
        problems += _total_problems(manifest, found)
    return problems, found


def _tokenizer_problems(manifest: Manifest, data_dir: str) -> list[str]:
    if problem := verify.tokenizer_problem(manifest, data_dir):
        return [problem]
    if manifest.adopted:
        return []
    try:
        path = storage.join(data_dir, manifest_lib.TOKENIZER_NAME)
        tokenizer = tokenizer_lib.load(path)
    except BadInput as error:
        return [str(error)]
    if tokenizer.vocab_size != manifest.vocab_size or vars(tokenizer.special) != dict(
        manifest.special_ids
    ):
        return [f"{manifest_lib.TOKENIZER_NAME} has other ids than the manifest states"]
    return []


def _check_shard(
    manifest: Manifest,
    data_dir: str,
    shard: Shard,
    found: Found,
    progress: Callable[[int], None] | None,
) -> list[str]:
    problems: list[str] = []
    count = 0
    with storage.open_read(storage.join(data_dir, shard.name)) as file:
        stream = records.Summed(file, progress)
        try:
            for batch in _batched(records.frames(stream)):
                problems += _check_batch(manifest, batch, count, found)
                count += len(batch)
        except records.DamagedRecord as error:
            problems.append(str(error))
        else:
            if count != shard.records:
                problems.append(f"holds {count} records instead of {shard.records}")
            if stream.sums()["sha256"] != shard.sha256:
                problems.append("is not the file that was made (its SHA-256 differs)")
    found.records += count
    shown = problems[:3] + ([f"{len(problems) - 3} more problems"] if len(problems) > 3 else [])
    return [f"{shard.name}: {problem}" for problem in shown]


def _batched(stream: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for record in stream:
        batch.append(record)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _check_batch(manifest: Manifest, batch: list[bytes], first: int, found: Found) -> list[str]:
    parse = records_tf.parse_dynamic if manifest.masking == "dynamic" else records_tf.parse_static
    try:
        parsed = {
            name: value.numpy() for name, value in parse(manifest, tf.constant(batch)).items()
        }
    except (tf.errors.OpError, ValueError) as error:
        text = str(error).strip().splitlines()[0].split("} ", 1)[-1]
        return [f"records {first} to {first + len(batch) - 1} are not of this data set: {text}"]
    tokens = parsed["tokens" if manifest.masking == "dynamic" else "input_ids"]
    checks = _layout_checks(manifest, tokens)
    if not ((tokens < 0) | (tokens >= manifest.vocab_size)).any():
        if manifest.masking == "dynamic":
            checks += _dynamic_checks(manifest, tokens, parsed)
        else:
            checks += _static_checks(manifest, tokens, parsed, found)
    if manifest.mixture:
        checks.append(("is of no corpus in the manifest", _is_of_none(manifest, parsed)))
        found.corpora.update(parsed["corpus_ids"].tolist())
    _count(manifest, tokens, found)
    return [
        f"record {first + int(np.argmax(is_bad))} {what}" for what, is_bad in checks if is_bad.any()
    ]


Checks = list[tuple[str, npt.NDArray[np.bool_]]]  # what is wrong, and bool [b]: with which records


def _is_of_none(manifest: Manifest, parsed: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    corpora = parsed["corpus_ids"]
    return (corpora < 0) | (corpora >= len(manifest.corpora))


def _layout_checks(manifest: Manifest, tokens: npt.NDArray[Any]) -> Checks:
    ids = manifest.special_ids
    is_padding = tokens == ids["pad"]
    checks = [
        ("has ids outside the vocabulary", ((tokens < 0) | (tokens >= manifest.vocab_size)).any(1)),
        ("has padding before text", (is_padding[:, :-1] & ~is_padding[:, 1:]).any(1)),
        ("does not begin with [CLS]", tokens[:, 0] != ids["cls"]),
    ]
    if not manifest.adopted:
        last = np.maximum((~is_padding).sum(1) - 1, 0)
        ends = tokens[np.arange(len(tokens)), last]
        checks.append(("does not end with [SEP]", ends != ids["sep"]))
    return checks


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
    manifest: Manifest,
    tokens: npt.NDArray[Any],
    parsed: dict[str, npt.NDArray[Any]],
    found: Found,
) -> Checks:
    positions, ids = parsed["masked_lm_positions"], parsed["masked_lm_ids"]
    is_target = parsed["masked_lm_weights"] > 0
    found.predictions += int(is_target.sum())
    inside = (positions >= 0) & (positions < manifest.seq_length)
    safe = np.where(inside, positions, 0)
    at = np.take_along_axis(tokens, safe.astype(np.int64), 1)
    repeats = (np.diff(positions, axis=1) <= 0) & is_target[:, 1:]
    checks: Checks = [
        ("predicts nothing", ~is_target.any(1)),
        ("predicts outside the sequence", (~inside & is_target).any(1)),
        ("predicts padding", ((at == manifest.pad_id) & is_target).any(1)),
        (
            "predicts an id outside the vocabulary",
            ((ids < 0) | (ids >= manifest.vocab_size)).any(1),
        ),
        ("has segment ids other than 0 and 1", (parsed["segment_ids"] >> 1 != 0).any(1)),
    ]
    if not manifest.adopted:
        ordinary = masking.is_ordinary(ids, manifest.rule())
        checks += [
            ("predicts a special token", (~ordinary & is_target).any(1)),
            ("predicts a position twice or out of order", repeats.any(1)),
        ]
    return checks


def _count(manifest: Manifest, tokens: npt.NDArray[Any], found: Found) -> None:
    is_text = tokens != manifest.pad_id
    used = is_text.sum(1)
    found.used_positions += int(used.sum())
    found.densities += (used / manifest.seq_length).tolist()
    ends = tokens == manifest.special_ids["sep"]
    fragments = np.minimum(ends.sum(1), MOST_FRAGMENTS - 1)
    found.fragments += np.bincount(fragments, minlength=MOST_FRAGMENTS)
    row, at = np.nonzero(ends)
    before = np.where(np.r_[True, row[1:] != row[:-1]], 0, np.r_[0, at[:-1]])
    lengths = np.maximum(at - before - 1, 1)
    bins = np.minimum(np.log2(lengths).astype(int), LENGTH_BINS - 1)
    found.fragment_tokens += np.bincount(bins, minlength=LENGTH_BINS)


def _total_problems(manifest: Manifest, found: dict[str, Found]) -> list[str]:
    problems = []
    for split, counted in found.items():
        stated = getattr(manifest, split)
        pairs = [("sequences", counted.records), ("used_positions", counted.used_positions)]
        if manifest.masking == "static":
            pairs.append(("predictions", counted.predictions))
        for place, corpus in enumerate(manifest.corpora):
            there, said = counted.corpora[place], getattr(corpus, split).sequences
            if there != said:
                problems.append(
                    f"{split}: {there} sequences of {corpus.name}, the manifest states {said}"
                )
        for name, number in pairs:
            if number != getattr(stated, name):
                problems.append(
                    f"{split}: {number} {name.replace('_', ' ')}, the manifest states"
                    f" {getattr(stated, name)}"
                )
    return problems
