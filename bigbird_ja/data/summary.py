"""Summary of a data set, as `make-data` and `check-data` show it."""

from __future__ import annotations

from typing import Any

from bigbird_ja.data.manifest import Manifest
from bigbird_ja.process.console import human_bytes, human_count, human_time, log, table

_MOST_UNKNOWN = 0.01  # share of tokens above which a data set is warned of


def data_summary(manifest: Manifest, seconds: float) -> dict[str, Any]:
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
        "unknown_rate": manifest.unknown_rate,
        "train_sequences": manifest.train.sequences,
        "eval_sequences": manifest.eval.sequences,
        "bytes": sum(s.bytes for s in manifest.every_shard),
        "fingerprint": manifest.fingerprint,
    }


def data_report(manifest: Manifest, results: dict[str, Any], where: str) -> str:
    """Describe a data set to people; log a warning if its tokenizer knows too little of it."""
    fragments = manifest.statistics.get("documents_per_sequence", [])
    skipped, unknown = results["skipped"], results["unknown_rate"]
    mean_fragments = sum(i * n for i, n in enumerate(fragments)) / max(1, sum(fragments))
    rows = [
        ["masks", f"{manifest.masking}, {manifest.mask_unit}, words by {manifest.word_boundaries}"],
        ["documents", f"{manifest.train.documents:,} train, {manifest.eval.documents:,} eval"],
        *([["without text", f"{skipped:,} records, left out"]] if skipped is not None else []),
        ["tokens per epoch", human_count(manifest.train.tokens * manifest.dupe_factor)],
        *([["unknown tokens", f"{unknown:.4%}"]] if unknown is not None else []),
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
    if unknown is not None and unknown > _MOST_UNKNOWN:
        log(
            f"warning: {unknown:.1%} of the tokens are unknown to the tokenizer, and nothing can be"
            " learned from these: is it a tokenizer of another language?"
        )
    lengths = manifest.statistics.get("document_tokens", [])
    most = max(lengths, default=1)
    bars = [
        [f"{2**i:,} to {2 ** (i + 1) - 1:,} tokens", n, "#" * max(1, round(40 * n / most))]
        for i, n in enumerate(lengths)
        if n
    ]
    tables = [table(rows, ["what", "value"]), table(bars, ["length of documents", "number", ""])]
    return f"{where}\n" + "\n\n".join(tables)
