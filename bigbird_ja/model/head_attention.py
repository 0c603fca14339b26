"""Attention over all keys on a CPU, computed for a few heads at a time.

The scores of a whole layer take so much memory that a CPU mostly waits for it. For example, the
scores of 4 sequences of 1,024 tokens with 12 heads take 201 MB, and the backward pass reads four
arrays of this size. The scores of four heads of one sequence take 17 MB. As in FlashAttention
(arXiv:2205.14135), a layer stores no scores. The backward pass computes them again, and normalizes
each row by its stored log-sum-exp.

On a TPU, kernels (`kernels`) store no scores either. Without kernels, a TPU computes all heads at
once (`layers.dense_attention`).
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

# Minimum number of scores in a head. With fewer scores, computing all heads at once is as fast.
_MIN_SCORES = 1024 * 1024
# Maximum number of scores that are computed together: four heads for 1,024 tokens. A single head of
# this size would leave cores of the CPU idle.
_MAX_SCORES = 4 * 1024 * 1024

_on_a_cpu = contextvars.ContextVar("on_a_cpu", default=False)


@contextlib.contextmanager
def traced_for_a_cpu() -> Iterator[None]:
    """Context manager: trace attention as `attend_by_heads`, where that is faster."""
    token = _on_a_cpu.set(True)
    try:
        yield
    finally:
        _on_a_cpu.reset(token)


def is_used(queries: int, keys: int) -> bool:
    """Return whether to trace attention of this size as `attend_by_heads`.

    Outside of `traced_for_a_cpu` the result is always False.
    """
    return _on_a_cpu.get() and suits(queries, keys)


def suits(queries: int, keys: int) -> bool:
    """Return whether a head has enough scores for `attend_by_heads`."""
    return queries * keys >= _MIN_SCORES


def count_together(heads: int, queries: int, keys: int) -> int:
    """Return the number of heads that are computed together, a divisor of `heads`."""
    fitting = min(heads, max(1, _MAX_SCORES // (queries * keys)))
    return max(number for number in range(1, fitting + 1) if heads % number == 0)


def attend_by_heads(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    visible_to_heads: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    hidden_score: float,
) -> tf.Tensor:
    """Compute softmax attention in float32, for a few heads at a time.

    Args:
        query: [b, Q, heads, size], float32 or bfloat16, not scaled.
        key: [b, S, heads, size].
        value: [b, S, heads, size].
        visible_to_heads: function of two int32 tensors [n], the index of a sequence in the batch
            and the index of a head. The function returns float32 [n, 1 or Q, S], 1 for a key that a
            query sees, else 0.
        hidden_score: score of a hidden key, finite.

    Returns:
        Context [b, Q, heads, size], which is zero for a query that sees no key.
    """
    batch, length, heads, size = (int(n) for n in query.shape)
    together = count_together(batch * heads, length, int(key.shape[1]))
    groups = batch * heads // together
    numbers = tf.reshape(tf.range(batch * heads), [groups, together])

    def split_heads(values: tf.Tensor) -> tf.Tensor:
        """Arrange [b, S, heads, size] as float32 [groups, heads in a group, S, size]."""
        moved = tf.transpose(tf.cast(values, tf.float32), [0, 2, 1, 3])
        return tf.reshape(moved, [groups, together, -1, size])

    def join_heads(values: tf.Tensor) -> tf.Tensor:
        split = tf.reshape(values, [batch, heads, -1, size])
        return tf.cast(tf.transpose(split, [0, 2, 1, 3]), query.dtype)

    def score(numbers: tf.Tensor, query: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a group's scores, [heads in the group, Q, S], and a mask of visible keys."""
        visible = visible_to_heads(numbers // heads, numbers % heads)
        scores = tf.matmul(query, key, transpose_b=True)
        return tf.where(visible > 0, scores, hidden_score), visible

    @tf.custom_gradient
    def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor):  # type: ignore[no-untyped-def]
        with tf.name_scope("attention/by_heads"):
            queries = split_heads(query) * size**-0.5
            keys, values = split_heads(key), split_heads(value)

            def attend(inputs: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
                numbers, query, key, value = inputs
                scores, visible = score(numbers, query, key)
                maximum = tf.reduce_max(scores, axis=-1, keepdims=True)
                weights = tf.exp(scores - maximum) * visible
                total = tf.reduce_sum(weights, axis=-1, keepdims=True)
                total = tf.where(total > 0, total, 1.0)
                return tf.matmul(weights, value) / total, maximum + tf.math.log(total)

            context, log_total = tf.map_fn(
                attend,
                [numbers, queries, keys, values],
                fn_output_signature=(tf.float32, tf.float32),
                parallel_iterations=1,
            )

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            def differentiate(inputs: list[tf.Tensor]) -> tuple[tf.Tensor, ...]:
                numbers, query, key, value, context, log_total, upstream = inputs
                scores, visible = score(numbers, query, key)
                weights = tf.exp(scores - log_total) * visible
                of_weights = tf.matmul(upstream, value, transpose_b=True)
                mean = tf.reduce_sum(upstream * context, axis=-1, keepdims=True)
                of_scores = weights * (of_weights - mean)
                return (
                    tf.matmul(of_scores, key),
                    tf.matmul(of_scores, query, transpose_a=True),
                    tf.matmul(weights, upstream, transpose_a=True),
                )

            with tf.name_scope("attention/by_heads"):
                of_query, of_key, of_value = tf.map_fn(
                    differentiate,
                    [numbers, queries, keys, values, context, log_total, split_heads(upstream)],
                    fn_output_signature=(tf.float32,) * 3,
                    parallel_iterations=1,
                )
                return [join_heads(of_query * size**-0.5), join_heads(of_key), join_heads(of_value)]

        return join_heads(context), gradient

    return run(query, key, value)


def visible_keys(
    mask: tf.Tensor,
    documents: tf.Tensor | None,
    query_documents: tf.Tensor | None,
    static_mask: np.ndarray | None,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return the function that `attend_by_heads` requires as `visible_to_heads`.

    Args:
        mask: float32 [b, S], 1 for a token, 0 for padding.
        documents: int32 [b, S], document numbers of the keys, or None.
        query_documents: int32 [b, Q], document numbers of the queries, or None.
        static_mask: bool [heads or 1, Q, S], keys that queries see, or None for all.
    """
    static = None if static_mask is None else tf.constant(static_mask, tf.float32)

    def visible_to_heads(sequences: tf.Tensor, heads: tf.Tensor) -> tf.Tensor:
        visible = tf.gather(mask, sequences)[:, None]
        if static is not None:
            visible = visible * tf.gather(static, heads % static.shape[0])
        if documents is not None and query_documents is not None:
            queries, keys = tf.gather(query_documents, sequences), tf.gather(documents, sequences)
            visible = visible * tf.cast(tf.equal(queries[:, :, None], keys[:, None]), tf.float32)
        return visible

    return visible_to_heads
