"""Optimizers and learning rate, as pure functions.

Adam with decoupled weight decay exists in two forms:

- `adamw` (Loshchilov and Hutter 2019, and PyTorch) corrects the bias of the running means, which
  start at zero. Biases and layer norms are not decayed.
- `google` (AdamWeightDecayOptimizer of Google's BERT and BigBird code) does not correct this bias.
  With betas of 0.9 and 0.999, the update of `google` at step t is (1 - 0.9**t) / sqrt(1 - 0.999**t)
  times the update of `adamw`: 3.2 times at step 1, 6.6 times at step 12, 1.26 times at step 1,000.
  `google` decays all parameters whose names contain neither "LayerNorm" nor "bias", including
  `cls/predictions/transform/gamma`.

`muon` uses Muon (Jordan 2024, kellerjordan.github.io/posts/muon) for the layers' matrices, and
`adamw` for all other parameters. Muon updates a matrix w with gradient g by its orthogonalized
momentum m:

    m <- 0.95 m + 0.05 g
    u  = 0.95 m + 0.05 g    (Nesterov)
    o  = U Vᵀ, where u = U S Vᵀ is the singular value decomposition
    w <- w - learning_rate (0.2 sqrt(max(rows, columns)) o + weight_decay w)

With the factor 0.2 sqrt(max(rows, columns)), the root mean square of an update is about the same as
with AdamW. So AdamW's learning rate and weight decay are also suitable for Muon (Liu et al. 2025,
arXiv:2502.16982, section 2.2).

Matrices of one shape are stacked, so that they are multiplied together and can be divided equally
over devices.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import tensorflow as tf

from bigbird_ja.model.params import make_parameter_specs
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config, Training, TrainingConfig

NamedTensors = dict[str, tf.Tensor]

_BETA1 = 0.9  # Decay of the running mean of gradients.
_NOT_DECAYED_BY_GOOGLE = re.compile("LayerNorm|layer_norm|bias")
_MUON_BETA = 0.95  # Decay of the momentum.
# Coefficients a, b and c of Muon's Newton-Schulz iteration, a X + b X³ + c X⁵. Five iterations map
# singular values between 0.01 and 1 into the range from 0.7 to 1.2.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_UPDATE_RMS = 0.2
_SMALLEST_NORM = 1e-12  # Minimum divisor, so that a zero matrix stays zero.
# Number of matrices in one kernel of a ModernBERT layer. `Wqkv` contains the matrices of query, key
# and value, and `Wi` contains both halves of the gated MLP.
_SIDE_BY_SIDE = {"Wqkv": 3, "Wi": 2}


@dataclass(frozen=True)
class MatrixSpec:
    """Number and shape of the matrices that are next to each other in one kernel."""

    count: int
    rows: int
    columns: int


def list_muon_matrices(config: Config, data: Data) -> dict[str, MatrixSpec]:
    """Return the specs of the kernels that Muon updates, by name, or {} with AdamW."""
    if config.training.optimizer != "muon":
        return {}
    matrices = {}
    for name, spec in make_parameter_specs(config, data).items():
        if name.startswith("bert/encoder/layer_") and name.endswith("/kernel"):
            count, (rows, columns) = _SIDE_BY_SIDE.get(name.split("/")[-2], 1), spec.shape
            matrices[name] = MatrixSpec(count, rows, columns // count)
    return matrices


def list_slot_parameters(config: Config, data: Data) -> dict[str, list[str]]:
    """Return for each optimizer slot the names of the parameters that have it.

    Slot "m" is the running mean of the gradients, for all parameters. Slot "v" is the running mean
    of the squared gradients, for all parameters except Muon's.
    """
    names, matrices = list(make_parameter_specs(config, data)), list_muon_matrices(config, data)
    return {"m": names, "v": [name for name in names if name not in matrices]}


def global_norm(gradients: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Compute the Euclidean length of all gradients together, float32 scalar."""
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients.values()]))


def clip_factor(norm: tf.Tensor, clip_norm: float) -> tf.Tensor:
    """Return the factor that limits the gradients' norm to `clip_norm` (0 disables the limit)."""
    return clip_norm / tf.maximum(norm, clip_norm) if clip_norm else tf.ones_like(norm)


def update(
    training: TrainingConfig,
    params: Mapping[str, tf.Tensor],
    slots: Mapping[str, Mapping[str, tf.Tensor]],
    gradients: Mapping[str, tf.Tensor],
    *,
    decayed: Mapping[str, bool],
    muons: Mapping[str, tf.Tensor],
    global_step: tf.Tensor,
    learning_rate: tf.Tensor,
    scale: tf.Tensor,
    keep: tf.Tensor,
) -> tuple[NamedTensors, dict[str, NamedTensors]]:
    """Update every parameter once, and return the new parameters and slots.

    Args:
        training: update rule, betas, epsilon and weight decay.
        params: master weights, float32 tensors by name.
        slots: `{"m": {...}, "v": {...}}`, the slots of `list_slot_parameters`, float32.
        gradients: float32 tensors by name.
        decayed: whether `adamw` decays each parameter, by name.
        muons: result of `muon_updates`, for the parameters that Muon updates.
        global_step: integer scalar, number of updates so far.
        learning_rate: float32 scalar.
        scale: float32 scalar, factor for the gradients (clipping).
        keep: bool scalar, whether to update. If False, parameters and slots stay unchanged.
    """
    rate, epsilon = _correct_rate(training, global_step, learning_rate)
    if training.update_rule == "google":
        decayed = {name: not _NOT_DECAYED_BY_GOOGLE.search(name) for name in params}
    new_params: NamedTensors = {}
    new_slots: dict[str, NamedTensors] = {"m": {}, "v": {}}
    for name, old in params.items():
        gradient = gradients[name] * scale
        m = slots["m"][name]
        if name in muons:
            new_m = muon_momentum(m, gradient)
            new = old - learning_rate * muons[name]
        else:
            v = slots["v"][name]
            new_m = m + (1.0 - _BETA1) * (gradient - m)
            new_v = v + (1.0 - training.adam_beta2) * (tf.square(gradient) - v)
            new = old - rate * new_m / (tf.sqrt(new_v) + epsilon)
            new_slots["v"][name] = tf.where(keep, new_v, v)
        if decayed[name] and training.weight_decay:
            new -= learning_rate * training.weight_decay * old
        new_params[name] = tf.where(keep, new, old)
        new_slots["m"][name] = tf.where(keep, new_m, m)
    return new_params, new_slots


def _correct_rate(
    training: TrainingConfig, global_step: tf.Tensor, rate: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor | float]:
    """Return rate and epsilon. For `adamw` they include the bias correction."""
    if training.update_rule == "google":
        return rate, training.adam_epsilon
    count = tf.cast(global_step, tf.float32) + 1.0
    correction = tf.sqrt(1.0 - tf.pow(training.adam_beta2, count))
    return rate * correction / (1.0 - tf.pow(_BETA1, count)), training.adam_epsilon * correction


def learning_rate(training: Training, global_step: tf.Tensor) -> tf.Tensor:
    """Compute the rate of the update from `global_step` to `global_step + 1`, float32 scalar.

    The warm-up is linear, starts above zero, and reaches the peak at its last step. After the
    warm-up, the rate depends on the schedule:

    - `linear`: The rate falls linearly to zero at `num_train_steps`.
    - `cosine`: The rate falls to zero along half a cosine.
    - `wsd` (warm-up, stable, decay): The rate stays at the peak, and falls linearly over the last
      `decay_fraction` of all steps.
    - `google` (the schedule of BERT's and BigBird's code): The rate is on the line from the peak at
      step 0 to zero at `num_train_steps`. Only in this schedule, the warm-up starts at zero.

    Beyond `num_train_steps` the rate is zero.

    Args:
        training: section `training` of the config.
        global_step: integer scalar, number of updates so far.
    """
    step = tf.cast(global_step, tf.float32)
    total, warmup = float(training.num_train_steps), float(training.warmup_steps)
    if training.schedule == "wsd":
        decay_steps = max(1.0, total * training.decay_fraction)
        factor = tf.minimum(1.0, (total - step) / decay_steps)
    else:
        left = (total - step) / max(1.0, total - warmup)
        factor = left
        if training.schedule == "cosine":
            factor = 0.5 - 0.5 * tf.cos(math.pi * tf.clip_by_value(left, 0.0, 1.0))
    if training.schedule == "google":
        factor = 1.0 - step / total
    factor = tf.clip_by_value(factor, 0.0, 1.0)
    if warmup:
        made = step if training.schedule == "google" else step + 1.0
        factor = tf.where(step < warmup, made / warmup, factor)
    return training.learning_rate * factor


def muon_momentum(m: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Update the momentum by a gradient.

    A second call, with the result and the same gradient, returns Nesterov's momentum.
    """
    return m + (1.0 - _MUON_BETA) * (gradient - m)


def muon_directions(
    training: TrainingConfig,
    matrices: Mapping[str, MatrixSpec],
    momenta: Mapping[str, tf.Tensor],
    gradients: Mapping[str, tf.Tensor],
    norm: tf.Tensor,
    multiple: int = 1,
) -> list[tf.Tensor]:
    """Compute Nesterov's momentum of each of Muon's matrices, and stack those of equal shape.

    The stacks must then be orthogonalized.

    Args:
        training: limit of the gradients' norm, and dtype of the result.
        matrices: result of `list_muon_matrices`.
        momenta: float32 tensors by name, whole matrices, or one replica's rows of each matrix.
        gradients: float32 tensors by name, shaped like `momenta`.
        norm: float32 scalar, norm of all gradients.
        multiple: number that must divide each stack's number of matrices. Zero matrices are added.

    Returns:
        Stacks [n, rows, columns] of n matrices, in `training.dtype`.
    """
    scale = clip_factor(norm, training.clip_norm)
    by_shape: dict[tuple[int, ...], list[tf.Tensor]] = {}
    for name, spec in matrices.items():
        gradient = gradients[name] * scale
        direction = muon_momentum(muon_momentum(momenta[name], gradient), gradient)
        for matrix in tf.split(tf.cast(direction, training.dtype), spec.count, axis=1):
            by_shape.setdefault(tuple(matrix.shape), []).append(matrix)
    return [pad_stack(tf.stack(each), multiple) for each in by_shape.values()]


def pad_stack(stack: tf.Tensor, multiple: int) -> tf.Tensor:
    """Pad a stack [n, rows, columns] with zero matrices, so that `multiple` divides n."""
    return tf.pad(stack, [[0, -stack.shape[0] % multiple], [0, 0], [0, 0]])


def orthogonalize(stack: tf.Tensor) -> tf.Tensor:
    """Set the singular values of each matrix to about 1, by Newton-Schulz iterations.

    Args:
        stack: n matrices, [n, rows, columns]. The result has the same shape and dtype.
    """
    is_tall = stack.shape[1] > stack.shape[2]  # For a tall X, XᵀX is smaller than XXᵀ.
    values = tf.cast(stack, tf.float32)
    norms = tf.sqrt(tf.reduce_sum(tf.square(values), axis=[1, 2], keepdims=True))
    values = tf.cast(values / tf.maximum(norms, _SMALLEST_NORM), stack.dtype)
    first, third, fifth = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = tf.matmul(values, values, transpose_a=is_tall, transpose_b=not is_tall)
        factor = third * gram + fifth * tf.matmul(gram, gram)
        change = tf.matmul(values, factor) if is_tall else tf.matmul(factor, values)
        values = first * values + change
    return values


def orthogonalize_together(
    stack: tf.Tensor,
    replica_id: tf.Tensor | int,
    num_replicas: int,
    cross_replica_sum: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Orthogonalize a stack, with an equal share of the matrices on each replica.

    Args:
        stack: n matrices, [n, rows, columns], the same on all replicas.
        replica_id: number of this replica.
        num_replicas: number of replicas.
        cross_replica_sum: function that sums a tensor over the replicas.

    Returns:
        The orthogonalized stack, padded with zero matrices until `num_replicas` divides n.
    """
    stack = pad_stack(stack, num_replicas)
    shares = tf.reshape(stack, [num_replicas, -1, *stack.shape[1:]])
    share = orthogonalize(tf.gather(shares, replica_id))
    here = tf.one_hot(replica_id, num_replicas, dtype=stack.dtype)[:, None, None, None]
    # All other replicas contribute zeros to a share, so the sum is exact.
    return tf.reshape(cross_replica_sum(here * share), stack.shape)


def muon_updates(
    matrices: Mapping[str, MatrixSpec], stacks: Iterable[tf.Tensor], params: Mapping[str, tf.Tensor]
) -> NamedTensors:
    """Return Muon's updates for a learning rate of 1.

    Args:
        matrices: argument of `muon_directions`.
        stacks: orthogonalized stacks of `muon_directions`.
        params: parameters by name. If the stacks contain one replica's rows, so do the parameters.

    Returns:
        Float32 tensors by name, shaped like `params`.
    """
    left = {tuple(stack.shape[1:]): iter(tf.unstack(stack)) for stack in stacks}
    result: NamedTensors = {}
    for name, spec in matrices.items():
        rows, columns = params[name].shape
        parts = left[rows, columns // spec.count]
        update = tf.concat([next(parts) for _ in range(spec.count)], axis=1)
        length = _UPDATE_RMS * math.sqrt(max(spec.rows, spec.columns))
        result[name] = length * tf.cast(update, tf.float32)
    return result
