"""ModernBERT's encoder (Warner et al. 2024, arXiv:2412.13663).

It is pre-norm, with rotary positions and gated MLPs.

Every `global_attn_every_n_layers`-th layer attends to all tokens, and the other layers attend to
neighboring tokens. transformers' `ModernBertModel` computes the same values and gradients.
"""

import functools
import math
from typing import cast

import numpy as np
import tensorflow as tf

from bigbird_ja.model import pattern
from bigbird_ja.model.kernels.choose import saves_derivatives
from bigbird_ja.model.kernels.layer_shape import tile_rows
from bigbird_ja.model.layers import (
    FORMS,
    Parameters,
    Tokens,
    activate,
    barrier,
    dense,
    dense_attention,
    dropout,
    layer_norm,
    run_layers,
)
from bigbird_ja.model.params import WORDS
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config, ModernBertModel

# Cosines [tiles, 1, 1, size / 2, rows] and sines [tiles, 1, 2, size / 2, rows] of rotary positions,
# float32. The sines are negated for the first half of a head.
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
    """Compute hidden states of all positions, or of the given `positions`.

    The arguments are those of `bigbird.encode`. Segments are ignored, as ModernBERT has no segment
    embeddings.
    """
    batch, length = (int(size) for size in input_ids.shape)
    documents = None if config.model.attend_across_documents else document_ids
    tokens = Tokens(tf.cast(tf.not_equal(input_ids, data.pad_id), tf.float32), documents)
    places = None
    if positions is not None:
        places = tf.reshape(positions + tf.range(batch)[:, None] * length, [-1])
    hidden = _embed(params, config, input_ids, dropout_key)
    # All layers share the angles, as each constant enlarges the program.
    model = get_modernbert_model(config)
    thetas = {True: model.global_rope_theta, False: model.local_rope_theta}
    angles = {
        is_global: _compute_angles(
            config, length, _count_tile_rows(config, length, is_global), theta
        )
        for is_global, theta in thetas.items()
    }
    run = functools.partial(_run_layer, config, tokens, places, dropout_key, angles)
    hidden = run_layers(params, config, run, hidden, dropout_key)
    hidden = layer_norm(params, "bert/final/LayerNorm", hidden, config.model.layer_norm_eps)
    return tf.reshape(hidden, [batch, -1, config.model.hidden_size])


def get_modernbert_model(config: Config) -> ModernBertModel:
    """Return the model settings of a config whose architecture is ModernBERT."""
    return cast(ModernBertModel, config.model)


def _embed(
    params: Parameters, config: Config, input_ids: tf.Tensor, dropout_key: tf.Tensor | None
) -> tf.Tensor:
    """Return normalized word embeddings, with dropout: [b * S, hidden]."""
    with tf.name_scope("embedding"):
        words = tf.gather(params[WORDS], tf.reshape(input_ids, [-1]))
        hidden = tf.cast(words, config.training.dtype)
        scope = "bert/embeddings/LayerNorm"
        hidden = layer_norm(params, scope, hidden, config.model.layer_norm_eps)
        return dropout(hidden, config.model.hidden_dropout_prob, dropout_key, 0)


def _count_tile_rows(config: Config, length: int, is_global: bool) -> int:
    """Return the number of tokens in a layer's tile.

    With XLA's attention, the tile is the whole sequence.
    """
    if config.model.attention_implementation != "kernel":
        return length
    return tile_rows(
        length, None if is_global else get_modernbert_model(config).local_attention // 2
    )


def _run_layer(
    config: Config,
    tokens: Tokens,
    places: tf.Tensor | None,
    dropout_key: tf.Tensor | None,
    angles: dict[bool, _Angles],
    layer: int,
    params: Parameters,
    hidden: tf.Tensor,
) -> tf.Tensor:
    """Run one layer.

    In the last layer, everything after the attention is computed only for the tokens at `places`
    (indices into all tokens of the batch, or None for all tokens).
    """
    scope, model = f"bert/encoder/layer_{layer}", get_modernbert_model(config)
    inputs = hidden
    if layer:  # The inputs of layer 0, the embeddings, are already normalized.
        inputs = layer_norm(params, f"{scope}/attention/LayerNorm", hidden, model.layer_norm_eps)
    output = _attend(params, config, layer, inputs, tokens, angles[pattern.is_global(model, layer)])
    if places is not None and layer == model.num_layers - 1:
        hidden, output = tf.gather(hidden, places), tf.gather(output, places)
    hidden += output
    with tf.name_scope("mlp"):
        inputs = layer_norm(params, f"{scope}/mlp/LayerNorm", hidden, model.layer_norm_eps)
        both = dense(params, f"{scope}/mlp/Wi", inputs)
        inner = apply_gate(model.hidden_act, both, save_product=saves_derivatives(config))
        inner = dropout(inner, model.hidden_dropout_prob, dropout_key, 1 + layer)
        return hidden + dense(params, f"{scope}/mlp/Wo", inner)


def _attend(
    params: Parameters,
    config: Config,
    layer: int,
    inputs: tf.Tensor,
    tokens: Tokens,
    angles: _Angles,
) -> tf.Tensor:
    """Compute projections, attention and output projection of one layer: [b * S, hidden].

    The projections write queries, keys and values as [b, tiles, heads, size, rows], so that the
    last axis, the tokens of a tile, fills the 128 lanes of a TPU. The 64 numbers of a head would
    fill only half of the lanes. With XLA's attention, a sequence is one tile.
    """
    model = get_modernbert_model(config)
    batch, length = (int(size) for size in tokens.mask.shape)
    heads, size = model.num_attention_heads, model.hidden_size // model.num_attention_heads
    scope = f"bert/encoder/layer_{layer}/attention"
    reach = None if pattern.is_global(model, layer) else model.local_attention // 2
    is_kernel = model.attention_implementation == "kernel"
    tiles = [batch, -1, int(angles[0].shape[-1])]
    with tf.name_scope("attention/projections"):
        kernel = tf.cast(params[f"{scope}/Wqkv/kernel"], inputs.dtype)
        kernel = tf.reshape(kernel, [model.hidden_size, 3, heads, size])
        rows = tf.reshape(inputs, [*tiles, model.hidden_size])
        # Query, key and value are computed by three matmuls. With a single matmul, splitting its
        # result and joining the gradients would cost copies.
        each = (tf.einsum("btri,ihd->bthdr", rows, part) for part in tf.unstack(kernel, axis=1))
        query, key, value = each
        scale = math.log2(math.e) * size**-0.5 if is_kernel else 1.0
        query, key = rotate(query, angles, scale), rotate(key, angles)
    if is_kernel:
        from bigbird_ja.model.kernels.kernel_attention import kernel_attention  # This imports jax.

        tokens = tokens.map(lambda numbers: tf.reshape(numbers, tiles))
        context = kernel_attention(query, key, value, tokens, reach=reach)
    else:
        query, key, value = (tf.transpose(each[:, 0], [0, 3, 1, 2]) for each in (query, key, value))
        context = banded_attention(query, key, value, tokens, reach)
        context = tf.transpose(context, [0, 2, 3, 1])[:, None]
    with tf.name_scope("attention/output"):
        kernel = tf.cast(params[f"{scope}/Wo/kernel"], inputs.dtype)
        kernel = tf.reshape(kernel, [heads, size, model.hidden_size])
        output = tf.einsum("bthdr,hdo->btro", context, kernel)
        return tf.reshape(output, [batch * length, model.hidden_size])


def banded_attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, tokens: Tokens, reach: int | None
) -> tf.Tensor:
    """Compute `dense_attention` to keys within `reach` tokens, or to all keys if `reach` is None.

    Each query block of `reach` tokens sees three key blocks. If a sequence has at most three
    blocks, or its length is not a multiple of `reach`, all scores are computed and masked.
    """
    if reach is None:
        return dense_attention(query, key, value, tokens, None)
    batch, length, heads, size = (int(n) for n in query.shape)
    blocks = length // max(reach, 1)
    if not reach or length % reach or blocks <= 3:
        places = np.arange(length)
        band = abs(places[:, None] - places[None, :]) <= reach
        return dense_attention(query, key, value, tokens, band[None])

    def join_neighbors(rows: tf.Tensor, beyond: float) -> tf.Tensor:
        """Join each block of keys with the previous and next one: [b * blocks, 3 * reach, ...]."""
        sides = [[0, 0], [1, 1]] + [[0, 0]] * (len(rows.shape) - 1)
        split = tf.reshape(rows, [batch, blocks, reach, *rows.shape[2:]])
        padded = tf.pad(split, sides, constant_values=tf.cast(beyond, rows.dtype))
        joined = tf.concat([padded[:, :-2], padded[:, 1:-1], padded[:, 2:]], axis=2)
        return tf.reshape(joined, [batch * blocks, 3 * reach, *rows.shape[2:]])

    queries, keys = np.arange(reach)[:, None] + reach, np.arange(3 * reach)[None, :]
    documents = tokens.documents
    context = dense_attention(
        tf.reshape(query, [-1, reach, heads, size]),
        join_neighbors(key, 0.0),
        join_neighbors(value, 0.0),
        Tokens(
            join_neighbors(tokens.mask, 0.0),
            None if documents is None else join_neighbors(documents, -1),
        ),
        (abs(queries - keys) <= reach)[None],
        None if documents is None else tf.reshape(documents, [-1, reach]),
    )
    return tf.reshape(context, [batch, length, heads, size])


def apply_gate(name: str, both: tf.Tensor, *, save_product: bool = False) -> tf.Tensor:
    """Split the last axis of `both`, and return `activate` of the first half times the second half.

    With `save_product`, `both` and the product are saved for the backward pass, and barriers make a
    TPU's compiler compute each gradient only once. `save_derivative` of `activate` has the same
    purpose, but needs more memory.
    """
    inner, gate = tf.split(both, 2, axis=-1)
    if not save_product or name not in FORMS:
        return activate(name, inner) * gate

    @tf.custom_gradient
    def run(inner: tf.Tensor, gate: tf.Tensor):  # type: ignore[no-untyped-def]
        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            value, slope = FORMS[name](inner)
            upstream, factor = tf.cast(upstream, tf.float32), tf.cast(gate, tf.float32)
            of_inner, of_gate = upstream * factor * slope, upstream * value
            return barrier([tf.cast(one, both.dtype) for one in (of_inner, of_gate)])

        product = FORMS[name](inner)[0] * tf.cast(gate, tf.float32)
        return barrier([tf.cast(product, both.dtype)])[0], gradient

    return run(inner, gate)


def rotate(values: tf.Tensor, angles: _Angles, scale: float = 1.0) -> tf.Tensor:
    """Apply rotary positions (Su et al. 2021, arXiv:2104.09864) to [b, tiles, heads, size, rows].

    Element d of a head's first half and element d of its second half are rotated together, and
    scaled, in float32. Barriers keep a TPU's compiler from fusing the rotation into the preceding
    matmuls, and from rotating gradients again in each matmul that reads them.
    """
    cosine, sine = angles
    halves = [*values.shape[:3], 2, values.shape[3] // 2, values.shape[4]]

    def turn(values: tf.Tensor, sine: tf.Tensor) -> tf.Tensor:
        split = tf.reshape(values, halves)
        # The halves are exchanged before the cast to float32. If they were exchanged after the
        # cast, a TPU would write the float32 array to HBM.
        straight, crossed = (
            tf.cast(part, tf.float32) * scale for part in (split, tf.reverse(split, [3]))
        )
        numbers = straight * cosine + crossed * sine
        return tf.reshape(tf.cast(numbers, values.dtype), values.shape)

    @tf.custom_gradient
    def run(values: tf.Tensor):  # type: ignore[no-untyped-def]
        (values,) = barrier([values])
        return turn(values, sine), lambda upstream: barrier([turn(upstream, -sine)])[0]

    return run(values)


def _compute_angles(config: Config, length: int, rows: int, theta: float) -> _Angles:
    """Return cosines and sines of the angles position * theta^(-2d / size), as in transformers.

    `size` is the size of a head, and d is the index of an element in half a head.
    """
    size = config.model.hidden_size // config.model.num_attention_heads
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    rates = (1.0 / np.float32(theta) ** exponents).astype(np.float32)
    positions = np.arange(length, dtype=np.float32).reshape(-1, 1, 1, 1, rows)
    angles = rates[:, None] * positions
    signs = np.array([-1, 1], np.float32)[:, None, None]
    return tf.constant(np.cos(angles)), tf.constant(signs * np.sin(angles))
