"""Full and banded attention without scores in memory, by JAX's splash attention."""

from __future__ import annotations

import functools
from typing import Any

import jax
import tensorflow as tf
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from bigbird_ja.model.kernels.carry import call_jax

_LANES = 128
# Queries and keys that one step of the grid holds: the most that divide the sequence.
_QUERIES, _KEYS, _KEYS_AT_ONCE = 512, 1024, 512
_BANDED = 256


def flash_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    segments: tf.Tensor,
    reach: int | None,
) -> tf.Tensor:
    """Softmax attention between tokens of one segment.

    Args:
        query, key, value: [b, S, heads, size]; not scaled. S is a multiple of 128.
        segments: int32 [b, S]; tokens see those of the same number.
        reach: how many tokens away keys may be; None: any.

    Returns:
        Context [b, S, heads, size].
    """
    size = int(query.shape[3])
    query, key, value = (
        tf.transpose(each, [0, 2, 1, 3]) for each in (query * size**-0.5, key, value)
    )
    structure: list[Any] = []  # of what the backward pass needs

    def forward(interpret: bool, *arrays: Any) -> Any:
        attend = _kernel(int(query.shape[1]), int(query.shape[2]), reach, interpret)
        segment_ids = splash.SegmentIds(arrays[3], arrays[3])
        outputs, gradient = jax.vjp(
            lambda q, k, v: jax.vmap(attend)(q, k, v, segment_ids), *arrays[:3]
        )
        leaves, tree = jax.tree_util.tree_flatten(gradient)
        structure[:] = [tree]
        return outputs, leaves

    def backward(interpret: bool, upstream: Any, *leaves: Any) -> Any:
        return jax.tree_util.tree_unflatten(structure[0], leaves)(upstream)

    with tf.name_scope("attention") as scope:

        @tf.custom_gradient
        def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor):  # type: ignore[no-untyped-def]
            context, *kept = call_jax(
                lambda interpret: functools.partial(forward, interpret),
                [query, key, value, segments],
            )

            def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
                with tf.name_scope(f"{scope}gradient/"):  # a whole name: the layer's, once more
                    return call_jax(
                        lambda interpret: functools.partial(backward, interpret), [upstream, *kept]
                    )

            return context, gradient

        return tf.transpose(run(query, key, value), [0, 2, 1, 3])


def _kernel(heads: int, length: int, reach: int | None, interpret: bool) -> Any:
    shape = (length, length)
    mask = masks.FullMask(shape) if reach is None else masks.LocalMask(shape, (reach, reach), 0)
    queries, keys, at_once = (
        _divisor(length, most if reach is None else _BANDED)
        for most in (_QUERIES, _KEYS, _KEYS_AT_ONCE)
    )
    sizes = splash.BlockSizes(
        block_q=queries, block_kv=keys, block_kv_compute=at_once, block_q_dkv=queries,
        block_kv_dkv=keys, block_kv_dkv_compute=at_once, use_fused_bwd_kernel=True,
    )  # fmt: skip
    return splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads), block_sizes=sizes, head_shards=1, q_seq_shards=1,
        interpret=interpret,
    )  # fmt: skip


def _divisor(length: int, most: int) -> int:
    """The largest multiple of 128 up to `most` that divides a length."""
    return max(n for n in range(_LANES, most + 1, _LANES) if length % n == 0)
