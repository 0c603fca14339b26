"""Attention with all scores: full attention, and the reference that block-sparse must equal."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

# Scores of keys that must not be seen. Far below any real score, and finite: a row of nothing but
# these still has a maximum to subtract. The probabilities are then multiplied by the 0/1 mask, so
# that hidden keys get exactly nothing even in such a row.
HIDDEN = -1e9


def dense_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    static_mask: np.ndarray | None,
) -> tf.Tensor:
    """Softmax attention over every key that the masks allow.

    Args:
        query, key, value: [b, S, heads, size], float32 or bfloat16; not scaled.
        input_mask: float32 [b, S]; 1 is a token, 0 padding, which no query sees.
        document_ids: int32 [b, S]; keys of other documents are not seen. None: no such limit.
        static_mask: bool [heads, S, S] of queries by keys, or None: everything.

    Returns:
        Context [b, S, heads, size]; zero for a query that sees no key.
    """
    with tf.name_scope("attention/scores"):
        scores = tf.einsum("bqhd,bkhd->bhqk", query, key)
        scores = tf.cast(scores, tf.float32) * query.shape[-1] ** -0.5
        visible = input_mask[:, None, None, :]
        if static_mask is not None:
            visible = visible * tf.constant(static_mask[None], tf.float32)
        if document_ids is not None:
            same = tf.equal(document_ids[:, None, :, None], document_ids[:, None, None, :])
            visible = visible * tf.cast(same, tf.float32)
    with tf.name_scope("attention/softmax"):
        scores = tf.where(visible > 0, scores, HIDDEN)
        maximum = tf.stop_gradient(tf.reduce_max(scores, axis=-1, keepdims=True))
        weights = tf.exp(scores - maximum) * visible
        total = tf.reduce_sum(weights, axis=-1, keepdims=True)
        weights = weights / tf.where(total > 0, total, 1.0)
    with tf.name_scope("attention/context"):
        return tf.einsum("bhqk,bkhd->bqhd", tf.cast(weights, value.dtype), value)
