"""Runs BigBird's encoder, post-norm like BERT: embeddings, then layers of attention and MLP."""

import tensorflow as tf

from bigbird_ja.model.attention import attend, is_tiled, rows_of_tiles
from bigbird_ja.model.dropout import drop_at
from bigbird_ja.model.implementation import keeps_slope
from bigbird_ja.model.layers import Parameters, activate, dense, layer_norm, run_layers
from bigbird_ja.model.params import SEGMENTS, WORDS, layer_parameter_names
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config

# Where dropout is applied, for its random stream: the embeddings, then two places in each layer.
_EMBEDDING_PLACE = 0
_PLACES_PER_LAYER = 2


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
    """Compute hidden states of every position, or of some, for which alone the last MLP runs.

    Args:
        params: as `parameter_specs` lists them, float32.
        config: of the run.
        data: of the run.
        input_ids: int32 [b, S], static; nothing attends to `data.pad_id`.
        segment_ids: int32 [b, S].
        document_ids: int32 [b, S]; used only where `attend_across_documents` is off.
        positions: int32 [b, P], each below S; None: all.
        dropout_key: of `bigbird_ja.model.dropout`; None is no dropout.

    Returns:
        [b, S or P, hidden] in `training.dtype`; finite and without meaning at padding.

    Raises:
        ValueError: a sequence length that the attention pattern cannot be laid over.
    """
    batch, length = (int(size) for size in input_ids.shape)
    documents = None if config.model.attend_across_documents else document_ids
    # Rotated by one block, as rolled attention wants the global blocks side by side.
    offset = config.model.block_size if is_tiled(config, length) else 0
    if offset:
        input_ids, segment_ids = tf.roll(input_ids, offset, 1), tf.roll(segment_ids, offset, 1)
        documents = None if documents is None else tf.roll(documents, offset, 1)
    input_mask = tf.cast(tf.not_equal(input_ids, data.pad_id), tf.float32)
    hidden = embed(params, config, input_ids, segment_ids, dropout_key, offset)
    if rows := rows_of_tiles(config, length):
        # As tiles all the way: a reshape between a layer's parts would cost a relayout each time.
        hidden = tf.reshape(hidden, [batch, -1, rows, config.model.hidden_size])
    chosen = None
    if positions is not None:
        chosen = (positions + offset) % length + tf.range(batch)[:, None] * length
    shared = (batch, length), input_mask, documents, chosen, dropout_key
    layers = (_layer(config, layer, *shared) for layer in range(config.model.num_layers))
    recomputes = config.training.gradient_checkpointing and dropout_key is not None
    hidden = run_layers(params, layers, hidden, recomputes)
    hidden = tf.reshape(hidden, [batch, -1, config.model.hidden_size])
    return tf.roll(hidden, -offset, 1) if offset and positions is None else hidden


def embed(
    params: Parameters,
    config: Config,
    input_ids: tf.Tensor,
    segment_ids: tf.Tensor,
    dropout_key: tf.Tensor | None,
    offset: int = 0,
) -> tf.Tensor:
    """Sum word, segment and position embeddings, drop out, normalise: [b * S, hidden].

    Args:
        params: as of `encode`.
        config: of the run.
        input_ids: int32 [b, S].
        segment_ids: int32 [b, S].
        dropout_key: as of `encode`.
        offset: by how many places the given ids are rotated.
    """
    model = config.model
    dtype = tf.as_dtype(config.training.dtype)
    batch, length = (int(size) for size in input_ids.shape)
    with tf.name_scope("embedding"):
        words = tf.gather(params[WORDS], input_ids)
        # A handful of rows: a matmul is cheaper than a gather, and its gradient than a scatter.
        segments = tf.matmul(
            tf.one_hot(tf.reshape(segment_ids, [-1]), SEGMENTS),
            params["bert/embeddings/token_type_embeddings"],
        )
        positions = params["bert/embeddings/position_embeddings"][:length]
        if offset:
            positions = tf.concat([positions[-offset:], positions[:-offset]], axis=0)
        summed = words + positions + tf.reshape(segments, words.shape)
        hidden = tf.cast(tf.reshape(summed, [batch * length, model.hidden_size]), dtype)
        hidden = drop_at(hidden, model.hidden_dropout_prob, dropout_key, _EMBEDDING_PLACE)
        return layer_norm(params, "bert/encoder/LayerNorm", hidden, model.layer_norm_eps)


def _layer(config, layer, shape, input_mask, documents, places, dropout_key):  # type: ignore[no-untyped-def]
    """Make one layer (`layers.Layer`).

    Where `places` are given, of all tokens of the batch, what comes after the last layer's
    attention is for those.
    """
    scope = f"bert/encoder/layer_{layer}"
    names = layer_parameter_names(config, layer)
    model, rate = config.model, config.model.hidden_dropout_prob
    wanted = places if layer == model.num_layers - 1 else None
    place = 1 + layer * _PLACES_PER_LAYER

    def run(hidden: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
        params = dict(zip(names, weights, strict=True))
        output = attend(params, config, scope, hidden, shape, input_mask, documents, layer)
        with tf.name_scope("attention/output"):
            output = drop_at(output, rate, dropout_key, place) + hidden
            if wanted is not None:
                rows = tf.reshape(output, [-1, model.hidden_size])
                output = tf.gather(rows, tf.reshape(wanted, [-1]))
        norm = f"{scope}/attention/output/LayerNorm"
        hidden = layer_norm(params, norm, output, model.layer_norm_eps)
        with tf.name_scope("mlp"):
            inner = dense(params, f"{scope}/intermediate/dense", hidden)
            inner = activate(model.hidden_act, inner, keeps_slope=keeps_slope(config))
            output = dense(params, f"{scope}/output/dense", inner)
            output = drop_at(output, rate, dropout_key, place + 1) + hidden
        return layer_norm(params, f"{scope}/output/LayerNorm", output, model.layer_norm_eps)

    return names, run
