"""The model as evaluation runs it: float32, no dropout, no recomputation, compiled per shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Protocol

import numpy as np
import tensorflow as tf

from bigbird_ja.model import heads, pattern
from bigbird_ja.model.encoder import encode
from bigbird_ja.model.heads import pretraining_metrics
from bigbird_ja.settings.schema import Config


def inference_config(config: Config) -> Config:
    """The same model in float32 and by XLA's way: figures of all runs compare."""
    changed = deepcopy(config)
    changed.model.attention_implementation = "xla"
    changed.training.dtype = "float32"
    changed.training.gradient_checkpointing = False
    return changed


def padded_length(config: Config, num_tokens: int) -> int:
    """The shortest length that the attention pattern can be laid over and that holds `num_tokens`.

    Sequences that get full attention need no padding; longer ones are whole tiles of two blocks.
    """
    most = config.model.max_position_embeddings
    assert most is not None
    if config.model.attention_type == "original_full":
        return num_tokens
    if num_tokens < pattern.shortest_sparse(config.model):
        return num_tokens
    tile = 2 * config.model.block_size
    return min(-(-num_tokens // tile) * tile, most)


@tf.autograph.experimental.do_not_convert
def eval_metrics(
    config: Config, params: Mapping[str, tf.Tensor], batch: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """`pretraining_metrics` of a batch, without dropout."""
    params = {name: tf.convert_to_tensor(value) for name, value in params.items()}
    return pretraining_metrics(params, config, batch)


@tf.autograph.experimental.do_not_convert
def masked_log_probabilities(
    config: Config,
    params: Mapping[str, tf.Tensor],
    input_ids: tf.Tensor,
    positions: tf.Tensor,
    documents: tf.Tensor | None = None,
) -> tf.Tensor:
    """What the model expects at some positions.

    Args:
        config: of the model, completed.
        params: by name, float32.
        input_ids: int32 [b, S], padded as the attention pattern needs it.
        positions: int32 [b, P].
        documents: int32 [b, S], or None: each row is one document.

    Returns:
        float32 [b, P, vocabulary], natural logarithms.
    """
    segments = tf.zeros_like(input_ids)
    hidden = encode(params, config, input_ids, segments, documents, positions=positions)
    logits = heads.masked_lm_logits(params, config, hidden)
    return tf.nn.log_softmax(tf.cast(logits, tf.float32))


def padded(config: Config, input_ids: np.ndarray) -> np.ndarray:
    """int32 [b, S]: ids with padding up to a length that the attention pattern can be laid over.

    Raises:
        ValueError: longer than the model.
    """
    length = padded_length(config, input_ids.shape[1])
    most = config.model.max_position_embeddings
    assert most is not None
    if max(length, input_ids.shape[1]) > most:
        raise ValueError(f"{input_ids.shape[1]} tokens; the model takes {most}")
    result = np.zeros((len(input_ids), length), np.int32)
    result[:, : input_ids.shape[1]] = input_ids
    return result


class Model(Protocol):
    """What evaluation needs of a model on some device."""

    def metrics(self, batch: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """`eval_metrics` of one batch."""

    def log_probabilities(self, input_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """`masked_log_probabilities` of ids of any length."""


class Forward:
    """A `Model` that TensorFlow runs.

    Args:
        config: completed by a data set.
        params: by name, float32.
        find_documents: int32 [b, S] input ids to document ids of that shape, for
            `log_probabilities` of packed records; None: each row is one document.
    """

    def __init__(
        self,
        config: Config,
        params: Mapping[str, np.ndarray],
        find_documents: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ) -> None:
        self.config = inference_config(config)
        self._find_documents = find_documents
        self._params = {name: tf.constant(value) for name, value in params.items()}
        self._metrics = tf.function(self._eval_metrics, reduce_retracing=False)
        self._log_probabilities = tf.function(self._masked_lm, reduce_retracing=False)

    def metrics(self, batch: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """`eval_metrics` of one batch."""
        return {name: value.numpy() for name, value in self._metrics(dict(batch)).items()}

    def log_probabilities(self, input_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """What the model expects at some positions.

        Args:
            input_ids: int [b, n]; 0 is padding. Padded here as the attention pattern needs it.
            positions: int [b, P].

        Returns:
            float32 [b, P, vocabulary], natural logarithms.

        Raises:
            ValueError: longer than the model.
        """
        found = self._log_probabilities(
            tf.constant(padded(self.config, input_ids)),
            tf.constant(np.asarray(positions, np.int32)),
        )
        return np.asarray(found.numpy())

    def _eval_metrics(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return eval_metrics(self.config, self._params, batch)

    def _masked_lm(self, input_ids: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        documents = self._find_documents(input_ids) if self._find_documents else None
        return masked_log_probabilities(self.config, self._params, input_ids, positions, documents)
