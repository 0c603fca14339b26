"""Encoder and heads together: losses for training, and evaluation without dropout.

The heads predict masked tokens, and whether segment B follows segment A. Evaluation runs in
float32, without gradient checkpointing. A graph is traced for each shape of a batch.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import tensorflow as tf

from bigbird_ja.model import bigbird, modernbert, pattern
from bigbird_ja.model.kernels.choose import saves_derivatives
from bigbird_ja.model.layers import Parameters, activate, dense, layer_norm
from bigbird_ja.model.params import WORDS
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import replace_settings


def encode(
    params: Parameters, config: Config, data: Data, *inputs: tf.Tensor, **more: tf.Tensor
) -> tf.Tensor:
    """Compute hidden states with the encoder of `model.architecture` (see `bigbird.encode`)."""
    encoder = modernbert if config.model.architecture == "modernbert" else bigbird
    return encoder.encode(params, config, data, *inputs, **more)


@tf.autograph.experimental.do_not_convert
def compute_pretraining_metrics(
    params: Parameters,
    config: Config,
    data: Data,
    batch: Mapping[str, tf.Tensor],
    *,
    dropout_key: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Compute the loss of each prediction of a batch.

    Args:
        params: parameters, float32.
        config: config of the run.
        data: data of the run.
        batch: int32 tensors by name. input_ids, segment_ids and, optionally, document_ids are
            [b, S]. masked_lm_positions and masked_lm_ids are [b, P]. With next-sentence
            prediction, next_sentence_labels is [b].
        dropout_key: see `encode`.

    Returns:
        float32 tensors by name. masked_lm_losses (cross-entropy in nats) and masked_lm_correct (1
        if the token with the highest score is right, else 0) are [b, P]. The caller weights them by
        `masked_lm_weights`. With next-sentence prediction, next_sentence_losses and
        next_sentence_correct are [b].
    """
    positions = batch["masked_lm_positions"]
    if data.nsp:  # The pooler reads the first position.
        positions = tf.pad(positions, [[0, 0], [1, 0]])
    hidden = encode(
        params,
        config,
        data,
        batch["input_ids"],
        batch["segment_ids"],
        batch.get("document_ids"),
        positions=positions,
        dropout_key=dropout_key,
    )
    masked = hidden[:, 1:] if data.nsp else hidden
    logits, ids = masked_lm_logits(params, config, masked), batch["masked_lm_ids"]
    with tf.name_scope("mlm_head"):
        losses = cross_entropy(logits, ids)
        correct = tf.cast(tf.equal(find_first_best(logits), ids), tf.float32)
    metrics = {"masked_lm_losses": losses, "masked_lm_correct": correct}
    if data.nsp:
        labels = batch["next_sentence_labels"]
        logits = next_sentence_logits(params, hidden[:, 0])
        metrics["next_sentence_losses"] = cross_entropy(logits, labels)
        hits = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), labels)
        metrics["next_sentence_correct"] = tf.cast(hits, tf.float32)
    return metrics


def masked_lm_logits(params: Parameters, config: Config, hidden: tf.Tensor) -> tf.Tensor:
    """Compute the scores of all tokens of the vocabulary at some positions.

    Args:
        params: parameters, float32.
        config: config of the run.
        hidden: [b, P, hidden], hidden states at those positions. The static size of b or P may be
            unknown.

    Returns:
        [b, P, vocabulary] in the dtype of `hidden`.
    """
    batch, predictions, width = (-1 if size is None else int(size) for size in hidden.shape)
    with tf.name_scope("mlm_head"):
        rows = tf.reshape(hidden, [-1, width])
        rows = dense(params, "cls/predictions/transform", rows)
        rows = activate(config.model.hidden_act, rows, save_derivative=saves_derivatives(config))
        rows = layer_norm(params, "cls/predictions/transform", rows, config.model.layer_norm_eps)
        embeddings = tf.cast(params[WORDS], rows.dtype)
        logits = tf.matmul(rows, embeddings, transpose_b=True)
        logits += tf.cast(params["cls/predictions/output_bias"], rows.dtype)
        return tf.reshape(logits, [batch, predictions, int(embeddings.shape[0])])


def next_sentence_logits(params: Parameters, first: tf.Tensor) -> tf.Tensor:
    """Compute the scores of the two classes of next-sentence prediction.

    Args:
        params: parameters, float32.
        first: [b, hidden], hidden states at the first position.

    Returns:
        float32 [b, 2], where class 0 is "B follows A" and 1 is "B comes from elsewhere".
    """
    with tf.name_scope("pooler"):
        pooled = tf.tanh(dense(params, "bert/pooler/dense", first))
    with tf.name_scope("nsp_head"):
        weights = tf.cast(params["cls/seq_relationship/output_weights"], pooled.dtype)
        logits = tf.cast(tf.matmul(pooled, weights, transpose_b=True), tf.float32)
        return logits + params["cls/seq_relationship/output_bias"]


def cross_entropy(logits: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Compute -log softmax(logits)[ids] over the last axis, without storing float32 logits.

    Args:
        logits: [..., classes], float32 or bfloat16.
        ids: int32 [...], classes.

    Returns:
        Cross-entropy, float32 [...].
    """

    @tf.custom_gradient
    def run(logits: tf.Tensor):  # type: ignore[no-untyped-def]
        maximum = tf.cast(tf.reduce_max(logits, axis=-1, keepdims=True), tf.float32)
        total = tf.reduce_sum(tf.exp(tf.cast(logits, tf.float32) - maximum), axis=-1, keepdims=True)
        normalizer = maximum + tf.math.log(total)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            with tf.name_scope("mlm_head"):
                probabilities = tf.exp(tf.cast(logits, tf.float32) - normalizer)
                difference = tf.where(_is_target(logits, ids), probabilities - 1.0, probabilities)
                return tf.cast(difference * upstream[..., None], logits.dtype)

        # A comparison and a sum select the target's logit. XLA fuses them with adjacent operations,
        # but would not fuse a gather along the vocabulary.
        chosen = tf.where(_is_target(logits, ids), tf.cast(logits, tf.float32), 0.0)
        return normalizer[..., 0] - tf.reduce_sum(chosen, axis=-1), gradient

    return run(logits)


def find_first_best(logits: tf.Tensor) -> tf.Tensor:
    """Return the first position of the maximum along the last axis: int32 [...].

    The result equals that of `tf.argmax`. This function uses two simpler reductions, which XLA
    fuses with other reductions over the logits.
    """
    classes = int(logits.shape[-1])
    is_best = tf.equal(logits, tf.reduce_max(logits, axis=-1, keepdims=True))
    # Positions are float32 (exact below 2^24), since reductions of one dtype can share a pass over
    # the logits.
    places = tf.where(is_best, tf.range(classes, dtype=tf.float32), float(classes))
    # If the scores contain NaN, no position equals the maximum, and the last position is returned.
    return tf.cast(tf.minimum(tf.reduce_min(places, axis=-1), classes - 1.0), tf.int32)


def _is_target(logits: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.equal(tf.range(int(logits.shape[-1]), dtype=tf.int32), ids[..., None])


def make_inference_config(config: Config) -> Config:
    """Return the config for evaluation: float32, XLA's attention, no gradient checkpointing.

    All runs are evaluated with these settings, so that their results are comparable.
    """
    inference = {
        "model.attention_implementation": "xla",
        "training.dtype": "float32",
        "training.gradient_checkpointing": False,
    }
    return replace_settings(config, inference)


def masked_log_probabilities(
    config: Config,
    data: Data,
    params: Mapping[str, tf.Tensor],
    input_ids: tf.Tensor,
    positions: tf.Tensor,
    documents: tf.Tensor | None = None,
) -> tf.Tensor:
    """Compute log-probabilities of all tokens of the vocabulary at `positions`.

    Args:
        config: config of the run.
        data: data of the run.
        params: parameters by name, float32.
        input_ids: int32 [b, S], token ids, padded by `pad_ids`.
        positions: int32 [b, P].
        documents: int32 [b, S], document numbers, or None if each row is one document.

    Returns:
        float32 [b, P, vocabulary], natural logarithms.
    """
    segments = tf.zeros_like(input_ids)
    hidden = encode(params, config, data, input_ids, segments, documents, positions=positions)
    logits = masked_lm_logits(params, config, hidden)
    return tf.nn.log_softmax(tf.cast(logits, tf.float32))


def pad_ids(config: Config, data: Data, input_ids: np.ndarray) -> np.ndarray:
    """Pad ids, int32 [b, S], to a length that suits the attention pattern.

    Raises:
        ValueError: There are more tokens than the model accepts.
    """
    given, most = input_ids.shape[1], config.model.max_position_embeddings
    assert most is not None
    if given > most:
        raise ValueError(f"the text has {given} tokens, but the model accepts at most {most}")
    missing = min(pattern.padded_length(config.model, given), most) - given
    return np.pad(input_ids.astype(np.int32), [(0, 0), (0, missing)], constant_values=data.pad_id)


class Model(Protocol):
    """Interface between evaluation and a model on some device."""

    def compute_metrics(self, batch: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Return `compute_pretraining_metrics` of one batch, without dropout."""

    def compute_log_probabilities(self, input_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return `masked_log_probabilities` for token ids of any length."""


class Forward:
    """A `Model` that TensorFlow runs, with one graph for each input shape."""

    def __init__(self, config: Config, data: Data, params: Mapping[str, np.ndarray]) -> None:
        """Store the parameters, float32. The first call with an input shape traces its graph."""
        self.config, self._data = make_inference_config(config), data
        given = {name: tf.constant(value) for name, value in params.items()}
        self._metrics = tf.function(
            lambda batch: compute_pretraining_metrics(given, self.config, data, batch),
            autograph=False,
        )
        self._log_probabilities = tf.function(
            lambda *inputs: masked_log_probabilities(self.config, data, given, *inputs),
            autograph=False,
        )

    def compute_metrics(self, batch: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Implement `Model.compute_metrics`."""
        return {name: value.numpy() for name, value in self._metrics(dict(batch)).items()}

    def compute_log_probabilities(
        self, input_ids: np.ndarray, positions: np.ndarray, documents: tf.Tensor | None = None
    ) -> np.ndarray:
        """Compute log-probabilities of all tokens of the vocabulary at `positions`.

        Args:
            input_ids: int [b, n], token ids of any length.
            positions: int [b, P].
            documents: int32 [b, n], document numbers of packed records, or None if each row is one
                document. If given, n must already suit the attention pattern.

        Returns:
            float32 [b, P, vocabulary], natural logarithms.

        Raises:
            ValueError: There are more tokens than the model accepts.
        """
        ids = tf.constant(pad_ids(self.config, self._data, input_ids))
        places = tf.constant(np.asarray(positions, np.int32))
        return np.asarray(self._log_probabilities(ids, places, documents).numpy())
