"""Block-sparse attention with rolled random tiles: what is fast on a TPU, in plain TensorFlow ops.

Two blocks of 64 make a tile of 128 rows, as wide as the matrix unit. Sequences come rolled by
one block, so that tile 0 holds the last and the first block, the global ones, and every other tile j
holds blocks 2j-1 and 2j. Queries of tile j see

- own: tile j, whole (two neighbouring blocks see each other);
- outer: the blocks on both sides, joined to one tile: lanes 0..63 from tile j+1, 64..127 from j-1;
- global: tile 0;
- random: tiles 1 + (j - 1 + s) mod (T - 1), one for each shift s of the head;

and tile 0 sees everything. The scores of these pieces are never joined: they share one row maximum
and one row sum. Slices and selections are left to fuse into the matmuls; only random tiles are
copied (gathered whole). The gradient is written by hand: it keeps the bfloat16 probabilities.

Arrays are [heads, b, T, size, rows]: 64 numbers by 128 rows fills the TPU's (8, 128) layout, where
[rows, 64] would be padded to twice its size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

# Added to the score of a key that must not be seen. Half of it is the least row maximum: then a row
# without any key gets probabilities of exactly zero.
_UNSEEN = -1e9


@dataclass(frozen=True)
class Tiling:
    """The static plan of one layer: which tile sees which."""

    shifts: np.ndarray  # int32 [heads, m]
    batch: int
    tiles: int  # T, tile 0 included
    rows: int  # of a tile: two blocks

    @property
    def middle(self) -> int:
        return self.tiles - 1

    def seen(self) -> np.ndarray:
        """int32 [heads, b, T - 1, m]: the random tiles seen, as places in [heads * b * T]."""
        tile = np.arange(self.middle)[:, None] + self.shifts[:, None, :]
        return self._flat(1 + tile % self.middle, self.tiles)

    def seers(self) -> np.ndarray:
        """int32 [heads, b, T - 1, m]: who sees a tile by its m-th shift, in [heads * b * (T-1)]."""
        tile = np.arange(self.middle)[:, None] - self.shifts[:, None, :]
        return self._flat(tile % self.middle, self.middle)

    def _flat(self, tile: np.ndarray, tiles: int) -> np.ndarray:
        heads = len(self.shifts)
        place = np.arange(heads * self.batch).reshape(heads, self.batch, 1, 1) * tiles
        return (place + tile[:, None]).astype(np.int32)


def rolled_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    shifts: np.ndarray,
) -> tf.Tensor:
    """Attention of one layer, over sequences rolled by one block.

    Args:
        query: [heads, b, T, size, rows] in the compute dtype, scaled by size^-0.5.
        key, value: the same shape; not scaled.
        input_mask: float32 [b, T, rows]; 1 is a token, 0 padding, which no query sees.
        document_ids: int32 [b, T, rows]; keys of other documents are not seen. None: no such limit.
        shifts: int32 [heads, m], each in 2..T-3, different within a head.

    Returns:
        Context of the same shape; zero for a query that sees no key.
    """
    _, batch, tiles, _, rows = (int(size) for size in query.shape)
    tiling = Tiling(np.asarray(shifts, np.int32), batch, tiles, rows)

    @tf.custom_gradient
    def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor):  # type: ignore[no-untyped-def]
        context, kept = _forward(tiling, query, key, value, input_mask, document_ids)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            with tf.name_scope("attention"):
                return _backward(tiling, query, key, value, context, kept, upstream)

        return context, gradient

    with tf.name_scope("attention"):
        return run(query, key, value)


@dataclass(frozen=True)
class _Kept:
    """What the gradient needs beside inputs and output."""

    probabilities: dict[str, tf.Tensor]  # per piece, not divided by the sum; compute dtype
    totals: tf.Tensor  # float32 [heads, b, T, rows]


_PIECES = ("own", "outer", "global", "random")

# h heads, b batch, t tiles, d size, r query rows, c key rows, m random tiles.
_SCORES = {
    "own": "hbtdr,hbtdc->hbtrc",
    "outer": "hbtdr,hbtdc->hbtrc",
    "global": "hbtdr,hbdc->hbtrc",
    "random": "hbtdr,hbtmdc->hbtrmc",
    "rows": "hbdr,hbtdc->hbrtc",
}
_CONTEXT = {
    "own": "hbtrc,hbtdc->hbtdr",
    "outer": "hbtrc,hbtdc->hbtdr",
    "global": "hbtrc,hbdc->hbtdr",
    "random": "hbtrmc,hbtmdc->hbtdr",
    "rows": "hbrtc,hbtdc->hbdr",
}
_KEYS = {
    "own": "hbtrc,hbtdr->hbtdc",
    "outer": "hbtrc,hbtdr->hbtdc",
    "global": "hbtrc,hbtdr->hbdc",
    "random": "hbtrmc,hbtdr->hbtmdc",
    "rows": "hbrtc,hbdr->hbtdc",
}


def _contract(equation: str, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Einsum with a float32 result; on a TPU the matrix unit reads bfloat16 all the same."""
    return tf.einsum(equation, tf.cast(left, tf.float32), tf.cast(right, tf.float32))


def _views(tiling: Tiling, keys: tf.Tensor) -> dict[str, tf.Tensor]:
    """The keys (or values) of every piece.

    Args:
        keys: [heads, b, T, size, rows].
    """
    heads, _, _, size, rows = (int(n) for n in keys.shape)
    after = tf.concat([keys[:, :, 2:], tf.zeros_like(keys[:, :, :1])], axis=2)
    random = tf.gather(tf.reshape(keys, [-1, size, rows]), tiling.seen())
    del heads
    return {
        "own": keys[:, :, 1:],
        "outer": tf.where(_low(tiling), after, keys[:, :, :-1]),
        "global": keys[:, :, 0],
        "random": random,
        "rows": keys,
    }


def _low(tiling: Tiling) -> np.ndarray:
    """bool [rows]: the first block of a tile."""
    return np.arange(tiling.rows) < tiling.rows // 2


def _row_views(tiling: Tiling, rows: tf.Tensor, edge: float | int) -> dict[str, tf.Tensor]:
    """A number per token, laid out as the keys of every piece, ready to join its scores.

    Args:
        rows: [b, T, rows].
        edge: what stands where the outer tile has no block, or a global one.
    """
    low = _low(tiling)
    edges = tf.fill(tf.shape(rows[:, :1]), tf.cast(edge, rows.dtype))
    after = tf.concat([rows[:, 2:], edges], axis=1)
    before = tf.concat([edges, rows[:, 1:-1]], axis=1)
    random = (np.arange(tiling.middle)[:, None] + tiling.shifts[:, None, :]) % tiling.middle
    return {
        "own": rows[None, :, 1:, None],
        "outer": tf.where(low, after, before)[None, :, :, None],
        "global": rows[None, :, :1, None],
        "random": tf.transpose(tf.gather(rows[:, 1:], random, axis=1), [1, 0, 2, 3, 4])[
            :, :, :, None
        ],
        "rows": rows[None, :, None],
    }


def _biases(
    tiling: Tiling, input_mask: tf.Tensor, document_ids: tf.Tensor | None
) -> dict[str, tf.Tensor]:
    """What to add to every piece's scores: 0, or `_UNSEEN` for a key that must not be seen."""
    biases = _row_views(tiling, (1.0 - input_mask) * _UNSEEN, _UNSEEN)
    # A block of the tile sees only the outer block on its own side.
    low = _low(tiling)
    biases["outer"] += np.where(low[:, None] == low, np.float32(_UNSEEN), np.float32(0.0))
    if document_ids is None:
        return biases
    keys = _row_views(tiling, document_ids, -1)
    queries = dict.fromkeys(_PIECES, document_ids[None, :, 1:, :, None])
    queries["random"] = queries["own"][..., None]
    queries["rows"] = document_ids[None, :, 0, :, None, None]
    for piece, theirs in keys.items():
        biases[piece] += tf.where(tf.equal(queries[piece], theirs), 0.0, _UNSEEN)
    return biases


def _forward(
    tiling: Tiling,
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
) -> tuple[tf.Tensor, _Kept]:
    with tf.name_scope("scores"):
        keys = _views(tiling, key)
        biases = _biases(tiling, input_mask, document_ids)
        scores = {p: _contract(_SCORES[p], query[:, :, 1:], keys[p]) + biases[p] for p in _PIECES}
        rows = _contract(_SCORES["rows"], query[:, :, 0], keys["rows"]) + biases["rows"]
    with tf.name_scope("softmax"):
        maximum = _joined(tf.maximum, {p: _over_keys(tf.reduce_max, scores[p]) for p in _PIECES})
        maximum = tf.maximum(maximum, _UNSEEN / 2)
        exact = {p: tf.exp(scores[p] - _beside(maximum, scores[p])) for p in _PIECES}
        totals = _joined(tf.add, {p: _over_keys(tf.reduce_sum, exact[p]) for p in _PIECES})
        rows_maximum = tf.maximum(tf.reduce_max(rows, axis=[3, 4]), _UNSEEN / 2)
        exact["rows"] = tf.exp(rows - rows_maximum[..., None, None])
        rows_total = tf.reduce_sum(exact["rows"], axis=[3, 4])
        totals = tf.concat([rows_total[:, :, None], totals], axis=2)
        totals = tf.maximum(totals, 1e-30)
        probabilities = {p: tf.cast(exact[p], query.dtype) for p in exact}
    with tf.name_scope("context"):
        values = _views(tiling, value)
        parts = {p: _contract(_CONTEXT[p], probabilities[p], values[p]) for p in _PIECES}
        context = _joined(tf.add, parts)
        first = _contract(_CONTEXT["rows"], probabilities["rows"], values["rows"])
        context = tf.concat([first[:, :, None], context], axis=2) / totals[:, :, :, None]
        context = tf.cast(context, query.dtype)
    return context, _Kept(probabilities, totals)


def _backward(
    tiling: Tiling,
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    context: tf.Tensor,
    kept: _Kept,
    upstream: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    with tf.name_scope("softmax"):
        # Probabilities were not divided by their sum: the upstream gradient is, instead.
        exact = tf.cast(upstream, tf.float32) / kept.totals[:, :, :, None]
        inner = tf.reduce_sum(exact * tf.cast(context, tf.float32), axis=3)
        scaled = tf.cast(exact, query.dtype)
    middle = {"query": query[:, :, 1:], "scaled": scaled[:, :, 1:], "inner": inner[:, :, 1:]}
    first = {"query": query[:, :, 0], "scaled": scaled[:, :, 0], "inner": inner[:, :, 0]}
    keys, values = _views(tiling, key), _views(tiling, value)
    d_scores = {}
    with tf.name_scope("scores"):
        for piece, p in kept.probabilities.items():
            side = first if piece == "rows" else middle
            d_p = _contract(_SCORES[piece], side["scaled"], values[piece])
            d_p = tf.cast(p, tf.float32) * (d_p - _beside(side["inner"], d_p))
            d_scores[piece] = tf.cast(d_p, query.dtype)
        d_query = _joined(
            tf.add, {p: _contract(_CONTEXT[p], d_scores[p], keys[p]) for p in _PIECES}
        )
        d_first = _contract(_CONTEXT["rows"], d_scores["rows"], keys["rows"])
        d_query = tf.cast(tf.concat([d_first[:, :, None], d_query], axis=2), query.dtype)
        d_key = _gather_back(tiling, d_scores, middle["query"], first["query"])
    with tf.name_scope("context"):
        d_value = _gather_back(tiling, kept.probabilities, middle["scaled"], first["scaled"])
    return d_query, d_key, d_value


def _gather_back(
    tiling: Tiling, weights: dict[str, tf.Tensor], middle: tf.Tensor, first: tf.Tensor
) -> tf.Tensor:
    """The gradient of keys (or values) from the weights by which each query used them."""
    dtype = middle.dtype
    parts = {p: tf.cast(_contract(_KEYS[p], weights[p], middle), dtype) for p in _PIECES}
    rows = _contract(_KEYS["rows"], weights["rows"], first)
    size, width = int(middle.shape[3]), int(middle.shape[4])
    outer = parts["outer"]
    edge = tf.zeros_like(outer[:, :, :1])
    before = tf.concat([edge, outer[:, :, :-1]], axis=2)
    after = tf.concat([outer[:, :, 1:], edge], axis=2)
    shifts = tiling.shifts.shape[1]
    place = tiling.seers() * shifts + np.arange(shifts, dtype=np.int32)
    random = tf.gather(tf.reshape(parts["random"], [-1, size, width]), place)
    total = rows[:, :, 1:] + tf.cast(parts["own"], tf.float32)
    total += tf.cast(tf.where(_low(tiling), before, after), tf.float32)
    for shift in range(shifts):
        total += tf.cast(random[:, :, :, shift], tf.float32)
    glob = rows[:, :, :1] + tf.cast(parts["global"], tf.float32)[:, :, None]
    return tf.cast(tf.concat([glob, total], axis=2), dtype)


def _over_keys(reduce: Callable[..., tf.Tensor], scores: tf.Tensor) -> tf.Tensor:
    """Reduces a piece's scores over its keys: [heads, b, t, rows]."""
    return reduce(scores, axis=list(range(4, len(scores.shape))))


def _beside(rows: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """A number per query row, shaped to broadcast over a piece's keys."""
    return tf.reshape(rows, [*rows.shape, *[1] * (len(scores.shape) - len(rows.shape))])


def _joined(join: Callable[..., tf.Tensor], parts: dict[str, tf.Tensor]) -> tf.Tensor:
    first, *others = parts.values()
    for part in others:
        first = join(first, part)
    return first
