"""Verifies a data set and shows what is in it.

Reads every record of --data_dir (ten seconds to start, then some 20 MB a second; nothing is
changed): checksums, counts, lengths, ids against the tokenizer, and that every record predicts
something. Prints density, lengths, documents per sequence, tokens per epoch and a masked example.
Exit status 2 if anything is wrong, with one line for each problem.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.commands import data_report, data_summary
from bigbird_ja.process.console import Progress, log, printable
from bigbird_ja.process.errors import BadInput

if TYPE_CHECKING:
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.text.tokenizer import Tokenizer

EXAMPLE = "bigbird-ja check-data --data_dir data"
NEEDS = ("tensorflow",)
_COLOURS = {
    "mask": "\x1b[1;31m",
    "random": "\x1b[1;33m",
    "kept": "\x1b[1;32m",
    "special": "\x1b[2;36m",
}
_PLAIN = "\x1b[0m"
_MOST_TOKENS = 200  # of an example


def define_flags(flags: Flags) -> None:
    """Define this command's flags."""
    flags.path("data_dir", "Directory that `make-data` wrote, on disk or gs://.", required=True)
    flags.integer("examples", 1, "Masked examples to show.", low=0, high=1000)


def run(args: Args) -> dict[str, Any]:
    """Checks, prints, and fails with the list of problems if there are any."""
    began = time.monotonic()
    from bigbird_ja.data import manifest as manifest_lib

    manifest = manifest_lib.load(args.data_dir)
    from bigbird_ja.data.check import check  # imports TensorFlow: only where there is data

    total = sum(shard.bytes for shard in manifest.every_shard)
    with Progress(total, "B") as progress:
        problems = [*map(printable, check(manifest, args.data_dir, progress.update))]
    results = {
        **data_summary(manifest, time.monotonic() - began),
        "tokens_per_epoch": manifest.train.tokens * manifest.dupe_factor,
        "problems": problems,
    }
    print(data_report(manifest, results, args.data_dir))
    if problems:
        for problem in problems:
            log(f"problem: {problem}")
        raise BadInput(
            f"{args.data_dir}: {len(problems)} problems, the first: {problems[0]}: make the data"
            " again with --overwrite, or copy the shard again",
            results=results,
        )
    if args.examples and manifest.tokenizer_sha256:
        _show_examples(manifest, args.data_dir, args.examples, sys.stdout.isatty())
    return results


def _show_examples(manifest: Manifest, data_dir: str, count: int, colour: bool) -> None:
    """Prints the first train records, masked."""
    import numpy as np
    import tensorflow as tf

    from bigbird_ja import storage
    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.data import masking, parsing, tfrecords
    from bigbird_ja.text.load import tokenizer_of

    path = storage.join(data_dir, manifest_lib.TOKENIZER_NAME)
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
    legend = ", ".join(_painted(text, kind, colour) for kind, text in names.items())
    print(f"masked examples: {legend}; words are divided by |")
    for i in range(len(records)):
        columns = (tokens[i], masked["input_ids"][i], starts[i], is_target[i])
        print(_masked_text(zip(*columns, strict=True), tokenizer, manifest, colour))


def _masked_text(
    record: Iterable[tuple[int, int, bool, bool]],
    tokenizer: Tokenizer,
    manifest: Manifest,
    colour: bool,
) -> str:
    """Show one record, masked, as text.

    Args:
        record: for each position the token before and after masking, whether it starts a word, and
            whether it is to be predicted.
        tokenizer: for the names of the tokens.
        manifest: of the data set.
        colour: whether to write ANSI colors.
    """
    special = set(manifest.special_ids.values())
    parts: list[str] = []
    for token, now, starts_word, is_target in islice(record, _MOST_TOKENS):
        if token == manifest.pad_id:
            break
        if parts and starts_word:
            parts.append("|")
        piece, other = (printable(tokenizer.pieces[i]) for i in (token, now))
        if not is_target:
            parts.append(_painted(piece, "special" if token in special else "", colour))
        elif now == manifest.special_ids["mask"]:
            parts.append(_painted(f"[MASK]({piece})", "mask", colour))
        elif now == token:
            parts.append(_painted(f"{piece}=", "kept", colour))
        else:
            parts.append(_painted(f"{other}!({piece})", "random", colour))
    return "".join(parts)


def _painted(text: str, kind: str, colour: bool) -> str:
    return f"{_COLOURS[kind]}{text}{_PLAIN}" if colour and kind else text
