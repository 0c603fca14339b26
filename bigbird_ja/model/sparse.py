"""Block-sparse attention in separate pieces, with a gradient written by hand.

The scores of a query row come in pieces that are never joined: the window (two views of the keys,
half a tile before and half a tile after), the global blocks, the random blocks. They share one
exact row maximum and one row sum. The first and the last block row see everything and are one dense
product of their own. Keys of the first and the last block are hidden from every piece but the
global one, so that nothing counts twice. docs/design/attention.md draws all of this.

The gradient keeps queries, keys, values, the output and each row's log-sum; it computes the
probabilities again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bigbird_ja.model import views
from bigbird_ja.model.views import View

# The score of a hidden key. A row's maximum is kept above FLOOR, so that exp() of the difference
# is exactly zero even in a row that sees nothing.
HIDDEN = -1e9
FLOOR = -1e8


def sparse_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    blocks: np.ndarray,
    block: int,
) -> tf.Tensor:
    """BigBird attention over whole tiles of two blocks.

    Args:
        query, key, value: [b, S, heads, size], float32 or bfloat16; not scaled. S is a multiple of
            two blocks, at least six.
        input_mask: float32 [b, S]; 1 is a token, 0 padding, which no query sees.
        document_ids: int32 [b, S]; keys of other documents are not seen. None: no such limit.
        blocks: int [heads, n - 2, random], the random key blocks of rows 1..n-2.
        block: tokens per block.

    Returns:
        Context [b, S, heads, size]; zero for a query that sees no key.
    """
    length = int(query.shape[1])
    pieces = _pieces(length, block, blocks)
    edge = np.zeros(length, bool)
    edge[:block] = edge[-block:] = True
    masks = _masks(pieces, input_mask, document_ids, edge)
    edge_mask = _edge_mask(input_mask, document_ids, block)

    @tf.custom_gradient
    def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor):  # type: ignore[no-untyped-def]
        q, k, v = (_heads_first(x) for x in (query, key, value))
        context, log_sum = _forward(q, k, v, pieces, masks)
        q_edge = _edge_rows(q, block)
        edge_context, edge_log_sum = _edge_forward(q_edge, k, v, edge_mask)
        context = _put_edge(context, edge_context, block)

        def gradient(upstream: tf.Tensor):  # type: ignore[no-untyped-def]
            d = _heads_first(upstream)
            # Rows of the first and last block: a log-sum of infinity makes their pieces vanish.
            inner = tf.where(tf.constant(edge), -HIDDEN, log_sum)
            delta = tf.reduce_sum(tf.cast(d, tf.float32) * tf.cast(context, tf.float32), axis=-1)
            dq, dk, dv = _backward(q, k, v, d, inner, delta, pieces, masks)
            edge_grads = _edge_backward(
                q_edge, k, v, _edge_rows(d, block), edge_log_sum,
                _edge_rows(delta[..., None], block)[..., 0], edge_mask,
            )  # fmt: skip
            dq = _put_edge(dq, edge_grads[0], block)
            dk, dv = dk + edge_grads[1], dv + edge_grads[2]
            return tuple(_heads_last(x) for x in (dq, dk, dv))

        return _heads_last(context), gradient

    return run(query, key, value)


def _pieces(length: int, block: int, blocks: np.ndarray) -> list[View]:
    pieces = [views.shifted(length, block, -1), views.shifted(length, block, 1)]
    if blocks.size:
        pieces.append(views.gathered(length, block, blocks))
    return [*pieces, views.ends(length, block)]


def _masks(
    pieces: Sequence[View], input_mask: tf.Tensor, document_ids: tf.Tensor | None, edge: np.ndarray
) -> list[tf.Tensor]:
    """What each piece sees: bool, broadcasts to [b, heads, tiles, rows, keys]."""
    with tf.name_scope("attention/scores"):
        tokens = input_mask > 0
        masks = []
        for piece in pieces:
            # The last piece is the global one; in the others its keys are hidden.
            keys = tokens if piece is pieces[-1] else tokens & ~tf.constant(edge)
            mask = tf.constant(piece.seen[None]) & _at(keys, piece)[:, :, :, None]
            if document_ids is not None:
                tiles = tf.reshape(document_ids, [document_ids.shape[0], 1, -1, piece.rows, 1])
                mask &= tf.equal(tiles, _at(document_ids, piece)[:, :, :, None])
            masks.append(mask)
        return masks


def _at(values: tf.Tensor, piece: View) -> tf.Tensor:
    """[b, S] -> [b, heads or 1, tiles or 1, keys]."""
    return tf.gather(values, tf.constant(piece.positions), axis=1)


def _forward(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, pieces: Sequence[View], masks: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Context [b, heads, S, d] and log-sum float32 [b, heads, S] of all rows but the edges'."""
    rows = q.shape[:3]
    scores = [_scores(q, k, piece, mask) for piece, mask in zip(pieces, masks, strict=True)]
    with tf.name_scope("attention/softmax"):
        maximum = tf.constant(FLOOR)
        for s in scores:
            maximum = tf.maximum(maximum, tf.reshape(tf.reduce_max(s, axis=-1), rows))
        weights = [tf.exp(s - _by_tile(maximum, p)) for s, p in zip(scores, pieces, strict=True)]
        total = tf.add_n([tf.reshape(tf.reduce_sum(w, axis=-1), rows) for w in weights])
        total = tf.where(total > 0, total, 1.0)
    with tf.name_scope("attention/context"):
        context = tf.add_n(
            [
                tf.reshape(
                    _dot("bhtqk,bhtkd->bhtqd", tf.cast(w, v.dtype), piece.arrange(v)), q.shape
                )
                for w, piece in zip(weights, pieces, strict=True)
            ]
        )
        return tf.cast(context / total[..., None], q.dtype), maximum + tf.math.log(total)


def _scores(q: tf.Tensor, k: tf.Tensor, piece: View, mask: tf.Tensor) -> tf.Tensor:
    with tf.name_scope("attention/scores"):
        scores = _dot("bhtqd,bhtkd->bhtqk", _by_tile(q, piece), piece.arrange(k))
        return tf.where(mask, scores * q.shape[-1] ** -0.5, HIDDEN)


def _backward(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    d: tf.Tensor,
    log_sum: tf.Tensor,
    delta: tf.Tensor,
    pieces: Sequence[View],
    masks: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gradients [b, heads, S, d] by q, k and v, through all pieces."""
    dq, dk, dv = [], [], []
    for piece, mask in zip(pieces, masks, strict=True):
        p = tf.exp(_scores(q, k, piece, mask) - _by_tile(log_sum, piece))
        with tf.name_scope("attention/context"):
            d_tile = _by_tile(d, piece)
            dv.append(piece.restore(_dot("bhtqk,bhtqd->bhtkd", tf.cast(p, v.dtype), d_tile)))
            dp = _dot("bhtqd,bhtkd->bhtqk", d_tile, piece.arrange(v))
        with tf.name_scope("attention/softmax"):
            ds = p * (dp - _by_tile(delta, piece)) * q.shape[-1] ** -0.5
            ds = tf.cast(ds, q.dtype)
        with tf.name_scope("attention/scores"):
            dq.append(tf.reshape(_dot("bhtqk,bhtkd->bhtqd", ds, piece.arrange(k)), q.shape))
            dk.append(piece.restore(_dot("bhtqk,bhtqd->bhtkd", ds, _by_tile(q, piece))))
    return tf.add_n(dq), tf.add_n(dk), tf.add_n(dv)


def _edge_mask(input_mask: tf.Tensor, document_ids: tf.Tensor | None, block: int) -> tf.Tensor:
    """What the first and last block rows see: bool, broadcasts to [b, heads, 2 * block, S]."""
    mask = input_mask[:, None, None] > 0
    if document_ids is not None:
        rows = tf.concat([document_ids[:, :block], document_ids[:, -block:]], axis=1)
        mask &= tf.equal(rows[:, None, :, None], document_ids[:, None, None])
    return mask


def _edge_scores(q: tf.Tensor, k: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    with tf.name_scope("attention/scores"):
        scores = _dot("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
        return tf.where(mask, scores, HIDDEN)


def _edge_forward(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, mask: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    scores = _edge_scores(q, k, mask)
    with tf.name_scope("attention/softmax"):
        maximum = tf.maximum(FLOOR, tf.reduce_max(scores, axis=-1))
        weights = tf.exp(scores - maximum[..., None])
        total = tf.reduce_sum(weights, axis=-1)
        total = tf.where(total > 0, total, 1.0)
    with tf.name_scope("attention/context"):
        context = _dot("bhqk,bhkd->bhqd", tf.cast(weights, v.dtype), v) / total[..., None]
        return tf.cast(context, q.dtype), maximum + tf.math.log(total)


def _edge_backward(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    d: tf.Tensor,
    log_sum: tf.Tensor,
    delta: tf.Tensor,
    mask: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    p = tf.exp(_edge_scores(q, k, mask) - log_sum[..., None])
    with tf.name_scope("attention/context"):
        dv = _dot("bhqk,bhqd->bhkd", tf.cast(p, v.dtype), d)
        dp = _dot("bhqd,bhkd->bhqk", d, v)
    with tf.name_scope("attention/softmax"):
        ds = tf.cast(p * (dp - delta[..., None]) * q.shape[-1] ** -0.5, q.dtype)
    with tf.name_scope("attention/scores"):
        return _dot("bhqk,bhkd->bhqd", ds, k), _dot("bhqk,bhqd->bhkd", ds, q), dv


def _dot(equation: str, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """A matmul of bfloat16 or float32 with a float32 result."""
    return tf.cast(tf.einsum(equation, a, b), tf.float32)


def _by_tile(x: tf.Tensor, piece: View) -> tf.Tensor:
    """[b, heads, S, d] or [b, heads, S] -> [b, heads, tiles, rows, d or 1]."""
    batch, heads, length = x.shape[:3]
    return tf.reshape(x, [batch, heads, length // piece.rows, piece.rows, -1])


def _edge_rows(x: tf.Tensor, block: int) -> tf.Tensor:
    """The first and the last block: [b, heads, S, d] -> [b, heads, 2 * block, d]."""
    return tf.concat([x[:, :, :block], x[:, :, -block:]], axis=2)


def _put_edge(x: tf.Tensor, rows: tf.Tensor, block: int) -> tf.Tensor:
    """The adjoint of `_edge_rows`, over what stands there."""
    return tf.concat([rows[:, :, :block], x[:, :, block:-block], rows[:, :, block:]], axis=2)


def _heads_first(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [0, 2, 1, 3])


def _heads_last(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [0, 2, 1, 3])
