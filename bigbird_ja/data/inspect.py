"""Summary of a data set, check of every record, and masked examples."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import masking, tfrecords
from bigbird_ja.data.check import check
from bigbird_ja.data.manifest import TOKENIZER_NAME, Manifest
from bigbird_ja.errors import BadInput
from bigbird_ja.process import console
from bigbird_ja.text.load import parse_tokenizer
from bigbird_ja.text.tokenizer import Tokenizer

_COLORS = {
    "mask": "\x1b[1;31m",
    "random": "\x1b[1;33m",
    "kept": "\x1b[1;32m",
    "special": "\x1b[2;36m",
}
_PLAIN = "\x1b[0m"
# Maximum number of tokens of an example.
_MAX_TOKENS = 200
# Share of unknown tokens above which a warning is shown.
_MAX_UNKNOWN = 0.01
# Documents that a user may want to clean: key in the results, title of the report's row, advice.
_TO_CLEAN = (
    ("duplicates", "duplicates", " that occurred before"),
    ("html_documents", "HTML tags", ": extract their text"),
    ("fullwidth_space_documents", "full-width spaces", ""),
)


@dataclass(frozen=True, kw_only=True)
class DataSetResult:
    """Figures of a data set."""

    documents: int
    tokens: int
    sequences: int
    train_sequences: int
    eval_sequences: int
    shards: int
    bytes: int
    density: float  # Share of positions that are not padding.
    mean_predictions: float  # Mean number of predictions per sequence.
    skipped: int  # Records without text.
    duplicates: int  # Documents that repeat an earlier one.
    html_documents: int
    fullwidth_space_documents: int
    unknown_rate: float  # Share of tokens that are unknown.
    unknown_characters: str  # The most frequent characters without a token.
    fingerprint: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class DataCheckResult(DataSetResult):
    """Figures of a data set whose records were checked."""

    tokens_per_epoch: int
    problems: list[str]


def summarize_data(manifest: Manifest, seconds: float) -> DataSetResult:
    """Return the figures of a data set."""
    predictions = manifest.train.predictions + manifest.eval.predictions
    counted = manifest.statistics
    return DataSetResult(
        documents=manifest.documents,
        tokens=manifest.tokens,
        sequences=manifest.sequences,
        train_sequences=manifest.train.sequences,
        eval_sequences=manifest.eval.sequences,
        shards=len(manifest.every_shard),
        bytes=sum(s.bytes for s in manifest.every_shard),
        density=manifest.density,
        mean_predictions=predictions / max(1, manifest.sequences),
        skipped=counted.skipped,
        duplicates=counted.duplicates,
        html_documents=counted.html_documents,
        fullwidth_space_documents=counted.fullwidth_space_documents,
        unknown_rate=round(counted.unknown / max(1, manifest.tokens), 6),
        unknown_characters=counted.unknown_characters,
        fingerprint=manifest.fingerprint,
        seconds=round(seconds, 3),
    )


def format_report(manifest: Manifest, result: DataSetResult, where: str) -> str:
    """Format the report about a data set, and log warnings."""
    fragments = manifest.statistics.documents_per_sequence
    unknown = result.unknown_rate
    mean_fragments = sum(i * n for i, n in enumerate(fragments)) / max(1, sum(fragments))
    rows = [
        ["masks", f"{manifest.masking}, {manifest.mask_unit}, words by {manifest.word_boundaries}"],
        ["documents", f"{manifest.train.documents:,} train, {manifest.eval.documents:,} eval"],
        ["without text", f"{result.skipped:,} records, left out"],
        *(
            [what, f"{getattr(result, key):,} documents{advice}"]
            for key, what, advice in _TO_CLEAN
            if getattr(result, key)
        ),
        ["tokens per epoch", console.format_count(manifest.train.tokens * manifest.dupe_factor)],
        ["unknown tokens", f"{unknown:.4%}"],
        ["sequences", f"{manifest.train.sequences:,} train, {manifest.eval.sequences:,} eval"],
        ["shards", f"{len(manifest.train_shards)} train, {len(manifest.eval_shards)} eval"],
        ["density", f"{manifest.density:.2%} of {manifest.seq_length:,} positions are tokens"],
        ["predictions", f"{result.mean_predictions:.1f} per sequence"],
        ["documents per sequence", f"{mean_fragments:.2f} on average"],
        ["size", console.format_bytes(result.bytes)],
        ["time", console.format_time(result.seconds)],
    ]
    warnings = []
    if unknown > _MAX_UNKNOWN:
        examples = " ".join(map(console.escape_text, result.unknown_characters))
        warnings.append(
            f"{unknown:.1%} of the tokens are unknown to the tokenizer (such as"
            f" {examples}), and the model learns nothing from them. Is it a tokenizer of another"
            " language?"
        )
    if manifest.eval_fraction and not manifest.eval.sequences:
        warnings.append(
            "no document is held out, so no run can be evaluated on this data: give two documents"
            " or more, such as one per line or article"
        )
    console.warn(warnings)
    lengths = manifest.statistics.document_tokens
    most = max(lengths, default=1)
    bars = [
        [f"{2**i:,} to {2 ** (i + 1) - 1:,} tokens", n, "#" * max(1, round(40 * n / most))]
        for i, n in enumerate(lengths)
        if n
    ]
    tables = [
        console.table(rows, ["what", "value"]),
        console.table(bars, ["length of documents", "number", ""]),
    ]
    return f"{where}\n" + "\n\n".join(tables)


def check_data(*, data_dir: str | os.PathLike[str]) -> DataCheckResult:
    """Compare every record of a data set with the manifest, and return figures of the data set.

    Args:
        data_dir: folder of the data set, on disk or gs://.

    Raises:
        BadInput: There is no data set, or the data set has problems. The error's attribute
            `results` contains the problems.
    """
    place = os.fspath(data_dir)
    manifest = manifest_lib.load(place)
    began = time.monotonic()
    # TensorFlow takes seconds to import, so it is imported before the progress line starts.
    from bigbird_ja.data import parsing  # noqa: F401

    total = sum(shard.bytes for shard in manifest.every_shard)
    with console.Progress(total, "B") as progress:
        problems = [*map(console.escape_text, check(manifest, place, progress.update))]
    result = DataCheckResult(
        **dataclasses.asdict(summarize_data(manifest, time.monotonic() - began)),
        tokens_per_epoch=manifest.train.tokens * manifest.dupe_factor,
        problems=problems,
    )
    if problems:
        for problem in problems:
            console.log(f"problem: {problem}")
        raise BadInput(
            f"{place}: {len(problems)} problems, the first is {problems[0]}. Copy the shard again,"
            " or make the data again",
            results=dataclasses.asdict(result),
        )
    return result


def format_examples(manifest: Manifest, data_dir: str, count: int, color: bool) -> list[str]:
    """Return lines of text: a legend, and the first `count` train records with marked masks.

    There are no lines if `count` is 0 or if the data set has no tokenizer.
    """
    if not count or not manifest.tokenizer_sha256:
        return []
    import tensorflow as tf

    from bigbird_ja.data import parsing

    path = storage.join(data_dir, TOKENIZER_NAME)
    tokenizer = parse_tokenizer(storage.read_bytes(path), path)
    with storage.open_read(storage.join(data_dir, manifest.train_shards[0].name)) as file:
        records = list(islice(tfrecords.read_frames(file), count))
    serialized = tf.constant(records)
    if manifest.masking == "dynamic":
        parsed = parsing.parse_dynamic(manifest, serialized)
        tokens, starts = parsed["tokens"].numpy(), parsed["word_starts"].numpy()
        masked = masking.mask(tokens, starts, 0, np.arange(len(records)), 0, manifest.make_rule())
    else:
        masked = {k: v.numpy() for k, v in parsing.parse_static(manifest, serialized).items()}
        tokens = masked["input_ids"].copy()
        starts = np.zeros(tokens.shape, bool)  # Static records do not store word starts.
    row, slot = np.nonzero(masked["masked_lm_weights"] > 0)
    at = masked["masked_lm_positions"][row, slot]
    tokens[row, at] = masked["masked_lm_ids"][row, slot]
    is_target = np.zeros(tokens.shape, bool)
    is_target[row, at] = True
    names = {"mask": "[MASK](was)", "random": "random!(was)", "kept": "kept="}
    legend = ", ".join(_paint(text, kind, color) for kind, text in names.items())
    lines = [f"masked examples: {legend}; words are divided by |"]
    for i in range(len(records)):
        columns = (tokens[i], masked["input_ids"][i], starts[i], is_target[i])
        lines.append(_format_masked_text(zip(*columns, strict=True), tokenizer, manifest, color))
    return lines


def _format_masked_text(
    record: Iterable[tuple[int, int, bool, bool]],
    tokenizer: Tokenizer,
    manifest: Manifest,
    color: bool,
) -> str:
    """Format one masked record.

    Args:
        record: for each position, a tuple of the token before masking, the token after masking,
            whether the position starts a word, and whether it is predicted.
        tokenizer: tokenizer of the data set.
        manifest: manifest of the data set.
        color: whether to write ANSI colors.
    """
    special = set(manifest.special_ids.values())
    parts: list[str] = []
    for token, now, starts_word, is_target in islice(record, _MAX_TOKENS):
        if token == manifest.pad_id:
            break
        if parts and starts_word:
            parts.append("|")
        text, other = (console.escape_text(tokenizer.tokens[i]) for i in (token, now))
        if not is_target:
            parts.append(_paint(text, "special" if token in special else "", color))
        elif now == manifest.special_ids["mask"]:
            parts.append(_paint(f"[MASK]({text})", "mask", color))
        elif now == token:
            parts.append(_paint(f"{text}=", "kept", color))
        else:
            parts.append(_paint(f"{other}!({text})", "random", color))
    return "".join(parts)


def _paint(text: str, kind: str, color: bool) -> str:
    return f"{_COLORS[kind]}{text}{_PLAIN}" if color and kind else text
