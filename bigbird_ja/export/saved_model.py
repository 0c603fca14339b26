"""A TensorFlow SavedModel: ids in, embeddings and log-probabilities out; no code of ours needed.

Batch and length are free up to the model's maximum. The training code wants static shapes, so the
graph here is written apart, with dense scores under the very mask that block-sparse attention
follows at each length; a test compares the two. Memory grows with the square of the length.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from bigbird_ja.evaluation.forward import inference_config
from bigbird_ja.export.source import Source
from bigbird_ja.model import pattern
from bigbird_ja.model.attention import HIDDEN
from bigbird_ja.model.layers import activate, dense, layer_norm
from bigbird_ja.model.params import PAD_ID
from bigbird_ja.settings.schema import Config

_SPEC = tf.TensorSpec([None, None], tf.int32)


def fill(directory: str, source: Source) -> None:
    """Writes the SavedModel and its tokenizer into an empty local directory."""
    module = Encoder(inference_config(source.config), source.params)
    tf.saved_model.save(
        module,
        directory,
        signatures={
            "serving_default": module.fill_mask,
            "fill_mask": module.fill_mask,
            "embed": module.embed,
        },
    )
    assets = os.path.join(directory, "assets.extra")
    os.makedirs(assets)
    with open(os.path.join(assets, "tokenizer.model"), "wb") as file:
        file.write(source.tokenizer.model_bytes)


class Encoder(tf.Module):
    """The model of one checkpoint with free shapes, in float32."""

    def __init__(self, config: Config, params: dict[str, np.ndarray]) -> None:
        super().__init__()
        self._config = config
        self._variables = {
            name: tf.Variable(value, trainable=False, name=name) for name, value in params.items()
        }
        self._masks = tf.constant(_block_masks(config))

    @tf.function(input_signature=[_SPEC, _SPEC])
    def embed(self, input_ids: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """ids int32 [b, n], 0 is padding -> `embeddings` float32 [b, n, hidden]."""
        return {"embeddings": self._encode(input_ids, segment_ids)}

    @tf.function(input_signature=[_SPEC, _SPEC, _SPEC])
    def fill_mask(
        self, input_ids: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """ids int32 [b, n], positions int32 [b, p] -> embeddings and log-probabilities there.

        `embeddings` float32 [b, n, hidden]; `log_probabilities` float32 [b, p, vocabulary].
        """
        params = self._variables
        hidden = self._encode(input_ids, segment_ids)
        rows = tf.gather(hidden, positions, batch_dims=1)
        shape = tf.shape(rows)
        rows = tf.reshape(rows, [-1, self._config.model.hidden_size])
        rows = dense(params, "cls/predictions/transform", rows)
        rows = activate(self._config.model.hidden_act, rows)
        epsilon = self._config.model.layer_norm_eps
        rows = layer_norm(params, "cls/predictions/transform", rows, epsilon)
        words = tf.convert_to_tensor(params["bert/embeddings/word_embeddings"])
        logits = tf.matmul(rows, words, transpose_b=True) + params["cls/predictions/output_bias"]
        found = tf.reshape(tf.nn.log_softmax(logits), [shape[0], shape[1], words.shape[0]])
        return {"embeddings": hidden, "log_probabilities": found}

    def _encode(self, input_ids: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
        model, params = self._config.model, self._variables
        given = tf.shape(input_ids)[1]
        check = tf.debugging.assert_less_equal(
            given, model.max_position_embeddings, message="more tokens than the model takes"
        )
        with tf.control_dependencies([check]):
            length = self._padded_length(given)
        padding = [[0, 0], [0, length - given]]
        input_ids = tf.pad(input_ids, padding, constant_values=PAD_ID)
        segment_ids = tf.pad(segment_ids, padding)
        shape = tf.stack([tf.shape(input_ids)[0], length])
        hidden = (
            tf.gather(tf.convert_to_tensor(params["bert/embeddings/word_embeddings"]), input_ids)
            + tf.gather(
                tf.convert_to_tensor(params["bert/embeddings/token_type_embeddings"]), segment_ids
            )
            + params["bert/embeddings/position_embeddings"][:length]
        )
        hidden = tf.reshape(hidden, [-1, model.hidden_size])
        hidden = layer_norm(params, "bert/encoder/LayerNorm", hidden, model.layer_norm_eps)
        visible = tf.cast(tf.not_equal(input_ids, PAD_ID), tf.float32)
        for layer in range(model.num_layers):
            hidden = self._layer(hidden, layer, shape, visible)
        hidden = tf.reshape(hidden, [shape[0], length, model.hidden_size])
        return hidden[:, :given]

    def _padded_length(self, length: tf.Tensor) -> tf.Tensor:
        """`evaluation.forward.padded_length`, in the graph."""
        model = self._config.model
        if model.attention_type == "original_full":
            return length
        tile = 2 * model.block_size
        tiles = tf.minimum(-(-length // tile) * tile, model.max_position_embeddings)
        return tf.where(length < pattern.shortest_sparse(model), length, tiles)

    def _layer(
        self, hidden: tf.Tensor, layer: int, shape: tf.Tensor, visible: tf.Tensor
    ) -> tf.Tensor:
        params, model = self._variables, self._config.model
        scope = f"bert/encoder/layer_{layer}"
        heads, epsilon = model.num_attention_heads, model.layer_norm_eps
        split = tf.concat([shape, [heads, model.hidden_size // heads]], axis=0)
        query, key, value = (
            tf.reshape(dense(params, f"{scope}/attention/self/{name}", hidden), split)
            for name in ("query", "key", "value")
        )
        scores = tf.einsum("bqhd,bkhd->bhqk", query, key) * (model.hidden_size // heads) ** -0.5
        allowed = visible[:, None, None, :] * self._mask(layer, shape[1])
        scores = tf.where(allowed > 0, scores, HIDDEN)
        weights = tf.nn.softmax(scores) * allowed  # a row that sees nothing gets nothing
        context = tf.reshape(tf.einsum("bhqk,bkhd->bqhd", weights, value), tf.shape(hidden))
        output = dense(params, f"{scope}/attention/output/dense", context) + hidden
        hidden = layer_norm(params, f"{scope}/attention/output/LayerNorm", output, epsilon)
        inner = activate(model.hidden_act, dense(params, f"{scope}/intermediate/dense", hidden))
        output = dense(params, f"{scope}/output/dense", inner) + hidden
        return layer_norm(params, f"{scope}/output/LayerNorm", output, epsilon)

    def _mask(self, layer: int, length: tf.Tensor) -> tf.Tensor:
        """Which tokens see which in a layer: float32 [1, heads, n, n]."""
        model = self._config.model
        if int(self._masks.shape[0]) == 0:
            return tf.ones([1, 1, length, length])
        size = model.block_size
        blocks = -(-length // size)
        index = tf.minimum(blocks // 2, int(self._masks.shape[0]) - 1)
        # Entry 0 is full attention, for lengths that are too short for the pattern.
        index = tf.where(length < pattern.shortest_sparse(model), 0, index)
        mask = tf.cast(self._masks[index, layer, :, :blocks, :blocks], tf.float32)
        mask = tf.repeat(tf.repeat(mask, size, axis=1), size, axis=2)
        return mask[None, :, :length, :length]


def _block_masks(config: Config) -> np.ndarray:
    """bool [tiles + 1, layers, heads, blocks, blocks]: the pattern at each number of tiles."""
    model = config.model
    most = model.max_position_embeddings
    assert most is not None
    blocks = -(-most // model.block_size)
    if model.attention_type == "original_full" or most < pattern.shortest_sparse(model):
        return np.ones((0, model.num_layers, model.num_attention_heads, blocks, blocks), bool)
    tile = 2 * model.block_size
    masks = np.ones(
        (most // tile + 1, model.num_layers, model.num_attention_heads, blocks, blocks), bool
    )
    for tiles in range(1, most // tile + 1):
        if tiles * tile >= pattern.shortest_sparse(model):
            for layer in range(model.num_layers):
                mask = pattern.block_mask(config, layer, tiles * tile)
                masks[tiles, layer, :, : 2 * tiles, : 2 * tiles] = mask
    return masks


def load(directory: str) -> Any:
    """Loads what `fill` wrote."""
    return tf.saved_model.load(directory)
