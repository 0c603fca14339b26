"""Runs ModernBERT's encoder (Warner et al. 2024, arXiv:2412.13663).

It is pre-norm, with rotary positions and gated MLPs.

Every `global_attn_every_n_layers`-th layer attends to all tokens, the others to their neighbours.
Values and gradients are those of transformers' `ModernBertModel`.
"""

import math

import numpy as np
import tensorflow as tf

from bigbird_ja.model import pattern
from bigbird_ja.model.attention import banded_attention
from bigbird_ja.model.dropout import drop_at
from bigbird_ja.model.implementation import tile_rows
from bigbird_ja.model.layers import Parameters, activate, dense, layer_norm, run_layers
from bigbird_ja.model.params import WORDS, layer_parameter_names
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config

# Cosines and sines, float32 [tiles, 1, size / 2, rows].
_Angles = tuple[tf.Tensor, tf.Tensor]


@tf.autograph.experimental.do_not_convert
def encode(
    params: Parameters,
    config: Config,
    data: Data,
    input_ids: tf.Tensor,
    segment_ids: tf.Tensor | None = None,
    document_ids: tf.Tensor | None = None,
    *,
    positions: tf.Tensor | None = None,
    dropout_key: tf.Tensor | None = None,
) -> tf.Tensor:
    """Compute hidden states of every position, or of some, as `bigbird.encode`.

    Segments are ignored: this shape has no embeddings of them.
    """
    batch, length = (int(size) for size in input_ids.shape)
    documents = None if config.model.attend_across_documents else document_ids
    input_mask = tf.cast(tf.not_equal(input_ids, data.pad_id), tf.float32)
    places = None
    if positions is not None:
        places = tf.reshape(positions + tf.range(batch)[:, None] * length, [-1])
    hidden = embed(params, config, input_ids, dropout_key)
    # Once for all layers: a program holds every constant that is written down.
    thetas = {True: config.model.global_rope_theta, False: config.model.local_rope_theta}
    angles = {
        is_global: _angles(config, length, _rows(config, length, is_global), theta)
        for is_global, theta in thetas.items()
    }
    shared = (batch, length), input_mask, documents, places, dropout_key
    layers = (
        _layer(config, layer, *shared, angles[pattern.is_global(config.model, layer)])
        for layer in range(config.model.num_layers)
    )
    recomputes = config.training.gradient_checkpointing and dropout_key is not None
    hidden = run_layers(params, layers, hidden, recomputes)
    hidden = layer_norm(params, "bert/final/LayerNorm", hidden, config.model.layer_norm_eps)
    return tf.reshape(hidden, [batch, -1, config.model.hidden_size])


def _rows(config: Config, length: int, is_global: bool) -> int:
    """Return the tokens of a layer's tiles; XLA takes one tile."""
    if config.model.attention_implementation != "kernel":
        return length
    return tile_rows(length, None if is_global else config.model.local_attention // 2)


def embed(
    params: Parameters, config: Config, input_ids: tf.Tensor, dropout_key: tf.Tensor | None
) -> tf.Tensor:
    """Embed words, normalise, drop out: [b * S, hidden] in `training.dtype`."""
    with tf.name_scope("embedding"):
        words = tf.gather(params[WORDS], tf.reshape(input_ids, [-1]))
        hidden = tf.cast(words, config.training.dtype)
        scope = "bert/embeddings/LayerNorm"
        hidden = layer_norm(params, scope, hidden, config.model.layer_norm_eps)
        return drop_at(hidden, config.model.hidden_dropout_prob, dropout_key, 0)


def _layer(config, layer, shape, input_mask, documents, places, dropout_key, angles):  # type: ignore[no-untyped-def]
    """Make one layer (`layers.Layer`).

    Where `places` are given, of all tokens of the batch, what comes after the last layer's
    attention is for those.
    """
    scope = f"bert/encoder/layer_{layer}"
    names = layer_parameter_names(config, layer)
    model = config.model
    wanted = places if layer == model.num_layers - 1 else None

    def run(hidden: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
        params = dict(zip(names, weights, strict=True))
        inputs = hidden
        if layer:  # the embeddings come normalised
            norm = f"{scope}/attention/LayerNorm"
            inputs = layer_norm(params, norm, hidden, model.layer_norm_eps)
        output = _attend(params, config, layer, inputs, shape, input_mask, documents, angles)
        if wanted is not None:
            hidden, output = tf.gather(hidden, wanted), tf.gather(output, wanted)
        hidden += output
        with tf.name_scope("mlp"):
            inputs = layer_norm(params, f"{scope}/mlp/LayerNorm", hidden, model.layer_norm_eps)
            inner, gate = tf.split(dense(params, f"{scope}/mlp/Wi", inputs), 2, axis=-1)
            inner = activate(model.hidden_act, inner) * gate
            inner = drop_at(inner, model.hidden_dropout_prob, dropout_key, 1 + layer)
            return hidden + dense(params, f"{scope}/mlp/Wo", inner)

    return names, run


def _attend(
    params: Parameters,
    config: Config,
    layer: int,
    inputs: tf.Tensor,
    shape: tuple[int, int],
    input_mask: tf.Tensor,
    documents: tf.Tensor | None,
    angles: _Angles,
) -> tf.Tensor:
    """Compute projections, attention and output projection of one layer: [b * S, hidden].

    Queries, keys and values are [b, tiles, heads, size, rows]: tokens fill the TPU's lanes, which a
    head's 64 numbers would fill by half, and the projections write them so. XLA's way has one tile.
    """
    model, (batch, length) = config.model, shape
    heads, size = model.num_attention_heads, model.hidden_size // model.num_attention_heads
    scope = f"bert/encoder/layer_{layer}/attention"
    reach = None if pattern.is_global(model, layer) else model.local_attention // 2
    is_kernel = model.attention_implementation == "kernel"
    tiles = [batch, -1, int(angles[0].shape[-1])]
    with tf.name_scope("attention/projections"):
        kernel = tf.cast(params[f"{scope}/Wqkv/kernel"], inputs.dtype)
        kernel = tf.reshape(kernel, [model.hidden_size, 3, heads, size])
        tokens = tf.reshape(inputs, [*tiles, model.hidden_size])
        query, key, value = tf.unstack(tf.einsum("btri,inhd->nbthdr", tokens, kernel))
        scale = math.log2(math.e) * size**-0.5 if is_kernel else 1.0
        query, key = rotated(query, angles, scale), rotated(key, angles)
    if is_kernel:
        from bigbird_ja.model.kernels.kernel_attention import kernel_attention  # imports jax

        numbers = None if documents is None else tf.reshape(documents, tiles)
        mask = tf.reshape(input_mask, tiles)
        context = kernel_attention(query, key, value, mask, numbers, reach)
    else:
        query, key, value = (tf.transpose(each[:, 0], [0, 3, 1, 2]) for each in (query, key, value))
        context = banded_attention(query, key, value, input_mask, documents, reach)
        context = tf.transpose(context, [0, 2, 3, 1])[:, None]
    with tf.name_scope("attention/output"):
        kernel = tf.cast(params[f"{scope}/Wo/kernel"], inputs.dtype)
        kernel = tf.reshape(kernel, [heads, size, model.hidden_size])
        output = tf.einsum("bthdr,hdo->btro", context, kernel)
        return tf.reshape(output, [batch * length, model.hidden_size])


def rotated(values: tf.Tensor, angles: _Angles, scale: float = 1.0) -> tf.Tensor:
    """Apply rotary positions (Su et al. 2021, arXiv:2104.09864), [b, tiles, heads, size, rows].

    Number d of a head's first half and number d of its second are turned together, and scaled;
    computed in float32.
    """
    cosine, sine = angles
    low, high = tf.split(tf.cast(values, tf.float32) * scale, 2, axis=3)
    turned = [low * cosine - high * sine, high * cosine + low * sine]
    return tf.cast(tf.concat(turned, axis=3), values.dtype)


def _angles(config: Config, length: int, rows: int, theta: float) -> _Angles:
    """Compute cosines and sines of position * theta^(-2d / size), as transformers does."""
    size = config.model.hidden_size // config.model.num_attention_heads
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    rates = (1.0 / np.float32(theta) ** exponents).astype(np.float32)
    positions = np.arange(length, dtype=np.float32).reshape(-1, 1, 1, rows)
    angles = rates[:, None] * positions
    return tf.constant(np.cos(angles)), tf.constant(np.sin(angles))
