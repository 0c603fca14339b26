"""Chooses how attention is computed; what it means is in `pattern`, how, in `dense` and its kin."""

from __future__ import annotations

import tensorflow as tf

from bigbird_ja.config import Config
from bigbird_ja.model import pattern
from bigbird_ja.model.dense import dense_attention
from bigbird_ja.model.sparse import sparse_attention


@tf.autograph.experimental.do_not_convert
def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    config: Config,
    layer: int,
) -> tf.Tensor:
    """Multi-head attention of one layer.

    Args:
        query, key, value: [b, S, heads, size] in the compute dtype; not scaled.
        input_mask: float32 [b, S]; 1 is a token, 0 padding, which no query sees.
        document_ids: int32 [b, S]; keys of other documents are not seen. None: no such limit.
        config: completed by a data set.
        layer: which layer's random plan to follow.

    Returns:
        Context [b, S, heads, size]; zero for a query that sees no key.

    Raises:
        ValueError: a length that the block-sparse pattern cannot be laid over.
    """
    length = int(query.shape[1])
    plans = pattern.random_plan(config, length)
    blocks = plans[layer].blocks if plans else None
    if blocks is not None and config.model.attention_type == "block_sparse":
        size = config.model.block_size
        return sparse_attention(query, key, value, input_mask, document_ids, blocks, size)
    mask = None
    if plans is not None:
        mask = pattern.dense_mask(config, layer, length)
    return dense_attention(query, key, value, input_mask, document_ids, mask)
