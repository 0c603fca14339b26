"""Runs the model for evaluation: float32, no dropout, no recomputation, compiled per shape."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import tensorflow as tf

from bigbird_ja.model import heads, pattern
from bigbird_ja.model.heads import encode
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import varied


def inference_config(config: Config) -> Config:
    """Return the settings of the same model in float32 and by XLA, so that all runs compare."""
    inference = {
        "model.attention_implementation": "xla",
        "training.dtype": "float32",
        "training.gradient_checkpointing": False,
    }
    return varied(config, inference)


def padded_length(config: Config, num_tokens: int) -> int:
    """Return the shortest length for the attention pattern that holds `num_tokens`.

    Sequences that get full attention need no padding; longer ones are whole tiles of two blocks.
    """
    model = config.model
    assert model.max_position_embeddings is not None
    if not pattern.is_sparse(model) or num_tokens < pattern.shortest_sparse(model):
        return num_tokens
    tile = 2 * model.block_size
    return min(-(-num_tokens // tile) * tile, model.max_position_embeddings)


def masked_log_probabilities(
    config: Config,
    data: Data,
    params: Mapping[str, tf.Tensor],
    input_ids: tf.Tensor,
    positions: tf.Tensor,
    documents: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return log-probabilities of all pieces at `positions`.

    Args:
        config: of the run.
        data: of the run.
        params: by name, float32.
        input_ids: int32 [b, S], padded as the attention pattern needs it.
        positions: int32 [b, P].
        documents: int32 [b, S], or None: each row is one document.

    Returns:
        float32 [b, P, vocabulary], natural logarithms.
    """
    segments = tf.zeros_like(input_ids)
    hidden = encode(params, config, data, input_ids, segments, documents, positions=positions)
    logits = heads.masked_lm_logits(params, config, hidden)
    return tf.nn.log_softmax(tf.cast(logits, tf.float32))


def padded(config: Config, data: Data, input_ids: np.ndarray) -> np.ndarray:
    """Pad ids, int32 [b, S], up to a length that the attention pattern can be laid over.

    Raises:
        ValueError: longer than the model.
    """
    given = input_ids.shape[1]
    missing = padded_length(config, given) - given
    most = config.model.max_position_embeddings
    assert most is not None
    if missing < 0 or given > most:
        raise ValueError(f"{given} tokens; the model takes {most}")
    return np.pad(input_ids.astype(np.int32), [(0, 0), (0, missing)], constant_values=data.pad_id)


class Model(Protocol):
    """Gives what evaluation needs of a model on some device."""

    def metrics(self, batch: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Return `heads.pretraining_metrics` of one batch, without dropout."""

    def log_probabilities(self, input_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return `masked_log_probabilities` of ids of any length."""


class Forward:
    """Runs a `Model` by TensorFlow.

    Args:
        config: of the run.
        data: of the run.
        params: by name, float32.
        find_documents: int32 [b, S] input ids to document ids of that shape, for
            `log_probabilities` of packed records; None: each row is one document.
    """

    def __init__(
        self,
        config: Config,
        data: Data,
        params: Mapping[str, np.ndarray],
        find_documents: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ) -> None:
        """Compile nothing yet: that is done for each shape that comes."""
        self.config, self._data = inference_config(config), data
        self._find_documents = find_documents
        self._params = {name: tf.constant(value) for name, value in params.items()}
        self._metrics = tf.function(self._batch_metrics, autograph=False)
        self._log_probabilities = tf.function(self._masked_lm, autograph=False)

    def metrics(self, batch: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """See `Model.metrics`."""
        return {name: value.numpy() for name, value in self._metrics(dict(batch)).items()}

    def log_probabilities(self, input_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return log-probabilities of all pieces at `positions`.

        Args:
            input_ids: int [b, n]. Padded here as the attention pattern needs it.
            positions: int [b, P].

        Returns:
            float32 [b, P, vocabulary], natural logarithms.

        Raises:
            ValueError: longer than the model.
        """
        ids = tf.constant(padded(self.config, self._data, input_ids))
        scores = self._log_probabilities(ids, tf.constant(np.asarray(positions, np.int32)))
        return np.asarray(scores.numpy())

    def _batch_metrics(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return heads.pretraining_metrics(self._params, self.config, self._data, batch)

    def _masked_lm(self, input_ids: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        documents = self._find_documents(input_ids) if self._find_documents else None
        return masked_log_probabilities(
            self.config, self._data, self._params, input_ids, positions, documents
        )
