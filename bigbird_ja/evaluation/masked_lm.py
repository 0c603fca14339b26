"""Masked-LM loss and accuracy on held-out records, with masks that are the same for every model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.data.manifest import TOKENIZER_NAME, Manifest
from bigbird_ja.evaluation import buckets
from bigbird_ja.evaluation.examples import masked_examples

if TYPE_CHECKING:
    from bigbird_ja.evaluation.forward import Model
    from bigbird_ja.text.tokenizer import Tokenizer

Collected = Mapping[str, np.ndarray]
# Tokens in one batch: small enough for a laptop, large enough to keep a GPU busy.
_TOKENS_PER_BATCH = 16_384
_MAX_BATCH = 32


@dataclass(frozen=True)
class Part:
    """Which batches a process evaluates, where several share them: `index`, `index + count`, ..."""

    index: int = 0
    count: int = 1
    # The arrays of all parts, given this process's; None where another process has them.
    gather: Callable[[Collected], Sequence[Collected] | None] = lambda own: [own]


def batch_size(seq_length: int) -> int:
    """Records per batch; results do not depend on it."""
    return max(1, min(_MAX_BATCH, _TOKENS_PER_BATCH // seq_length))


def evaluate_model(
    forward: Model,
    data_dir: str,
    manifest: Manifest,
    max_batches: int | None = None,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Evaluates a model on the held-out records.

    Args:
        forward: the model on a device.
        data_dir: the data set, on disk or gs://.
        manifest: of `data_dir`.
        max_batches: stops after so many batches of `batch_size(seq_length)` records.
        tick: called after each batch.

    Returns:
        `masked_lm_loss` (nats per prediction), `masked_lm_accuracy`, `perplexity`,
        `bits_per_character` (of the masked text; None without a tokenizer), `predictions`,
        `sequences`, `by_position`, `by_distance` (to the nearest visible token of the same piece),
        `by_sub_corpus` where several corpora are mixed, `next_sentence_loss` and
        `next_sentence_accuracy` where trained, `examples` (masked places with the model's guess),
        `data_fingerprint`, `max_batches`, `seconds`.

    Raises:
        BadInput: no held-out records.
    """
    found = evaluate_part(forward, data_dir, manifest, max_batches, tick, Part())
    assert found is not None  # this process has all parts
    return found


def evaluate_part(
    forward: Model,
    data_dir: str,
    manifest: Manifest,
    max_batches: int | None,
    tick: Callable[[], None],
    part: Part,
) -> dict[str, Any] | None:
    """As `evaluate_model`, where several processes evaluate together; None in those of them that do
    not put the parts together."""
    from bigbird_ja.data import pipeline, verify

    start = time.monotonic()
    size = batch_size(manifest.seq_length)
    batches = pipeline.eval_batches(manifest, data_dir, batch_size=size).enumerate()
    if max_batches:
        batches = batches.take(max_batches)
    batches = batches.shard(part.count, part.index)
    pieces = _tokenizer(data_dir, manifest)
    examples: list[dict[str, Any]] = []
    with verify.named_damage(manifest, data_dir, ("eval",)):
        own = _collect(_score(forward, batches, pieces, examples, tick), manifest)
    parts = part.gather(own)
    if parts is None:
        return None
    names = {name for arrays in parts for name in arrays}
    collected = {name: np.concatenate([p[name] for p in parts if name in p]) for name in names}
    result = summarise(collected, manifest, _characters(pieces))
    return {
        **result,
        "examples": examples,
        "data_fingerprint": manifest.fingerprint,
        "max_batches": max_batches,
        "seconds": round(time.monotonic() - start, 2),
    }


def _score(
    forward: Model,
    batches: Any,
    tokenizer: Tokenizer | None,
    examples: list[dict[str, Any]],
    tick: Callable[[], None],
) -> Iterator[dict[str, np.ndarray]]:
    """Each batch with what the model makes of it, and its first record's number as `first`; fills
    `examples` from the first one."""
    for number, batch in batches:
        arrays = {name: value.numpy() for name, value in batch.items()}
        metrics = forward.metrics({k: v for k, v in batch.items() if k != "corpus_ids"})
        if number == 0 and tokenizer is not None:
            examples += masked_examples(forward, arrays, tokenizer)
        first = int(number) * len(arrays["input_ids"])
        yield {**arrays, **metrics, "first": np.asarray(first)}
        tick()


def _collect(scored: Iterator[dict[str, np.ndarray]], manifest: Manifest) -> dict[str, np.ndarray]:
    """One flat array per quantity, over all predictions; `nsp_*` and `rows` over sequences."""
    parts: dict[str, list[np.ndarray]] = {}

    def add(name: str, values: np.ndarray) -> None:
        parts.setdefault(name, []).append(values)

    for batch in scored:
        record = int(batch["first"])
        counted = batch["masked_lm_weights"] > 0
        is_record = batch["input_ids"][:, 0] != manifest.pad_id
        positions, ids = batch["masked_lm_positions"], batch["masked_lm_ids"]
        distances = buckets.distances_to_same_piece(batch["input_ids"], positions, ids)
        add("loss", batch["masked_lm_losses"][counted])
        add("accuracy", batch["masked_lm_correct"][counted])
        add("position", positions[counted])
        add("distance", distances[counted])
        add("id", ids[counted])
        if "corpus_ids" in batch:
            corpora = np.broadcast_to(batch["corpus_ids"][:, None], ids.shape)
            add("corpus", corpora[counted])
        add("rows", np.flatnonzero(is_record) + record)
        for name in ("next_sentence_losses", "next_sentence_correct"):
            if name in batch:
                add(name, batch[name][is_record])
    return {name: np.concatenate(values) for name, values in parts.items()}


def summarise(
    collected: Mapping[str, np.ndarray], manifest: Manifest, characters: np.ndarray | None
) -> dict[str, Any]:
    """The results, from flat arrays over all predictions.

    Args:
        collected: `loss`, `accuracy`, `position`, `distance`, `id` [predictions]; `corpus`
            [predictions] of mixed corpora; `rows` [sequences]; `next_sentence_*` [sequences] where
            trained.
        manifest: of the data.
        characters: int [vocabulary], how many characters each piece writes; None where unknown.
    """
    loss = float(collected["loss"].mean(dtype=np.float64)) if len(collected["loss"]) else 0.0
    means = {name: collected[name] for name in ("loss", "accuracy")}
    result: dict[str, Any] = {
        "masked_lm_loss": loss,
        "masked_lm_accuracy": float(collected["accuracy"].mean(dtype=np.float64)),
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_character": _bits_per_character(collected, characters),
        "predictions": len(collected["loss"]),
        "sequences": len(collected["rows"]),
        "by_position": buckets.summarise(
            buckets.position_edges(manifest.seq_length), collected["position"], means
        ),
        "by_distance": buckets.summarise(
            buckets.distance_edges(manifest.seq_length), collected["distance"], means
        ),
    }
    by_sub_corpus = _by_sub_corpus(collected, manifest, means)
    if by_sub_corpus:
        result["by_sub_corpus"] = by_sub_corpus
    for name, key in (("loss", "next_sentence_losses"), ("accuracy", "next_sentence_correct")):
        if key in collected:
            result[f"next_sentence_{name}"] = float(collected[key].mean(dtype=np.float64))
    return result


def _bits_per_character(
    collected: Mapping[str, np.ndarray], characters: np.ndarray | None
) -> float | None:
    if characters is None:
        return None
    written = int(characters[collected["id"]].sum())
    return float(collected["loss"].sum(dtype=np.float64)) / math.log(2) / max(1, written)


def _by_sub_corpus(
    collected: Mapping[str, np.ndarray], manifest: Manifest, means: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """One row per corpus that has predictions, where several are mixed."""
    rows = []
    if "corpus" not in collected:
        return []
    for number, name in enumerate(manifest.corpus_names):
        chosen = collected["corpus"] == number
        if chosen.any():
            values = {
                key: float(column[chosen].mean(dtype=np.float64)) for key, column in means.items()
            }
            rows.append({"name": name, "count": int(chosen.sum()), **values})
    return rows


def _tokenizer(data_dir: str, manifest: Manifest) -> Tokenizer | None:
    from bigbird_ja.text import tokenizer

    path = storage.join(data_dir, TOKENIZER_NAME)
    if not manifest.tokenizer_sha256 or not storage.exists(path):
        return None
    return tokenizer.load(path)


def _characters(tokenizer: Tokenizer | None) -> np.ndarray | None:
    """Characters that each piece writes; an unknown one stands for at least one."""
    return None if tokenizer is None else np.maximum(tokenizer.piece_lengths, 1)
