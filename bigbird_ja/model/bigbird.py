"""BigBird's encoder: embeddings, then post-norm layers of attention and MLP, as in BERT.

Attention is computed with all scores at once, in tiles (`tiled`), or by TPU kernels (`kernels`).
`pattern` defines the keys that a query sees. The reference implementation computes all scores, and
masks the scores of hidden keys.
"""

import functools
import math

import numpy as np
import tensorflow as tf

from bigbird_ja.model import pattern
from bigbird_ja.model.kernels.choose import saves_derivatives
from bigbird_ja.model.kernels.layer_shape import tile_rows
from bigbird_ja.model.layers import (
    Parameters,
    Tokens,
    activate,
    dense,
    dense_attention,
    dropout,
    layer_norm,
    run_layers,
)
from bigbird_ja.model.params import POSITIONS, SEGMENT_TABLE, SEGMENTS, WORDS
from bigbird_ja.model.tiled import tiled_attention
from bigbird_ja.model.tiling import make_random_tiles
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config


@tf.autograph.experimental.do_not_convert
def encode(
    params: Parameters,
    config: Config,
    data: Data,
    input_ids: tf.Tensor,
    segment_ids: tf.Tensor,
    document_ids: tf.Tensor | None = None,
    *,
    positions: tf.Tensor | None = None,
    dropout_key: tf.Tensor | None = None,
) -> tf.Tensor:
    """Compute hidden states of all positions, or of the given `positions`.

    Args:
        params: parameters of `make_parameter_specs`, float32.
        config: config of the run.
        data: data of the run.
        input_ids: int32 [b, S], static shape. No token attends to `data.pad_id`.
        segment_ids: int32 [b, S].
        document_ids: int32 [b, S], used only if `attend_across_documents` is off.
        positions: int32 [b, P], positions of the returned hidden states, or None for all.
        dropout_key: key of `layers.make_key`, or None to disable dropout.

    Returns:
        [b, S or P, hidden] in `training.dtype`, finite but meaningless at padding.

    Raises:
        ValueError: The sequence length does not suit the attention pattern.
    """
    batch, length = (int(size) for size in input_ids.shape)
    documents = None if config.model.attend_across_documents else document_ids
    # In tiled attention the two global blocks, the last and the first, must be adjacent. So the
    # tokens are rotated by one block.
    offset = pattern.get_sparse_model(config).block_size if is_tiled(config, length) else 0
    if offset:
        input_ids, segment_ids = tf.roll(input_ids, offset, 1), tf.roll(segment_ids, offset, 1)
        documents = None if documents is None else tf.roll(documents, offset, 1)
    tokens = Tokens(tf.cast(tf.not_equal(input_ids, data.pad_id), tf.float32), documents)
    hidden = _embed(params, config, input_ids, segment_ids, dropout_key, offset)
    if rows := count_tile_rows(config, length):
        # The hidden states keep this shape in all layers. Each reshape inside a layer would make a
        # TPU copy them to another memory layout.
        hidden = tf.reshape(hidden, [batch, -1, rows, config.model.hidden_size])
    places = None
    if positions is not None:
        places = (positions + offset) % length + tf.range(batch)[:, None] * length
    run = functools.partial(_run_layer, config, tokens, places, dropout_key)
    hidden = run_layers(params, config, run, hidden, dropout_key)
    hidden = tf.reshape(hidden, [batch, -1, config.model.hidden_size])
    return tf.roll(hidden, -offset, 1) if offset and positions is None else hidden


def _embed(
    params: Parameters,
    config: Config,
    input_ids: tf.Tensor,
    segment_ids: tf.Tensor,
    dropout_key: tf.Tensor | None,
    offset: int,
) -> tf.Tensor:
    """Sum and normalize word, segment and position embeddings, with dropout: [b * S, hidden].

    The ids are rotated by `offset` tokens, so the position embeddings are rotated, too.
    """
    model = config.model
    batch, length = (int(size) for size in input_ids.shape)
    with tf.name_scope("embedding"):
        words = tf.gather(params[WORDS], input_ids)
        # For a table with few rows a matmul is cheaper than a gather and its gradient, a scatter.
        rows = tf.one_hot(tf.reshape(segment_ids, [-1]), SEGMENTS)
        segments = tf.matmul(rows, params[SEGMENT_TABLE])
        positions = params[POSITIONS][:length]
        if offset:
            positions = tf.concat([positions[-offset:], positions[:-offset]], axis=0)
        summed = words + positions + tf.reshape(segments, words.shape)
        hidden = tf.reshape(summed, [batch * length, model.hidden_size])
        hidden = tf.cast(hidden, config.training.dtype)
        hidden = dropout(hidden, model.hidden_dropout_prob, dropout_key, 0)
        return layer_norm(params, "bert/encoder/LayerNorm", hidden, model.layer_norm_eps)


def _run_layer(
    config: Config,
    tokens: Tokens,
    places: tf.Tensor | None,
    dropout_key: tf.Tensor | None,
    layer: int,
    params: Parameters,
    hidden: tf.Tensor,
) -> tf.Tensor:
    """Run one layer.

    In the last layer, everything after the attention is computed only for the tokens at `places`
    (indices into all tokens of the batch, or None for all tokens).
    """
    scope = f"bert/encoder/layer_{layer}"
    model, rate = config.model, config.model.hidden_dropout_prob
    output = attend(params, config, scope, hidden, tokens, layer)
    with tf.name_scope("attention/output"):
        output = dropout(output, rate, dropout_key, 1 + 2 * layer) + hidden
        if places is not None and layer == model.num_layers - 1:
            rows = tf.reshape(output, [-1, model.hidden_size])
            output = tf.gather(rows, tf.reshape(places, [-1]))
    norm = f"{scope}/attention/output/LayerNorm"
    hidden = layer_norm(params, norm, output, model.layer_norm_eps)
    with tf.name_scope("mlp"):
        inner = dense(params, f"{scope}/intermediate/dense", hidden)
        inner = activate(model.hidden_act, inner, save_derivative=saves_derivatives(config))
        output = dense(params, f"{scope}/output/dense", inner)
        output = dropout(output, rate, dropout_key, 2 + 2 * layer) + hidden
    return layer_norm(params, f"{scope}/output/LayerNorm", output, model.layer_norm_eps)


def is_tiled(config: Config, length: int) -> bool:
    """Return whether sequences of this length are rotated by one block and processed in tiles."""
    if pattern.is_full(config, length):
        return False
    return pattern.get_sparse_model(config).attention_type == "block_sparse"


def count_tile_rows(config: Config, length: int) -> int:
    """Return the number of tokens in a tile, or 0 if `attend` processes whole sequences."""
    if is_tiled(config, length):
        return 2 * pattern.get_sparse_model(config).block_size
    is_kernel = config.model.attention_implementation == "kernel"
    return tile_rows(length, None) if is_kernel and pattern.is_full(config, length) else 0


def attend(
    params: Parameters, config: Config, scope: str, hidden: tf.Tensor, tokens: Tokens, layer: int
) -> tf.Tensor:
    """Compute projections, attention and output projection of one layer.

    If `is_tiled`, the sequences are rotated by one block. If `count_tile_rows` is not 0, the
    projections write arrays [b, tiles, heads, size, rows]. Attention and the output projection read
    the same shape, so no array is copied to another memory layout.

    Args:
        params: the layer's kernels and biases.
        config: config of the run.
        scope: the layer's prefix in the names of `params`.
        hidden: [b, tiles, rows, hidden] in the compute dtype, or [b * S, hidden] if
            `count_tile_rows` is 0.
        tokens: tokens of the sequences.
        layer: number of the layer.

    Returns:
        Output in the shape of `hidden`.

    Raises:
        ValueError: The sequence length does not suit the block-sparse pattern.
    """
    batch, length = (int(size) for size in tokens.mask.shape)
    rows = count_tile_rows(config, length)
    if not rows:
        return _attend_whole(params, config, scope, hidden, tokens, layer)
    tiles = [batch, length // rows, rows]
    with tf.name_scope("attention/projections"):
        query, key, value = _project_in_tiles(params, config, scope, hidden, tiles)
        tokens = tokens.map(lambda numbers: tf.reshape(numbers, tiles))
    plans = pattern.random_plan(config, length)
    plan: np.ndarray | None = None if plans is None else plans[layer]
    if config.model.attention_implementation == "kernel":
        from bigbird_ja.model.kernels.kernel_attention import kernel_attention  # This imports jax.

        context = kernel_attention(query, key, value, tokens, plan)
    else:
        assert plan is not None
        context = tiled_attention(query, key, value, tokens, make_random_tiles(plan, tiles[1]))
    with tf.name_scope("attention/output"):
        output = f"{scope}/attention/output/dense"
        kernel = tf.cast(params[f"{output}/kernel"], hidden.dtype)
        kernel = tf.reshape(kernel, [*context.shape[2:4], -1])  # [heads, size, hidden]
        projected = tf.reshape(tf.einsum("bthdr,hdo->btro", context, kernel), hidden.shape)
        return projected + tf.cast(params[f"{output}/bias"], hidden.dtype)


def _project_in_tiles(
    params: Parameters, config: Config, scope: str, hidden: tf.Tensor, tiles: list[int]
) -> list[tf.Tensor]:
    """Return the scaled query, the key and the value: [b, tiles, heads, size, rows] each."""
    width, heads = config.model.hidden_size, config.model.num_attention_heads
    size, dtype = width // heads, hidden.dtype
    is_kernel = config.model.attention_implementation == "kernel"
    base = math.log2(math.e) if is_kernel else 1.0  # The kernels compute 2^x in place of e^x.
    result = []
    for name, scale in (("query", base * size**-0.5), ("key", 1.0), ("value", 1.0)):
        inner = f"{scope}/attention/self/{name}"
        kernel = tf.reshape(tf.cast(params[f"{inner}/kernel"], dtype), [width, heads, size])
        bias = tf.reshape(tf.cast(params[f"{inner}/bias"], dtype), [heads, size, 1])
        projected = tf.einsum("btri,ihd->bthdr", tf.reshape(hidden, [*tiles, width]), kernel)
        result.append((projected + bias) * tf.cast(scale, dtype))
    return result


def _attend_whole(
    params: Parameters, config: Config, scope: str, hidden: tf.Tensor, tokens: Tokens, layer: int
) -> tf.Tensor:
    """Compute `attend` for whole sequences, without tiles."""
    batch, length = (int(size) for size in tokens.mask.shape)
    with tf.name_scope("attention/projections"):
        split = [batch, length, config.model.num_attention_heads, -1]
        query, key, value = (
            tf.reshape(dense(params, f"{scope}/attention/self/{name}", hidden), split)
            for name in ("query", "key", "value")
        )
    is_full = pattern.is_full(config, length)
    mask = None if is_full else pattern.make_dense_mask(config, layer, length)
    context = dense_attention(query, key, value, tokens, mask)
    with tf.name_scope("attention/output"):
        context = tf.reshape(context, hidden.shape)
        return dense(params, f"{scope}/attention/output/dense", context)
