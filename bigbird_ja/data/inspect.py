"""Inspection of a data set: the check of every record, a summary, and masked examples."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from bigbird_ja import storage
from bigbird_ja.data import masking, parsing, tfrecords
from bigbird_ja.data.check import check
from bigbird_ja.data.manifest import TOKENIZER_NAME, Manifest
from bigbird_ja.data.summary import data_report, data_summary
from bigbird_ja.process.console import Progress, log, printable
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text.load import tokenizer_of
from bigbird_ja.text.tokenizer import Tokenizer

_COLORS = {
    "mask": "\x1b[1;31m",
    "random": "\x1b[1;33m",
    "kept": "\x1b[1;32m",
    "special": "\x1b[2;36m",
}
_PLAIN = "\x1b[0m"
_MOST_TOKENS = 200  # maximum per example


def inspect(manifest: Manifest, data_dir: str, examples: int) -> dict[str, Any]:
    """Check a data set, print a summary, and return the `--json` results.

    Args:
        manifest: manifest of the data set.
        data_dir: folder of the data set, on disk or gs://.
        examples: number of masked examples to print.

    Raises:
        BadInput: the data set has problems; the results list them.
    """
    began = time.monotonic()
    total = sum(shard.bytes for shard in manifest.every_shard)
    with Progress(total, "B") as progress:
        problems = [*map(printable, check(manifest, data_dir, progress.update))]
    results = {
        **data_summary(manifest, time.monotonic() - began),
        "tokens_per_epoch": manifest.train.tokens * manifest.dupe_factor,
        "problems": problems,
    }
    print(data_report(manifest, results, data_dir))
    if problems:
        for problem in problems:
            log(f"problem: {problem}")
        raise BadInput(
            f"{data_dir}: {len(problems)} problems, the first: {problems[0]}: make the data"
            " again with --overwrite, or copy the shard again",
            results=results,
        )
    if examples and manifest.tokenizer_sha256:
        _show_examples(manifest, data_dir, examples, sys.stdout.isatty())
    return results


def _show_examples(manifest: Manifest, data_dir: str, count: int, color: bool) -> None:
    """Print the first train records, masked."""
    path = storage.join(data_dir, TOKENIZER_NAME)
    tokenizer = tokenizer_of(storage.read_bytes(path), path)
    with storage.open_read(storage.join(data_dir, manifest.train_shards[0].name)) as file:
        records = list(islice(tfrecords.frames(file), count))
    serialized = tf.constant(records)
    if manifest.masking == "dynamic":
        parsed = parsing.parse_dynamic(manifest, serialized)
        tokens, starts = parsed["tokens"].numpy(), parsed["word_starts"].numpy()
        masked = masking.mask(tokens, starts, 0, np.arange(len(records)), 0, manifest.rule())
    else:
        masked = {k: v.numpy() for k, v in parsing.parse_static(manifest, serialized).items()}
        tokens = masked["input_ids"].copy()
        starts = np.zeros(tokens.shape, bool)  # static records do not store words
    row, slot = np.nonzero(masked["masked_lm_weights"] > 0)
    at = masked["masked_lm_positions"][row, slot]
    tokens[row, at] = masked["masked_lm_ids"][row, slot]
    is_target = np.zeros(tokens.shape, bool)
    is_target[row, at] = True
    names = {"mask": "[MASK](was)", "random": "random!(was)", "kept": "kept="}
    legend = ", ".join(_painted(text, kind, color) for kind, text in names.items())
    print(f"masked examples: {legend}; words are divided by |")
    for i in range(len(records)):
        columns = (tokens[i], masked["input_ids"][i], starts[i], is_target[i])
        print(_masked_text(zip(*columns, strict=True), tokenizer, manifest, color))


def _masked_text(
    record: Iterable[tuple[int, int, bool, bool]],
    tokenizer: Tokenizer,
    manifest: Manifest,
    color: bool,
) -> str:
    """Show one record, masked, as text.

    Args:
        record: for each position the token before and after masking, whether it starts a word, and
            whether it is to be predicted.
        tokenizer: for the names of the tokens.
        manifest: manifest of the data set.
        color: whether to write ANSI colors.
    """
    special = set(manifest.special_ids.values())
    parts: list[str] = []
    for token, now, starts_word, is_target in islice(record, _MOST_TOKENS):
        if token == manifest.pad_id:
            break
        if parts and starts_word:
            parts.append("|")
        piece, other = (printable(tokenizer.tokens[i]) for i in (token, now))
        if not is_target:
            parts.append(_painted(piece, "special" if token in special else "", color))
        elif now == manifest.special_ids["mask"]:
            parts.append(_painted(f"[MASK]({piece})", "mask", color))
        elif now == token:
            parts.append(_painted(f"{piece}=", "kept", color))
        else:
            parts.append(_painted(f"{other}!({piece})", "random", color))
    return "".join(parts)


def _painted(text: str, kind: str, color: bool) -> str:
    return f"{_COLORS[kind]}{text}{_PLAIN}" if color and kind else text
