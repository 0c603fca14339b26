"""Computes the attention of one layer: all scores at once, in tiles (`tiled`), or by kernels.

`pattern` defines which keys a query sees; full attention with its mask is the reference that the
others must equal.
"""

import math

import numpy as np
import tensorflow as tf

from bigbird_ja.model import pattern
from bigbird_ja.model.implementation import tile_rows
from bigbird_ja.model.layers import Parameters, dense
from bigbird_ja.model.tiled import tiled_attention
from bigbird_ja.model.tiling import IndependentTiles, RolledTiles
from bigbird_ja.settings.schema import Config

# Scores of keys that must not be seen. Far below any real score, and finite: a row of nothing but
# these still has a maximum to subtract. The probabilities are then multiplied by the 0/1 mask, so
# that hidden keys get exactly nothing even in such a row.
HIDDEN = -1e9


def dense_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    static_mask: np.ndarray | None,
    query_documents: tf.Tensor | None = None,
) -> tf.Tensor:
    """Compute softmax attention over every key that the masks allow.

    Args:
        query: [b, Q, heads, size], float32 or bfloat16; not scaled.
        key: [b, S, heads, size].
        value: of the same shape.
        input_mask: float32 [b, S]; 1 is a token, 0 padding, which no query sees.
        document_ids: int32 [b, S]; keys of other documents are not seen. None: no such limit.
        static_mask: bool [heads or 1, Q, S] of queries by keys, or None: everything.
        query_documents: int32 [b, Q]; None: the same as the keys'.

    Returns:
        Context [b, Q, heads, size]; zero for a query that sees no key.
    """
    with tf.name_scope("attention/scores"):
        scores = tf.einsum("bqhd,bkhd->bhqk", query, key)
        scores = tf.cast(scores, tf.float32) * query.shape[-1] ** -0.5
        visible = input_mask[:, None, None, :]
        if static_mask is not None:
            visible = visible * tf.constant(static_mask[None], tf.float32)
        if document_ids is not None:
            queries = document_ids if query_documents is None else query_documents
            same = tf.equal(queries[:, None, :, None], document_ids[:, None, None, :])
            visible = visible * tf.cast(same, tf.float32)
    with tf.name_scope("attention/softmax"):
        scores = tf.where(visible > 0, scores, HIDDEN)
        maximum = tf.stop_gradient(tf.reduce_max(scores, axis=-1, keepdims=True))
        weights = tf.exp(scores - maximum) * visible
        total = tf.reduce_sum(weights, axis=-1, keepdims=True)
        weights = weights / tf.where(total > 0, total, 1.0)
    with tf.name_scope("attention/context"):
        return tf.einsum("bhqk,bkhd->bqhd", tf.cast(weights, value.dtype), value)


def banded_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    reach: int | None,
) -> tf.Tensor:
    """Compute `dense_attention` to keys at most `reach` tokens away; None is all keys.

    Each query block sees three key blocks.

    Lengths that are no multiple of `reach`, or hold at most three blocks, go the dense way.
    """
    if reach is None:
        return dense_attention(query, key, value, input_mask, document_ids, None)
    batch, length, heads, size = (int(n) for n in query.shape)
    blocks = length // max(reach, 1)
    if not reach or length % reach or blocks <= 3:
        places = np.arange(length)
        band = abs(places[:, None] - places[None, :]) <= reach
        return dense_attention(query, key, value, input_mask, document_ids, band[None])

    def beside(rows: tf.Tensor, beyond: float) -> tf.Tensor:
        """Put each block between its neighbours: [b, S, ...] -> [b * blocks, 3 * reach, ...]."""
        sides = [[0, 0], [1, 1]] + [[0, 0]] * (len(rows.shape) - 1)
        split = tf.reshape(rows, [batch, blocks, reach, *rows.shape[2:]])
        padded = tf.pad(split, sides, constant_values=tf.cast(beyond, rows.dtype))
        joined = tf.concat([padded[:, :-2], padded[:, 1:-1], padded[:, 2:]], axis=2)
        return tf.reshape(joined, [batch * blocks, 3 * reach, *rows.shape[2:]])

    queries, keys = np.arange(reach)[:, None] + reach, np.arange(3 * reach)[None, :]
    context = dense_attention(
        tf.reshape(query, [-1, reach, heads, size]),
        beside(key, 0.0),
        beside(value, 0.0),
        beside(input_mask, 0.0),
        None if document_ids is None else beside(document_ids, -1),
        (abs(queries - keys) <= reach)[None],
        None if document_ids is None else tf.reshape(document_ids, [-1, reach]),
    )
    return tf.reshape(context, [batch, length, heads, size])


def is_tiled(config: Config, length: int) -> bool:
    """Return whether sequences of this length go through tiles, rotated by one block."""
    model = config.model
    return model.attention_type == "block_sparse" and not pattern.is_full(config, length)


def rows_of_tiles(config: Config, length: int) -> int:
    """Return the tokens of a tile of `attend`; 0 where it takes sequences whole."""
    if is_tiled(config, length):
        return 2 * config.model.block_size
    is_kernel = config.model.attention_implementation == "kernel"
    return tile_rows(length, None) if is_kernel and pattern.is_full(config, length) else 0


def random_tiles(plan: pattern.LayerPlan, tiles: int) -> RolledTiles | IndependentTiles:
    """Return the random keys of a layer as tiles."""
    if plan.shifts is not None:
        return RolledTiles(plan.shifts, tiles)
    assert plan.blocks is not None
    return IndependentTiles(plan.blocks, tiles)


def attend(
    params: Parameters,
    config: Config,
    scope: str,
    hidden: tf.Tensor,
    shape: tuple[int, int],
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    layer: int,
) -> tf.Tensor:
    """Compute projections, attention and output projection of one layer.

    Where `is_tiled`, everything per token is rotated by one block.

    Args:
        params: with the layer's kernels and biases.
        config: of the run.
        scope: the layer's, in the names of `params`.
        hidden: [b * S, hidden] in the compute dtype; cheaper as [b, tiles, rows, hidden] where
            there are `rows_of_tiles`.
        shape: (b, S).
        input_mask: float32 [b, S]; 1 is a token, 0 padding, which no query sees.
        document_ids: int32 [b, S]; keys of other documents are not seen. None: no such limit.
        layer: its number.

    Returns:
        Of the shape of `hidden`.

    Raises:
        ValueError: a length that the block-sparse pattern cannot be laid over.
    """
    if rows_of_tiles(config, shape[1]):
        return _tiled_self_attention(
            params, config, scope, hidden, shape, input_mask, document_ids, layer
        )
    with tf.name_scope("attention/projections"):
        split = [*shape, config.model.num_attention_heads, -1]
        query, key, value = (
            tf.reshape(dense(params, f"{scope}/attention/self/{name}", hidden), split)
            for name in ("query", "key", "value")
        )
    is_sparse = pattern.random_plan(config, shape[1]) is not None
    mask = pattern.dense_mask(config, layer, shape[1]) if is_sparse else None
    context = dense_attention(query, key, value, input_mask, document_ids, mask)
    with tf.name_scope("attention/output"):
        context = tf.reshape(context, hidden.shape)
        return dense(params, f"{scope}/attention/output/dense", context)


def _tiled_self_attention(
    params: Parameters,
    config: Config,
    scope: str,
    hidden: tf.Tensor,
    shape: tuple[int, int],
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    layer: int,
) -> tf.Tensor:
    """Run `attend` in tiles, over sequences rotated by one block; full attention by a kernel.

    The projections write [b, tiles, heads, size, rows] at once and the output projection reads it:
    no relayout in between.
    """
    model, dtype = config.model, hidden.dtype
    width, heads = model.hidden_size, model.num_attention_heads
    plans = pattern.random_plan(config, shape[1])
    rows = rows_of_tiles(config, shape[1])
    size = width // heads
    tiles = [shape[0], shape[1] // rows, rows]
    is_kernel = model.attention_implementation == "kernel"
    base = math.log2(math.e) if is_kernel else 1.0  # of the exponentials

    def project(name: str, scale: float) -> tf.Tensor:
        inner = f"{scope}/attention/self/{name}"
        kernel = tf.reshape(tf.cast(params[f"{inner}/kernel"], dtype), [width, heads, size])
        bias = tf.reshape(tf.cast(params[f"{inner}/bias"], dtype), [heads, size, 1])
        projected = tf.einsum("btri,ihd->bthdr", tf.reshape(hidden, [*tiles, width]), kernel)
        return (projected + bias) * tf.cast(scale, dtype)

    with tf.name_scope("attention/projections"):
        query = project("query", base * size**-0.5)
        key, value = project("key", 1.0), project("value", 1.0)
        mask = tf.reshape(input_mask, tiles)
        documents = None if document_ids is None else tf.reshape(document_ids, tiles)
    random = random_tiles(plans[layer], tiles[1]) if plans else None
    if is_kernel:
        from bigbird_ja.model.kernels.kernel_attention import kernel_attention  # imports jax

        assert not isinstance(random, IndependentTiles)
        context = kernel_attention(query, key, value, mask, documents, random)
    else:
        assert random is not None
        context = tiled_attention(query, key, value, mask, documents, random)
    with tf.name_scope("attention/output"):
        output = f"{scope}/attention/output/dense"
        kernel = tf.reshape(tf.cast(params[f"{output}/kernel"], dtype), [heads, size, width])
        projected = tf.reshape(tf.einsum("bthdr,hdo->btro", context, kernel), hidden.shape)
        return projected + tf.cast(params[f"{output}/bias"], dtype)
