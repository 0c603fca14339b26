"""Full and banded attention without scores in memory, by JAX's splash attention."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from bigbird_ja.model.kernels.carry import call_jax

_LANES = 128
# Queries and keys that one step of the grid holds, at most; docs/lab/kernel.md has what was tried.
_EVERYWHERE = {"forward": (512, 1024, 512), "backward": (1024, 2048, 1024)}
_BANDED = {"forward": (256, 256, 256), "backward": (256, 256, 256)}


def flash_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    segments: tf.Tensor,
    reach: int | None,
) -> tf.Tensor:
    """Softmax attention between tokens of one segment.

    Args:
        query, key, value: [b, heads, size, S]; not scaled. S is a multiple of 128.
        segments: int32 [b, S]; tokens see those of the same number.
        reach: how many tokens away keys may be; None: any.

    Returns:
        Context [b, heads, size, S].
    """
    query *= int(query.shape[2]) ** -0.5
    structure: list[Any] = []  # of what the backward pass needs

    def forward(interpret: bool, *arrays: Any) -> Any:
        attend = _kernel(int(query.shape[1]), int(query.shape[3]), reach, interpret)
        segment_ids = splash.SegmentIds(arrays[3], arrays[3])

        def context(*arrays: Any) -> Any:
            tokens_first = [jnp.swapaxes(array, 2, 3) for array in arrays]
            return jnp.swapaxes(jax.vmap(attend)(*tokens_first, segment_ids), 2, 3)

        outputs, gradient = jax.vjp(context, *arrays[:3])
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

        return run(query, key, value)


def _kernel(heads: int, length: int, reach: int | None, interpret: bool) -> Any:
    shape = (length, length)
    mask = masks.FullMask(shape) if reach is None else masks.LocalMask(shape, (reach, reach), 0)
    most = _EVERYWHERE if reach is None else _BANDED
    sizes = {way: [_divisor(length, n) for n in numbers] for way, numbers in most.items()}
    (queries, keys, at_once), (d_queries, d_keys, d_at_once) = sizes.values()
    # The fused backward kernel writes a part of the queries' gradient for each block of keys.
    apart = {} if reach is None else {"block_q_dq": d_queries, "block_kv_dq": d_keys}
    layout = splash.QKVLayout.SEQ_MINOR
    blocks = splash.BlockSizes(
        block_q=queries, block_kv=keys, block_kv_compute=at_once, block_q_dkv=d_queries,
        block_kv_dkv=d_keys, block_kv_dkv_compute=d_at_once, use_fused_bwd_kernel=not apart,
        q_layout=layout, k_layout=layout, v_layout=layout, **apart,
    )  # fmt: skip
    return splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads), block_sizes=blocks, head_shards=1, q_seq_shards=1,
        interpret=interpret,
    )  # fmt: skip


def _divisor(length: int, most: int) -> int:
    """The largest multiple of 128 up to `most` that divides a length."""
    return max(n for n in range(_LANES, most + 1, _LANES) if length % n == 0)
