"""One optimizer step, as a pure function, for training, `preflight` and tests.

The step runs in TPUEstimator's graphs, eagerly, and under `tf.function(jit_compile=True)`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from bigbird_ja.model.forward import compute_pretraining_metrics
from bigbird_ja.model.layers import fold_in, make_key
from bigbird_ja.model.params import make_parameter_specs
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.optimizer import (
    NamedTensors,
    clip_factor,
    global_norm,
    learning_rate,
    list_muon_matrices,
    muon_directions,
    muon_updates,
    orthogonalize,
    orthogonalize_together,
    update,
)

Slots = dict[str, NamedTensors]


@tf.autograph.experimental.do_not_convert
def train_step(
    config: Config,
    data: Data,
    params: Mapping[str, tf.Tensor],
    slots: Mapping[str, Mapping[str, tf.Tensor]],
    global_step: tf.Tensor,
    batch: Mapping[str, tf.Tensor],
    replica_id: tf.Tensor | int = 0,
    num_replicas: int = 1,
    cross_replica_sum: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
) -> tuple[NamedTensors, Slots, NamedTensors]:
    """Compute the gradients of one global batch, and apply them.

    The loss is the mean over all predictions of the global batch. With next-sentence prediction,
    the mean next-sentence loss over the sequences is added.

    Args:
        config: config of the run.
        data: facts of the run's data set.
        params: parameters of `make_parameter_specs`, float32 tensors by name.
        slots: slots of `list_slot_parameters`, float32 tensors by name, zeros at first.
        global_step: integer scalar, number of steps so far, for dropout and the learning rate.
        batch: this replica's part of the batch, b sequences of S tokens and P predictions:
            input_ids, segment_ids, (document_ids,) int32 [b, S]; masked_lm_positions,
            masked_lm_ids int32 [b, P]; masked_lm_weights float32 [b, P]; (next_sentence_labels
            int32 [b]). `gradient_accumulation_steps` divides b.
        replica_id: number of this replica, for dropout.
        num_replicas: number of replicas.
        cross_replica_sum: function that sums a tensor over the replicas.

    Returns:
        New params and slots, and scalars: loss, masked_lm_loss, masked_lm_accuracy,
        (next_sentence_loss, next_sentence_accuracy,) learning_rate, grad_norm (before clipping),
        and finite, bool. If `finite` is False, params and slots are returned unchanged.

    Raises:
        ValueError: `gradient_accumulation_steps` does not divide b, or the sequence length does not
            suit the attention.
    """
    weight = cross_replica_sum(sum_prediction_weights(batch))
    how = (replica_id, num_replicas)
    gradients, sums = compute_replica_gradients(
        config, data, params, batch, global_step, *how, weight
    )
    gradients = {name: cross_replica_sum(gradient) for name, gradient in gradients.items()}
    sums = cross_replica_sum(sums)
    share = orthogonalize
    if num_replicas > 1:
        share = functools.partial(
            orthogonalize_together,
            replica_id=replica_id,
            num_replicas=num_replicas,
            cross_replica_sum=cross_replica_sum,
        )
    return apply_gradients(
        config, data, params, slots, gradients, sums, global_step, orthogonalize=share
    )


def sum_prediction_weights(batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Return the sum of the weights of a batch's predictions, float32 scalar."""
    return tf.reduce_sum(tf.cast(batch["masked_lm_weights"], tf.float32))


@tf.autograph.experimental.do_not_convert
def compute_replica_gradients(
    config: Config,
    data: Data,
    params: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
    global_step: tf.Tensor,
    replica_id: tf.Tensor | int,
    num_replicas: int,
    weight: tf.Tensor,
) -> tuple[NamedTensors, tf.Tensor]:
    """Compute one replica's term in the sum of the global batch's gradients.

    `weight` is the sum of the prediction weights over all replicas. The other arguments are those
    of `train_step`.

    Returns:
        float32 gradients by name, and this replica's terms of masked-LM loss and accuracy and of
        next-sentence loss and accuracy, float32 [4].
    """
    params = {
        name: tf.convert_to_tensor(params[name]) for name in make_parameter_specs(config, data)
    }
    variables = list(params.values())
    sequences = float(int(batch["input_ids"].shape[0]) * num_replicas)
    key = fold_in(make_key(config.training.seed, global_step), replica_id)
    # If the batch contains no predictions, the loss is zero instead of 0 / 0.
    divisor = tf.where(weight > 0, weight, 1.0)

    def compute(index: tf.Tensor | int, part: NamedTensors) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Compute one micro-batch's contributions to gradients, losses and accuracies, float32."""
        part_key = fold_in(key, index)
        with tf.GradientTape() as tape:
            tape.watch(variables)
            metrics = compute_pretraining_metrics(params, config, data, part, dropout_key=part_key)
            weights = tf.cast(part["masked_lm_weights"], tf.float32) / divisor
            # The loss of a prediction with weight 0 may be NaN, which must not reach the sum.
            loss = tf.reduce_sum(tf.where(weights > 0, metrics["masked_lm_losses"] * weights, 0.0))
            correct = tf.reduce_sum(metrics["masked_lm_correct"] * weights)
            sums = [loss, correct, tf.zeros([]), tf.zeros([])]
            if data.nsp:
                sums[2] = tf.reduce_sum(metrics["next_sentence_losses"]) / sequences
                sums[3] = tf.reduce_sum(metrics["next_sentence_correct"]) / sequences
                loss += sums[2]
            means = tf.stop_gradient(tf.stack(sums))
        gradients = tape.gradient(loss, variables)
        # The gradient of the word embeddings may be IndexedSlices, which are converted to a tensor.
        return [tf.convert_to_tensor(gradient) for gradient in gradients], means

    steps = config.training.gradient_accumulation_steps
    gradients, sums = _accumulate(compute, steps, dict(batch), variables)
    return dict(zip(params, gradients, strict=True)), sums


@tf.autograph.experimental.do_not_convert
def apply_gradients(
    config: Config,
    data: Data,
    params: Mapping[str, tf.Tensor],
    slots: Mapping[str, Mapping[str, tf.Tensor]],
    gradients: Mapping[str, tf.Tensor],
    sums: tf.Tensor,
    global_step: tf.Tensor,
    squares: tf.Tensor | None = None,
    orthogonalized: Sequence[tf.Tensor] | None = None,
    orthogonalize: Callable[[tf.Tensor], tf.Tensor] = orthogonalize,
) -> tuple[NamedTensors, Slots, NamedTensors]:
    """Apply the global batch's gradients, and return the results of `train_step`.

    `gradients` and `sums` are results of `compute_replica_gradients`, summed over the replicas.
    The function `orthogonalize` is called for each stack of Muon's matrices. The other arguments
    are those of `train_step`.

    If the state is sharded, params, slots and gradients are one replica's parts. This requires two
    more arguments: `squares`, the sum of the squares of all gradients (float32 scalar), and
    `orthogonalized`, the replica's rows of the orthogonalized stacks.
    """
    with tf.name_scope("optimizer"):
        norm = global_norm(gradients) if squares is None else tf.sqrt(squares)
        matrices = list_muon_matrices(config, data)
        rate = learning_rate(config.training, global_step)
        masked_lm_loss, masked_lm_accuracy, *next_sentence = tf.unstack(sums)
        metrics = {
            "loss": masked_lm_loss + next_sentence[0],
            "masked_lm_loss": masked_lm_loss,
            "masked_lm_accuracy": masked_lm_accuracy,
            "learning_rate": rate,
            "grad_norm": norm,
        }
        if data.nsp:
            metrics["next_sentence_loss"], metrics["next_sentence_accuracy"] = next_sentence
        if orthogonalized is None:
            stacks = muon_directions(config.training, matrices, slots["m"], gradients, norm)
            orthogonalized = [orthogonalize(stack) for stack in stacks]
        metrics["finite"] = tf.math.is_finite(norm) & tf.math.is_finite(metrics["loss"])
        new_params, new_slots = update(
            config.training,
            {
                name: tf.convert_to_tensor(params[name])
                for name in make_parameter_specs(config, data)
            },
            slots,
            gradients,
            decayed={name: spec.decay for name, spec in make_parameter_specs(config, data).items()},
            muons=muon_updates(matrices, orthogonalized, params),
            global_step=global_step,
            learning_rate=rate,
            scale=clip_factor(norm, config.training.clip_norm),
            keep=metrics["finite"],
        )
    return new_params, new_slots, metrics


# Number of sums that are reported: masked-LM loss and accuracy, next-sentence loss and accuracy.
# Each replica divides its terms by the total of the global batch, so that the sum over all replicas
# is the mean over the global batch.
NUM_SUMS = 4


def _accumulate(
    compute: Callable[[Any, NamedTensors], tuple[list[tf.Tensor], tf.Tensor]],
    steps: int,
    batch: NamedTensors,
    like: Sequence[tf.Tensor],
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Divide a batch into `steps` micro-batches, and sum the results of `compute` over them.

    `compute` returns gradients, which are shaped like `like`, and sums of metrics.
    """
    if steps == 1:
        return compute(0, batch)
    # Each tensor [b, ...] of the batch is reshaped to [steps, b / steps, ...].
    parts = {
        name: tf.reshape(value, [steps, value.shape[0] // steps, *value.shape[1:]])
        for name, value in batch.items()
    }

    def add(index: tf.Tensor, totals: list[tf.Tensor], sums: tf.Tensor):  # type: ignore[no-untyped-def]
        part = {name: tf.gather(value, index) for name, value in parts.items()}
        gradients, more = compute(index, part)
        totals = [total + gradient for total, gradient in zip(totals, gradients, strict=True)]
        return index + 1, totals, sums + more

    # A loop needs the memory of one micro-batch. Unrolled micro-batches would need more.
    zeros = [tf.zeros_like(tensor) for tensor in like]
    _, totals, sums = tf.while_loop(
        lambda index, *_: index < steps,
        add,
        (tf.constant(0), zeros, tf.zeros([NUM_SUMS])),
        parallel_iterations=1,
    )
    return totals, sums
