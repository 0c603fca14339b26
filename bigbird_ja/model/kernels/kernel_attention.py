"""Attention by way of the kernels: one call forward, one backward.

Scores and probabilities stay in the chip's vector memory. Only the context and one number per query
and head are kept between forward and backward.
"""

from __future__ import annotations

import functools

import tensorflow as tf

from bigbird_ja.model.kernels.backward_kernel import backward
from bigbird_ja.model.kernels.carry import call_jax
from bigbird_ja.model.kernels.forward_kernel import forward
from bigbird_ja.model.kernels.tiles import UNSEEN, Shape
from bigbird_ja.model.tiling import RolledTiles


def kernel_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    seen: RolledTiles | int | None,
) -> tf.Tensor:
    """Attention of one layer.

    Args:
        query: [b, T, heads, size, rows] in the compute dtype, scaled by log2(e) * size^-0.5.
        key, value: the same shape; not scaled.
        input_mask, document_ids: as of `tiled.tiled_attention`.
        seen: the random connections of sequences rotated by one block, as `tiled_attention` takes
            them; or how many tokens away a key may be, at most half a tile; None: any.

    Returns:
        Context of the same shape; zero for a query that sees no key.
    """
    batch, tiles, heads, size, rows = (int(n) for n in query.shape)
    shifts, reach = None, None
    if isinstance(seen, RolledTiles):
        shifts = tuple(tuple(int(shift) for shift in head) for head in seen.shifts)
    else:
        reach = seen
    has_documents, dtype = document_ids is not None, query.dtype.name
    shape = Shape(batch, tiles, heads, size, rows, shifts, has_documents, dtype, reach)
    with tf.name_scope("attention") as scope:
        marks = marks_of(shape, input_mask, document_ids)

        @tf.custom_gradient
        def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor):  # type: ignore[no-untyped-def]
            make = functools.partial(forward, shape)
            context, statistics = call_jax(make, [query, key, value, *marks])

            def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
                with tf.name_scope(f"{scope}gradient/"):  # a whole name: the layer's, once more
                    given = [query, key, value, context, upstream, statistics, *marks]
                    return call_jax(functools.partial(backward, shape), given)

            return context, gradient

        flat = [tf.reshape(tensor, shape.sequence) for tensor in (query, key, value)]
        return tf.reshape(run(*flat), query.shape)


def marks_of(
    shape: Shape, input_mask: tf.Tensor, document_ids: tf.Tensor | None
) -> list[tf.Tensor]:
    """Marks of keys, and of queries where documents limit what is seen (see `tiles.Seen`).

    A key's mark fills all lanes of its row: beside transposed scores it is a column.

    Args:
        input_mask: float32 [b, T, rows].
        document_ids: int32 [b, T, rows].
    """
    if document_ids is None:
        keys, nothing = (1.0 - input_mask) * UNSEEN, UNSEEN
    else:
        keys, nothing = tf.where(input_mask > 0, document_ids, -1), -1
    beyond = tf.fill([shape.batch, 1, shape.rows], tf.cast(nothing, keys.dtype))
    columns = tf.reshape(tf.concat([keys, beyond], axis=1), [*shape.key_marks[:2], 1])
    marks = [tf.broadcast_to(columns, shape.key_marks)]
    if document_ids is not None:
        marks.append(tf.reshape(document_ids, shape.query_marks))
    return marks
