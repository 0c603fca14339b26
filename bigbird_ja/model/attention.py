"""Chooses how attention is computed; what it means is in `pattern`, how, in `dense` and its kin."""

from __future__ import annotations

import math

import tensorflow as tf

from bigbird_ja.model import pattern
from bigbird_ja.model.dense import dense_attention
from bigbird_ja.model.layers import Parameters, dense
from bigbird_ja.model.tiled import tiled_attention
from bigbird_ja.model.tiling import IndependentTiles, RandomTiles, RolledTiles
from bigbird_ja.settings.schema import Config


@tf.autograph.experimental.do_not_convert
def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    config: Config,
    layer: int,
) -> tf.Tensor:
    """Multi-head attention of one layer.

    Args:
        query, key, value: [b, S, heads, size] in the compute dtype; not scaled.
        input_mask: float32 [b, S]; 1 is a token, 0 padding, which no query sees.
        document_ids: int32 [b, S]; keys of other documents are not seen. None: no such limit.
        config: completed by a data set.
        layer: which layer's random plan to follow.

    Returns:
        Context [b, S, heads, size]; zero for a query that sees no key.

    Raises:
        ValueError: a length that the block-sparse pattern cannot be laid over.
    """
    length = int(query.shape[1])
    plans = pattern.random_plan(config, length)
    mask = None
    if plans is not None:
        mask = pattern.dense_mask(config, layer, length)
    return dense_attention(query, key, value, input_mask, document_ids, mask)


def is_tiled(config: Config, length: int) -> bool:
    """Whether sequences of this length go through `tiled_self_attention`, rotated by one block."""
    model = config.model
    return model.attention_type == "block_sparse" and not pattern.is_full(config, length)


def random_tiles(plan: pattern.LayerPlan, tiles: int) -> RandomTiles:
    """How the random keys of a layer are laid beside its tiles."""
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
    """Projections, attention and output projection of one layer, whichever way suits.

    Where `is_tiled`, everything per token comes rotated by one block.

    Args:
        params: with the layer's kernels and biases.
        scope: the layer's, in the names of `params`.
        hidden: [b * S, hidden] in the compute dtype; cheaper as [b, tiles, rows, hidden] where
            `is_tiled`.
        shape: (b, S).
        input_mask: float32 [b, S]; 1 is a token, 0 padding, which no query sees.
        document_ids: int32 [b, S]; keys of other documents are not seen. None: no such limit.
        layer: its number.

    Returns:
        Of the shape of `hidden`.

    Raises:
        ValueError: a length that the block-sparse pattern cannot be laid over.
    """
    way = tiled_self_attention if is_tiled(config, shape[1]) else self_attention
    return way(params, config, scope, hidden, shape, input_mask, document_ids, layer)


def self_attention(
    params: Parameters,
    config: Config,
    scope: str,
    hidden: tf.Tensor,
    shape: tuple[int, int],
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    layer: int,
) -> tf.Tensor:
    """As `attend`, with all scores at once."""
    with tf.name_scope("attention/projections"):
        split = [*shape, config.model.num_attention_heads, -1]
        query, key, value = (
            tf.reshape(dense(params, f"{scope}/attention/self/{name}", hidden), split)
            for name in ("query", "key", "value")
        )
    context = attention(query, key, value, input_mask, document_ids, config, layer)
    with tf.name_scope("attention/output"):
        context = tf.reshape(context, hidden.shape)
        return dense(params, f"{scope}/attention/output/dense", context)


def tiled_self_attention(
    params: Parameters,
    config: Config,
    scope: str,
    hidden: tf.Tensor,
    shape: tuple[int, int],
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    layer: int,
) -> tf.Tensor:
    """The same for the `rolled` pattern, over sequences rotated by one block.

    The projections write [b, tiles, heads, size, rows] at once and the output projection reads it:
    no relayout in between. Arguments and result as for `self_attention`.
    """
    model, dtype = config.model, hidden.dtype
    width, heads, rows = model.hidden_size, model.num_attention_heads, 2 * model.block_size
    size = width // heads
    tiles = [shape[0], shape[1] // rows, rows]
    plans = pattern.random_plan(config, shape[1])
    assert plans is not None

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
    random = random_tiles(plans[layer], tiles[1])
    if is_kernel:
        from bigbird_ja.model.kernels.attention import kernel_attention  # imports jax

        assert isinstance(random, RolledTiles)
        context = kernel_attention(query, key, value, mask, documents, random)
    else:
        context = tiled_attention(query, key, value, mask, documents, random)
    with tf.name_scope("attention/output"):
        output = f"{scope}/attention/output/dense"
        kernel = tf.reshape(tf.cast(params[f"{output}/kernel"], dtype), [heads, size, width])
        projected = tf.einsum("bthdr,hdo->btro", context, kernel)
        projected = tf.reshape(projected, hidden.shape)
        return projected + tf.cast(params[f"{output}/bias"], dtype)
