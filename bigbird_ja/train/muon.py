"""Move matrices by Muon (Jordan 2024, kellerjordan.github.io/posts/muon): orthogonal momentum.

    m <- 0.95 m + 0.05 g
    u  = 0.95 m + 0.05 g    Nesterov's form: the gradient counts once more
    o  = U Vᵀ, where u = U S Vᵀ
    w <- w - rate (0.2 sqrt(max(rows, columns)) o + weight_decay w)

The factor gives an update the root mean square that AdamW's usually has, so AdamW's rates and
decay carry over (Liu et al. 2025, arXiv:2502.16982, section 2.2).

Matrices of one shape are stacked, so that they are multiplied together, and so that devices can
take equal shares of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf

from bigbird_ja.model.params import MatrixSpec

Tensors = dict[str, tf.Tensor]

_BETA = 0.95  # decay of the momentum
# a X + b X³ + c X⁵ on singular values: five iterations bring those from 0.01 on to 0.7 to 1.2.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_UPDATE_RMS = 0.2
_SMALLEST_NORM = 1e-12  # a matrix of zeros stays one


def momentum(m: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Return the momentum after a gradient.

    Of the momentum after it and the same gradient again, that is Nesterov's form.
    """
    return m + (1.0 - _BETA) * (gradient - m)


def directions(
    matrices: Mapping[str, MatrixSpec],
    momenta: Mapping[str, tf.Tensor],
    gradients: Mapping[str, tf.Tensor],
    scale: tf.Tensor,
    dtype: str,
    multiple: int = 1,
) -> list[tf.Tensor]:
    """Stack the matrices that are to be orthogonalised, one stack for each shape.

    Args:
        matrices: of `model.params.muon_matrices`.
        momenta: float32 by name; whole, or the same rows of each.
        gradients: as `momenta`.
        scale: float32 scalar that the gradients are multiplied by (clipping).
        dtype: of the iterations.
        multiple: fills each stack up with zeros to a multiple of so many matrices.

    Returns:
        [n, rows, columns] of `dtype` each.
    """
    by_shape: dict[tuple[int, ...], list[tf.Tensor]] = {}
    for name, spec in matrices.items():
        gradient = gradients[name] * scale
        direction = momentum(momentum(momenta[name], gradient), gradient)
        for matrix in tf.split(tf.cast(direction, dtype), spec.count, axis=1):
            by_shape.setdefault(tuple(matrix.shape), []).append(matrix)
    return [
        tf.pad(tf.stack(each), [[0, -len(each) % multiple], [0, 0], [0, 0]])
        for each in by_shape.values()
    ]


def orthogonalized(stack: tf.Tensor, devices: int = 1) -> tf.Tensor:
    """Bring the singular values of each matrix near 1, by Newton-Schulz iterations.

    Args:
        stack: [n, rows, columns], and so the result, of the same dtype.
        devices: only the first n / devices, the others left as they are: one device's share, for
            the price of its program.
    """
    if devices > 1:
        count = -(-stack.shape[0] // devices)
        return tf.concat([orthogonalized(stack[:count]), stack[count:]], axis=0)
    is_tall = stack.shape[1] > stack.shape[2]  # the smaller of the two products
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


def orthogonalized_together(
    stack: tf.Tensor,
    replica_id: tf.Tensor | int,
    num_replicas: int,
    cross_replica_sum: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Orthogonalise a stack as `orthogonalized`, an equal share on each replica.

    Args:
        stack: [n, rows, columns], the same on all replicas; n divides by `num_replicas`.
        replica_id: as of `step.train_step`.
        num_replicas: as of `step.train_step`.
        cross_replica_sum: as of `step.train_step`.
    """
    shares = tf.reshape(stack, [num_replicas, -1, *stack.shape[1:]])
    share = orthogonalized(tf.gather(shares, replica_id))
    here = tf.one_hot(replica_id, num_replicas, dtype=stack.dtype)[:, None, None, None]
    # Elsewhere are zeros, so the sum rounds nothing.
    return tf.reshape(cross_replica_sum(here * share), stack.shape)


def updates(
    matrices: Mapping[str, MatrixSpec], stacks: Iterable[tf.Tensor], params: Mapping[str, tf.Tensor]
) -> Tensors:
    """Return what the rate is multiplied by, float32 by name, in the shapes of `params`.

    Args:
        matrices: as `directions` had them.
        stacks: its stacks, orthogonalised.
        params: whole, or the same rows of each.
    """
    left = {tuple(stack.shape[1:]): iter(tf.unstack(stack)) for stack in stacks}
    result: Tensors = {}
    for name, spec in matrices.items():
        rows, columns = params[name].shape
        parts = left[rows, columns // spec.count]
        update = tf.concat([next(parts) for _ in range(spec.count)], axis=1)
        length = _UPDATE_RMS * math.sqrt(max(spec.rows, spec.columns))
        result[name] = length * tf.cast(update, tf.float32)
    return result
