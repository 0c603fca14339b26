"""Masked-LM loss and accuracy on held-out records, with the same masks for every model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.data.manifest import TOKENIZER_NAME, Manifest
from bigbird_ja.evaluation.preview import Arrays, preview

if TYPE_CHECKING:
    from bigbird_ja.model.forward import Model

# Tokens in one batch: few enough for a laptop's memory, and enough to use a GPU well.
_TOKENS_PER_BATCH = 16_384
_MAX_BATCH = 32
NO_DISTANCE = -1


@dataclass(frozen=True)
class BatchShare:
    """Batches that one of `count` processes evaluates.

    These are the batches with the numbers `index`, `index + count`, `index + 2 * count`, ...
    """

    index: int = 0
    count: int = 1
    # Function that collects the arrays of all processes in one process. In the other processes, it
    # returns None.
    gather: Callable[[Arrays], Sequence[Arrays] | None] = lambda arrays: [arrays]


def choose_batch_size(seq_length: int) -> int:
    """Return the number of records per batch, which does not affect the results."""
    return max(1, min(_MAX_BATCH, _TOKENS_PER_BATCH // seq_length))


def evaluate_model(
    forward: Model,
    data_dir: str,
    manifest: Manifest,
    max_batches: int | None = None,
    tick: Callable[[], None] = lambda: None,
    part: BatchShare | None = None,
) -> dict[str, Any] | None:
    """Evaluate a model on the held-out records.

    Args:
        forward: model on a device.
        data_dir: data set, on disk or gs://.
        manifest: manifest of `data_dir`.
        max_batches: maximum number of batches of `choose_batch_size(seq_length)` records, or None
            for all records.
        tick: callback after each batch.
        part: share of this process in the batches, or None for all.

    Returns:
        A dict with the results of `summarize`, and with `examples` (the result of `preview`),
        `data_fingerprint`, `max_batches` and `seconds`. Only one process collects the arrays of all
        processes. In the other processes, the result is None.

    Raises:
        BadInput: The data set contains no held-out records.
    """
    from bigbird_ja.data import pipeline
    from bigbird_ja.text.load import parse_tokenizer

    part = part or BatchShare()
    start = time.monotonic()
    size = choose_batch_size(manifest.seq_length)
    records = pipeline.read_eval_batches(manifest, data_dir, batch_size=size)
    batches = records.enumerate()
    if max_batches:
        batches = batches.take(max_batches)
    tokenizer = None
    if manifest.tokenizer_sha256:
        path = storage.join(data_dir, TOKENIZER_NAME)
        tokenizer = parse_tokenizer(storage.read_bytes(path), path)
    measured = _measure(forward, batches.shard(part.count, part.index), manifest, tick)
    parts = part.gather(measured)
    if parts is None:
        return None
    examples = []
    if tokenizer:
        shown = next(iter(records.as_numpy_iterator()))
        examples = preview(forward, tokenizer, shown)
    names = {name for arrays in parts for name in arrays}
    collected = {name: np.concatenate([p[name] for p in parts if name in p]) for name in names}
    return {
        **summarize(collected, manifest, tokenizer.characters if tokenizer else None),
        "examples": examples,
        "data_fingerprint": manifest.fingerprint,
        "max_batches": max_batches,
        "seconds": round(time.monotonic() - start, 2),
    }


def _measure(
    forward: Model, batches: Iterable[Any], manifest: Manifest, tick: Callable[[], None]
) -> dict[str, np.ndarray]:
    """Evaluate batches, and return the arrays of `_flatten_predictions`, concatenated.

    `batches` yields pairs: the number of a batch, and the batch.
    """
    columns: dict[str, list[np.ndarray]] = {}
    for number, batch in batches:
        arrays = {name: value.numpy() for name, value in batch.items()}
        metrics = forward.compute_metrics(batch)
        first = int(number) * len(arrays["input_ids"])
        for name, values in _flatten_predictions({**arrays, **metrics}, first, manifest).items():
            columns.setdefault(name, []).append(values)
        tick()
    return {name: np.concatenate(values) for name, values in columns.items()}


def _flatten_predictions(batch: Arrays, first: int, manifest: Manifest) -> dict[str, np.ndarray]:
    """Return flat arrays by name, with a value for each prediction of a batch.

    `next_sentence_*` and `rows` (record numbers) have a value for each sequence of the batch.

    Args:
        batch: records, and the results of `forward.compute_metrics` for them.
        first: number of the batch's first record.
        manifest: manifest of the data set.
    """
    counted = batch["masked_lm_weights"] > 0
    is_record = batch["input_ids"][:, 0] != manifest.pad_id
    positions, ids = batch["masked_lm_positions"], batch["masked_lm_ids"]
    columns = {
        "loss": batch["masked_lm_losses"][counted],
        "accuracy": batch["masked_lm_correct"][counted],
        "position": positions[counted],
        "distance": measure_distances(batch["input_ids"], positions, ids)[counted],
        "id": ids[counted],
        "rows": np.flatnonzero(is_record) + first,
    }
    for name in ("next_sentence_losses", "next_sentence_correct"):
        if name in batch:
            columns[name] = batch[name][is_record]
    return columns


def summarize(
    collected: Arrays, manifest: Manifest, characters: np.ndarray | None
) -> dict[str, Any]:
    """Compute the results from flat arrays over all predictions.

    Args:
        collected: `loss`, `accuracy`, `position`, `distance`, `id` [predictions], `rows`
            [sequences], and with NSP `next_sentence_*` [sequences].
        manifest: manifest of the data set.
        characters: int [vocab_size], number of characters in each token's text, or None if unknown.

    Returns:
        `masked_lm_loss` (nats per prediction), `masked_lm_accuracy`, `perplexity`,
        `bits_per_character` (of the masked text, None if unknown), `predictions`, `sequences`,
        `by_position`, `by_distance` (to the nearest visible occurrence of the same token),
        `next_sentence_loss` and `next_sentence_accuracy` with NSP.
    """
    losses = collected["loss"]
    loss = float(losses.mean(dtype=np.float64)) if len(losses) else 0.0
    means = {name: collected[name] for name in ("loss", "accuracy")}
    length = manifest.seq_length
    result: dict[str, Any] = {
        "masked_lm_loss": loss,
        "masked_lm_accuracy": float(collected["accuracy"].mean(dtype=np.float64)),
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_character": None,
        "predictions": len(losses),
        "sequences": len(collected["rows"]),
        "by_position": compute_bucket_means(
            make_position_edges(length), collected["position"], means
        ),
        "by_distance": compute_bucket_means(
            make_distance_edges(length), collected["distance"], means
        ),
    }
    if characters is not None:
        written = max(1, int(characters[collected["id"]].sum()))
        result["bits_per_character"] = float(losses.sum(dtype=np.float64)) / math.log(2) / written
    for name, key in (("loss", "next_sentence_losses"), ("accuracy", "next_sentence_correct")):
        if key in collected:
            result[f"next_sentence_{name}"] = float(collected[key].mean(dtype=np.float64))
    return result


def make_position_edges(seq_length: int, count: int = 8) -> list[int]:
    """Divide the positions into at most `count` buckets of about equal width. Return the edges."""
    count = min(count, seq_length)
    return [seq_length * i // count for i in range(count + 1)]


def make_distance_edges(seq_length: int, first: int = 16) -> list[int]:
    """Return the edges of buckets of distances: 0, 16, 32, 64, 128, ... and `seq_length`."""
    edges = [0]
    while first < seq_length:
        edges.append(first)
        first *= 2
    return [*edges, seq_length]


def measure_distances(input_ids: np.ndarray, positions: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return the distance of each masked token to its nearest visible occurrence in the sequence.

    Args:
        input_ids: int [batch, seq_length], masked input of the model.
        positions: int [batch, predictions], positions of the masked tokens.
        ids: int [batch, predictions], original ids of the masked tokens.

    Returns:
        int64 [batch, predictions], distances in tokens, on either side. A distance is `NO_DISTANCE`
        if there is no visible occurrence.
    """
    batch, length = input_ids.shape
    distances = np.full(positions.shape, NO_DISTANCE, np.int64)
    places = np.arange(length, dtype=np.int64)
    for row in range(batch):
        # Sort by token id, then by position. In this order, the neighbors of a masked token are the
        # nearest visible occurrences of the same token.
        keys = np.sort(input_ids[row].astype(np.int64) * length + places)
        wanted = ids[row].astype(np.int64) * length + positions[row]
        before = np.searchsorted(keys, wanted, side="left") - 1
        after = np.searchsorted(keys, wanted, side="right")
        for index in (before, after):
            inside = (index >= 0) & (index < length)
            key = keys[np.clip(index, 0, length - 1)]
            same = inside & (key // length == ids[row])
            gap = np.abs(key - wanted)
            nearer = same & ((distances[row] == NO_DISTANCE) | (gap < distances[row]))
            distances[row][nearer] = gap[nearer]
    return distances


def compute_bucket_means(
    edges: Sequence[int], values: np.ndarray, columns: Arrays
) -> list[dict[str, Any]]:
    """Compute the means of quantities in each bucket.

    Args:
        edges: ascending edges. Bucket i contains edges[i] <= value < edges[i + 1].
        values: int [predictions], values that select the bucket.
        columns: float [predictions] by name, quantities to average.

    Returns:
        A dict for each bucket that is not empty, with `from`, `to` (exclusive), `count`, and means.
        The last dict is for values below the first edge (`NO_DISTANCE`), with None as `from` and
        `to`.
    """
    spans: list[Any] = [*pairwise(edges), (None, None)]
    rows = []
    for start, end in spans:
        chosen = values < edges[0] if start is None else (values >= start) & (values < end)
        if chosen.any():
            row = {"from": start, "to": end, "count": int(chosen.sum())}
            means = {name: float(c[chosen].mean(dtype=np.float64)) for name, c in columns.items()}
            rows.append(row | means)
    return rows
