"""SavedModel that maps token ids to embeddings and log-probabilities.

The SavedModel needs no code of bigbird-ja. The encoder has the trainer's code, which needs static
shapes. So the graph contains one branch for each of several lengths. Rows of a batch are padded to
the length of the shortest branch that is long enough, and encoded one by one. No token attends to
padding. In sparse attention the random blocks depend on the padded length, as in training.
"""

from functools import partial

import numpy as np
import tensorflow as tf

from bigbird_ja.export.folder import write_file
from bigbird_ja.model import pattern
from bigbird_ja.model.forward import encode, make_inference_config, masked_lm_logits
from bigbird_ja.model_dir.model import TrainedModel
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config

_IDS = tf.TensorSpec([None, None], tf.int32)
# Length of the shortest branch, in tokens.
_SHORTEST = 64


def fill_saved_model(directory: str, trained: TrainedModel) -> None:
    """Write the SavedModel and its tokenizer into an empty local directory."""
    model = ServedModel(make_inference_config(trained.config), trained.data, trained.params)
    filling = dict.fromkeys(("serving_default", "fill_mask"), model.fill_mask)
    tf.saved_model.save(model, directory, signatures={**filling, "embed": model.embed})
    write_file(directory, "assets.extra/tokenizer.model", trained.tokenizer.model_bytes)


class ServedModel(tf.Module):
    """Model of one checkpoint for inputs of any shape, in float32."""

    def __init__(self, config: Config, data: Data, params: dict[str, np.ndarray]) -> None:
        """Create variables from the parameters."""
        super().__init__()
        self._config, self._data = config, data
        self._params = {
            name: tf.Variable(value, trainable=False, name=name) for name, value in params.items()
        }

    @tf.function(input_signature=[_IDS, _IDS])
    def embed(self, input_ids: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `embeddings`, float32 [batch, tokens, hidden], of padded token ids.

        Args:
            input_ids: int32 [batch, tokens], token ids.
            segment_ids: int32 [batch, tokens].
        """
        return {"embeddings": self._encode(input_ids, segment_ids)}

    @tf.function(input_signature=[_IDS, _IDS, _IDS])
    def fill_mask(
        self, input_ids: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return the embeddings of padded ids, and the log-probabilities at some positions.

        Args:
            input_ids: int32 [batch, tokens], token ids.
            segment_ids: int32 [batch, tokens].
            positions: int32 [batch, predictions], indices of tokens.

        Returns:
            `embeddings`, float32 [batch, tokens, hidden], and `log_probabilities`, float32 [batch,
            predictions, vocabulary].
        """
        hidden = self._encode(input_ids, segment_ids)
        rows = tf.reshape(
            tf.gather(hidden, positions, batch_dims=1), [1, -1, self._config.model.hidden_size]
        )
        scores = tf.nn.log_softmax(masked_lm_logits(self._params, self._config, rows))
        shape = tf.concat([tf.shape(positions), tf.shape(scores)[2:]], axis=0)
        return {"embeddings": hidden, "log_probabilities": tf.reshape(scores, shape)}

    @tf.function  # It is traced once for both signatures.
    def _encode(self, input_ids: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
        lengths = list_branch_lengths(self._config)
        given = tf.shape(input_ids)[1]
        message = "more tokens than the model accepts"
        check = tf.debugging.assert_less_equal(given, lengths[-1], message=message)
        with tf.control_dependencies([check]):
            index = tf.searchsorted(tf.constant(lengths), given[None])[0]
        branches = [partial(self._encode_at, length, input_ids, segment_ids) for length in lengths]
        return tf.switch_case(index, branches)

    def _encode_at(self, length: int, input_ids: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
        given = tf.shape(input_ids)[1]
        padding = [[0, 0], [0, length - given]]
        rows = (
            tf.pad(input_ids, padding, constant_values=self._data.pad_id),
            tf.pad(segment_ids, padding),
        )

        def encode_row(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            ids, segments = (tf.ensure_shape(part, [length])[None] for part in row)
            return encode(self._params, self._config, self._data, ids, segments)[0]

        width = self._config.model.hidden_size
        signature = tf.TensorSpec([length, width], tf.float32)
        return tf.map_fn(encode_row, rows, fn_output_signature=signature)[:, :given]


def list_branch_lengths(config: Config) -> list[int]:
    """List the sequence lengths in tokens for which the SavedModel contains a branch, ascending.

    Lengths for full attention double from `_SHORTEST` up to the maximum for full attention. Lengths
    for sparse attention double from the minimum for sparse attention up to the model's maximum
    length. Both maximum lengths have a branch.
    """
    model = config.model
    most = model.max_position_embeddings
    assert most is not None
    full = pattern.find_shortest_sparse(model) - 1 if pattern.is_sparse(model) else most
    sparse = pattern.padded_length(model, full + 1)
    lengths = {min(full, most), most}
    for shortest, longest in ((_SHORTEST, min(full, most)), (sparse, most)):
        while shortest < longest:
            lengths.add(shortest)
            shortest *= 2
    return sorted(lengths)
