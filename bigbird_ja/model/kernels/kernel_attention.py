"""Attention by kernels in TensorFlow's graph, with one kernel call per forward or backward pass.

Scores and probabilities stay in the chip's vector memory. In addition to the inputs, only the
context and one number per query and head are saved for the backward pass.

For a TPU, JAX lowers a Pallas kernel to one custom call. The text of this call is inserted into
TensorFlow's graph. TensorFlow's lowering does not change the text, and libtpu compiles it. For a
CPU, Pallas' interpreter is lowered to ordinary operations. They are slow, and only for comparisons.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import export
from jaxlib.mlir import ir
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from bigbird_ja import compat
from bigbird_ja.model.kernels.backward_kernel import backward
from bigbird_ja.model.kernels.forward_kernel import forward
from bigbird_ja.model.kernels.layer_shape import LayerShape
from bigbird_ja.model.kernels.tiles import UNSEEN
from bigbird_ja.model.layers import Tokens

_TARGET = "tpu_custom_call"
# Version of Mosaic in which kernels are serialized. jax's default is the newest, which the libtpu
# of some images cannot read. Kaggle has jax 0.7.2 and libtpu 0.0.17, which reads up to version 4.
# libtpu 0.0.52 compiles a kernel in version 4 to the same code as in its newest version.
_FORMAT = 4
_interpreted: contextvars.ContextVar[bool] = contextvars.ContextVar("interpreted", default=False)


def kernel_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    tokens: Tokens,
    shifts: np.ndarray | None = None,
    reach: int | None = None,
) -> tf.Tensor:
    """Compute the attention of one layer by the kernels.

    Args:
        query: [b, T, heads, size, rows] in the compute dtype, scaled by log2(e) * size^-0.5.
        key: in the same shape, not scaled.
        value: in the same shape.
        tokens: tokens in tiles, [b, T, rows].
        shifts: int [heads, m], shifts of the layer (`pattern.random_plan`), for sequences rotated
            by one block, or None if attention is not rolled.
        reach: maximum distance of a key in tokens, up to half a tile, or None if it is unlimited
            or attention is rolled.

    Returns:
        Context in the shape of `query`, which is zero for a query that sees no key.
    """
    batch, tiles, heads, size, rows = (int(n) for n in query.shape)
    num_shifts = None if shifts is None else shifts.shape[1]
    has_documents, dtype = tokens.documents is not None, query.dtype.name
    shape = LayerShape(batch, tiles, heads, size, rows, num_shifts, has_documents, dtype, reach)
    with tf.name_scope("attention") as scope:
        marks = make_marks(shape, tokens)
        if shifts is not None and num_shifts:
            marks.append(tf.constant(shifts.ravel(), tf.int32))

        @tf.custom_gradient
        def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor):  # type: ignore[no-untyped-def]
            context, statistics = call_jax(forward, shape, [query, key, value, *marks])

            def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
                # The final slash makes the scope's name absolute. So the names of the gradient's
                # ops begin with the layer's scope.
                with tf.name_scope(f"{scope}gradient/"):
                    given = [query, key, value, context, upstream, statistics, *marks]
                    return call_jax(backward, shape, given)

            return context, gradient

        flat = [tf.reshape(tensor, shape.sequence) for tensor in (query, key, value)]
        return tf.reshape(run(*flat), query.shape)


def make_marks(shape: LayerShape, tokens: Tokens) -> list[tf.Tensor]:
    """Return the arguments of a kernel that state which keys a query sees (see `tiles.Masks`).

    The first argument contains the marks of the keys. A key's mark fills all lanes of its row,
    since scores are [keys, queries]. If documents limit the keys, the marks of the queries follow.
    If the kernel may skip key tiles (`LayerShape.runs`), the `tiles.Bounds` of the query tiles
    follow.
    """
    if tokens.documents is None:
        keys, nothing = (1.0 - tokens.mask) * UNSEEN, UNSEEN
    else:
        keys, nothing = tf.where(tokens.mask > 0, tokens.documents, -1), -1
    beyond = tf.fill([shape.batch, 1, shape.rows], tf.cast(nothing, keys.dtype))
    columns = tf.reshape(tf.concat([keys, beyond], axis=1), [*shape.key_marks[:2], 1])
    marks = [tf.broadcast_to(columns, shape.key_marks)]
    if tokens.documents is not None:
        marks.append(tf.reshape(tokens.documents, shape.query_marks))
        if shape.runs:
            limits = find_bounds(tokens.documents, tokens.mask > 0)
            marks.append(tf.reshape(limits, shape.bounds))
    return marks


def find_bounds(documents: tf.Tensor, is_text: tf.Tensor) -> tf.Tensor:
    """Find, for each query tile, the key tiles that contain its documents.

    Document numbers never decrease along a sequence, so these key tiles are adjacent.

    Returns:
        [b, T, 2], the first key tile and the number of key tiles.
    """
    least = tf.reduce_min(tf.where(is_text, documents, documents.dtype.max), axis=2)
    most = tf.reduce_max(tf.where(is_text, documents, -1), axis=2)
    met = (least[:, None] <= most[:, :, None]) & (most[:, None] >= least[:, :, None])
    place = tf.range(tf.shape(documents)[1])
    first = tf.reduce_min(tf.where(met, place, place[-1]), axis=2)
    end = tf.reduce_max(tf.where(met, place + 1, 0), axis=2)
    return tf.stack([first, tf.maximum(end - first, 0)], axis=2)


@contextlib.contextmanager
def interpret_kernels() -> Iterator[None]:
    """Context manager: trace kernels for Pallas' interpreter on this machine's CPU."""
    token = _interpreted.set(True)
    try:
        yield
    finally:
        _interpreted.reset(token)


def call_jax(
    make: Callable[..., Any], shape: LayerShape, operands: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Call a Pallas kernel on TensorFlow tensors.

    Layers of the same shape share one lowered text, as lowering takes longer than tracing the rest
    of a layer.

    Args:
        make: function that returns the kernel, `forward` or `backward`.
        shape: shape of the layer.
        operands: tensors of static shape.
    """
    given = tuple(
        jax.ShapeDtypeStruct(tuple(tensor.shape), tensor.dtype.as_numpy_dtype)
        for tensor in operands
    )
    if _interpreted.get():
        exported = _export(make, shape, given)
        outputs = gen_xla_ops.xla_call_module(
            list(operands),
            version=exported.calling_convention_version,
            module=exported.mlir_module_serialized,
            Sout=[tf.TensorShape(result.shape) for result in exported.out_avals],
            Tout=[tf.as_dtype(result.dtype) for result in exported.out_avals],
            platforms=["CPU"],
        )
        return list(outputs)
    text, results = _lower_to_text(make, shape, given)
    outputs = gen_xla_ops.xla_custom_call_v2(
        operands=list(operands),
        call_target_name=_TARGET,
        backend_config=text,
        has_side_effect=False,
        result_dtypes=[tf.as_dtype(result.dtype) for result in results],
        result_shapes=[tf.TensorShape(result.shape) for result in results],
    )
    return list(outputs)


@functools.lru_cache(maxsize=32)
def _export(make: Callable[..., Any], shape: LayerShape, given: tuple[Any, ...]) -> Any:
    return export.export(jax.jit(make(shape, True)), platforms=["cpu"])(*given)


@functools.lru_cache(maxsize=32)
def _lower_to_text(
    make: Callable[..., Any], shape: LayerShape, given: tuple[Any, ...]
) -> tuple[str, list[Any]]:
    """Lower a kernel for libtpu, and return its text, and shapes and dtypes of its results."""
    with compat.use_mosaic_format(_FORMAT):
        lowered = jax.jit(make(shape)).trace(*given).lower(lowering_platforms=("tpu",))
    module = lowered.compiler_ir("stablehlo")
    calls: list[str] = []

    def look(op: Any) -> Any:
        if op.name == "stablehlo.custom_call":
            attributes = op.attributes
            if attributes["call_target_name"].value == _TARGET:
                calls.append(attributes["backend_config"].value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    if len(calls) != 1:
        raise ValueError(f"a kernel was lowered to {len(calls)} calls of {_TARGET}, not to one")
    return calls[0], jax.tree_util.tree_leaves(lowered.out_info)
