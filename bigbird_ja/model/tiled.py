"""Block-sparse attention in tiles, in plain TensorFlow ops that are fast on a TPU.

Two blocks of 64 tokens form a tile of 128 rows, the width of the matrix unit. A sequence of T tiles
is rotated by one block. So tile 0 consists of the two global blocks, the last and the first. Any
other tile j consists of blocks 2j-1 and 2j. Queries of tile 0 see all keys (part "rows"). Queries
of any other tile j see these parts:

- own: tile j, as its two blocks are neighbors;
- outer: the two blocks next to tile j, joined to one tile (lanes 0..63 from tile j+1, lanes 64..127
  from tile j-1);
- global: tile 0;
- random: tile 1 + (j - 1 + s) mod (T - 1) for each shift s of the head.

The scores of these parts are not concatenated, but share one row maximum and one row sum. Slices
and selections fuse into the matmuls, and only random tiles are copied (gathered). The backward pass
is written by hand, and reads probabilities that were saved in the compute dtype.

Arrays are [b, T, heads, size, rows]. With 64 numbers by 128 rows as the last two axes, they fill
the TPU's (8, 128) layout. In the order [rows, 64] they would be padded to twice their size. The
parts of tile j are computed for tile 0, too, so that no array needs to be sliced. These results of
tile 0 are dropped.
"""

from collections.abc import Callable
from functools import reduce

import numpy as np
import tensorflow as tf

from bigbird_ja.model.layers import Tokens, barrier, is_compiled_by_xla
from bigbird_ja.model.tiling import RandomTiles, is_first, mark_low

# Term that is added to the score of a hidden key. The maximum of a row is raised to _UNSEEN / 2, so
# that the probabilities of a row without visible keys are exactly zero.
_UNSEEN = -1e9


def tiled_attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, tokens: Tokens, random: RandomTiles
) -> tf.Tensor:
    """Compute the attention of one layer, over sequences rotated by one block.

    Args:
        query: [b, T, heads, size, rows] in the compute dtype, scaled by size^-0.5.
        key: in the same shape, not scaled.
        value: in the same shape.
        tokens: tokens in tiles, [b, T, rows].
        random: random connections of the layer.

    Returns:
        Context in the shape of `query`, which is zero for a query that sees no key.
    """
    with tf.name_scope("attention") as scope:

        @tf.custom_gradient
        def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor):  # type: ignore[no-untyped-def]
            context, kept = _forward(random, query, key, value, tokens)

            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
                # The final slash makes the scope's name absolute. So the names of the gradient's
                # ops begin with the layer's scope.
                with tf.name_scope(f"{scope}gradient/"):
                    return _backward(random, query, key, value, context, kept, upstream)

            return context, gradient

        return run(query, key, value)


# Tensors that are saved for the backward pass, in addition to inputs and output. They are the
# probabilities of each part in the compute dtype, not yet divided by their sum, and the sums,
# float32 [b, T, heads, rows].
_Kept = tuple[dict[str, tf.Tensor], tf.Tensor]

_PARTS = ("own", "outer", "global", "random")

# Letters of the einsum equations: b batch, t tiles, h heads, d size of a head, r query rows, c key
# rows, m random tiles.
_SCORES = {
    "own": "bthdr,bthdc->bthrc",
    "outer": "bthdr,bthdc->bthrc",
    "global": "bthdr,bhdc->bthrc",
    "random": "bthdr,bthmdc->bthrmc",
    "rows": "bhdr,bthdc->bhrtc",
}
_CONTEXT = {
    "own": "bthrc,bthdc->bthdr",
    "outer": "bthrc,bthdc->bthdr",
    "global": "bthrc,bhdc->bthdr",
    "random": "bthrmc,bthmdc->bthdr",
    "rows": "bhrtc,bthdc->bhdr",
}
_KEYS = {
    "own": "bthrc,bthdr->bthdc",
    "outer": "bthrc,bthdr->bthdc",
    "global": "bthrc,bthdr->bhdc",
    "random": "bthrmc,bthdr->bthmdc",
    "rows": "bhrtc,bhdr->bthdc",
}


def _contract(equation: str, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Convert two arrays to float32, and contract them by an einsum equation.

    On a TPU, the matrix unit still rounds the float32 factors to bfloat16, but it sums their
    products in float32.
    """
    left, right = tf.cast(left, tf.float32), tf.cast(right, tf.float32)
    if not is_compiled_by_xla() and _comes_first(equation):
        # TensorFlow's CPU kernel writes the left operand's axes first, and transposes the result if
        # its order is different. With exchanged operands the result is not transposed.
        inputs, output = equation.split("->")
        equation = ",".join(reversed(inputs.split(","))) + "->" + output
        left, right = right, left
    return tf.einsum(equation, left, right)


def _comes_first(equation: str) -> bool:
    """Return whether an einsum's result begins with an axis that only its right operand contains.

    Axes that both operands contain are ignored.
    """
    inputs, output = equation.split("->")
    left, right = inputs.split(",")
    own = [axis in right for axis in output if (axis in left) != (axis in right)]
    return own[0]


def _shift_tiles(values: tf.Tensor, edge: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return for each tile of [b, T, ...] the next tile and the previous tile, as two arrays.

    `edge` replaces the tiles beyond the ends. The array is padded once and sliced twice, since XLA
    fuses slices into the ops that read them, but not shifts.
    """
    padded = tf.concat([edge, values, edge], axis=1)
    return padded[:, 2:], padded[:, :-2]


def _gather_views(random: RandomTiles, keys: tf.Tensor) -> dict[str, tf.Tensor]:
    """Gather the keys (or values) for each part of the attention ("own", "outer", ...).

    Args:
        random: random connections of the layer.
        keys: [b, T, heads, size, rows].

    Returns:
        Keys by the part's name. They have the shape of `keys`, except for "global" [b, heads, size,
        rows] and "random" [b, T, heads, m, size, rows].
    """
    after, before = _shift_tiles(keys, tf.zeros_like(keys[:, :1]))
    return {
        "own": keys,
        "outer": tf.where(mark_low(keys), after, before),
        "global": keys[:, 0],
        "random": random.keys(keys),
        "rows": keys,
    }


def _lay_out_rows(random: RandomTiles, rows: tf.Tensor, edge: float | int) -> dict[str, tf.Tensor]:
    """Arrange a number per token like the keys of each part of the attention ("own", "outer", ...).

    Each result broadcasts to the scores of its part.

    Args:
        random: random connections of the layer.
        rows: [b, T, rows], the numbers.
        edge: number for an outer block that is missing or global.
    """
    edges = tf.fill(tf.shape(rows[:, :1]), tf.cast(edge, rows.dtype))
    after, before = _shift_tiles(tf.concat([edges, rows[:, 1:]], axis=1), edges)
    outer = tf.where(mark_low(rows), after, before)
    return {
        "own": rows[:, :, None, None],
        "outer": outer[:, :, None, None],
        "global": rows[:, :1, None, None],
        "random": random.numbers(rows)[:, :, :, None],
        "rows": rows[:, None, None],
    }


def _compute_biases(random: RandomTiles, tokens: Tokens) -> dict[str, tf.Tensor]:
    """Return terms to add to the scores of each attention part: 0, or `_UNSEEN` to hide a key."""
    mask, documents = tokens
    biases = _lay_out_rows(random, (1.0 - mask) * _UNSEEN, _UNSEEN)
    # The first block of a tile sees only the outer block before the tile, and the second block only
    # the outer block after the tile. The block after the tile is in the first half of "outer". So a
    # key is hidden if it is in the same half as the query.
    first = mark_low(mask)
    biases["outer"] += np.where(first[:, None] == first, np.float32(_UNSEEN), np.float32(0.0))
    unseen = random.unseen(len(first))
    if unseen is not None:
        biases["random"] += np.where(unseen, np.float32(_UNSEEN), np.float32(0.0))
    if documents is None:
        return biases
    keys = _lay_out_rows(random, documents, -1)
    queries = dict.fromkeys(_PARTS, documents[:, :, None, :, None])
    queries["random"] = queries["own"][..., None]
    queries["rows"] = documents[:, 0, None, :, None, None]
    for part, theirs in keys.items():
        biases[part] += tf.where(tf.equal(queries[part], theirs), 0.0, _UNSEEN)
    return biases


def _forward(
    random: RandomTiles, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, tokens: Tokens
) -> tuple[tf.Tensor, _Kept]:
    with tf.name_scope("scores"):
        keys = _gather_views(random, key)
        biases = _compute_biases(random, tokens)
        scores = {
            p: tf.cast(_contract(_SCORES[p], query, keys[p]) + biases[p], query.dtype)
            for p in _PARTS
        }
        scores = {p: tf.cast(s, tf.float32) for p, s in scores.items()}
        rows = _contract(_SCORES["rows"], query[:, 0], keys["rows"]) + biases["rows"]
    with tf.name_scope("softmax"):
        maximum = reduce(tf.maximum, [_reduce_over_keys(tf.reduce_max, scores[p]) for p in _PARTS])
        maximum = tf.maximum(maximum, _UNSEEN / 2)
        exact = {p: tf.exp(scores[p] - _broadcast_rows(maximum, scores[p])) for p in _PARTS}
        totals = reduce(tf.add, [_reduce_over_keys(tf.reduce_sum, exact[p]) for p in _PARTS])
        rows_maximum = tf.maximum(tf.reduce_max(rows, axis=[3, 4]), _UNSEEN / 2)
        exact["rows"] = tf.exp(rows - rows_maximum[..., None, None])
        rows_total = tf.reduce_sum(exact["rows"], axis=[3, 4])
        totals = tf.where(is_first(query)[..., 0], rows_total[:, None], totals)
        totals = tf.maximum(totals, 1e-30)
        probabilities = {p: tf.cast(exact[p], query.dtype) for p in exact}
    with tf.name_scope("context"):
        values = _gather_views(random, value)
        parts = [_contract(_CONTEXT[p], probabilities[p], values[p]) for p in _PARTS]
        first = _contract(_CONTEXT["rows"], probabilities["rows"], values["rows"])
        context = tf.where(is_first(query), first[:, None], reduce(tf.add, parts))
        # A division of each element would be expensive, so the reciprocals of the few totals are
        # computed. Without the barrier the float32 terms of the context would be stored until the
        # backward pass.
        context = context * (1.0 / totals)[:, :, :, None]
        (context,) = barrier([tf.cast(context, query.dtype)])
    return context, (probabilities, totals)


def _backward(
    random: RandomTiles,
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    context: tf.Tensor,
    kept: _Kept,
    upstream: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    probabilities, totals = kept
    with tf.name_scope("softmax"):
        # The saved probabilities are not divided by their sums. The upstream gradient is divided by
        # the sums instead.
        exact = tf.cast(upstream, tf.float32)
        inner = tf.reduce_sum(exact * tf.cast(context, tf.float32), axis=3) / totals
        first_inner = inner[:, 0]
        shares = 1.0 / totals
        first_scaled = tf.cast(exact[:, 0] * shares[:, 0, :, None], query.dtype)
        # The forward pass uses only the part "rows" for the queries of tile 0. So in all other
        # parts, the gradient of the results of tile 0 is zero.
        shares = tf.where(is_first(query)[..., 0], 0.0, shares)
        scaled = tf.cast(exact * shares[:, :, :, None], query.dtype)
        inner = tf.where(is_first(query)[..., 0], 0.0, inner)
    keys, values = _gather_views(random, key), _gather_views(random, value)
    d_scores = {}
    with tf.name_scope("scores"):
        for part, p in probabilities.items():
            side = (first_scaled, first_inner) if part == "rows" else (scaled, inner)
            d_p = _contract(_SCORES[part], side[0], values[part])
            d_p = tf.cast(p, tf.float32) * (d_p - _broadcast_rows(side[1], d_p))
            d_scores[part] = tf.cast(d_p, query.dtype)
        d_query = reduce(tf.add, [_contract(_CONTEXT[p], d_scores[p], keys[p]) for p in _PARTS])
        d_first = _contract(_CONTEXT["rows"], d_scores["rows"], keys["rows"])
        d_query = tf.cast(tf.where(is_first(query), d_first[:, None], d_query), query.dtype)
        d_key = _compute_key_gradient(random, d_scores, query, query[:, 0])
    with tf.name_scope("context"):
        d_value = _compute_key_gradient(random, probabilities, scaled, first_scaled)
    d_query, d_key, d_value = barrier([d_query, d_key, d_value])
    return d_query, d_key, d_value


def _compute_key_gradient(
    random: RandomTiles, weights: dict[str, tf.Tensor], queries: tf.Tensor, first: tf.Tensor
) -> tf.Tensor:
    """Compute the gradient of keys (or values) from weights of each pair of query and key.

    Args:
        random: random connections of the layer.
        weights: gradients of the scores (or probabilities), by the part's name.
        queries: [b, T, heads, size, rows], queries (or gradients of the context).
        first: [b, heads, size, rows], queries (or gradients of the context) of tile 0, for the part
            "rows".
    """
    dtype = queries.dtype
    parts = {p: tf.cast(_contract(_KEYS[p], weights[p], queries), dtype) for p in _PARTS}
    total = _contract(_KEYS["rows"], weights["rows"], first) + tf.cast(parts["own"], tf.float32)
    after, before = _shift_tiles(parts["outer"], tf.zeros_like(parts["outer"][:, :1]))
    outer = tf.where(mark_low(total), before, after)
    total += tf.cast(outer, tf.float32)
    total += tf.cast(tf.add_n(random.keys_back(parts["random"])), tf.float32)
    shared = tf.cast(parts["global"], tf.float32)[:, None]
    return tf.cast(total + tf.where(is_first(total), shared, 0.0), dtype)


def _reduce_over_keys(reduce: Callable[..., tf.Tensor], scores: tf.Tensor) -> tf.Tensor:
    """Reduce the scores of one part of the attention over its keys: [b, T, heads, rows]."""
    return reduce(scores, axis=list(range(4, len(scores.shape))))


def _broadcast_rows(rows: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Reshape a number per query so that it broadcasts over the keys in the shape of `scores`."""
    return tf.reshape(rows, [*rows.shape, *[1] * (len(scores.shape) - len(rows.shape))])
