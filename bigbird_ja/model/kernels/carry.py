"""How a kernel of JAX's becomes a part of TensorFlow's graph.

For a TPU, JAX lowers a Pallas kernel to one custom call, whose text TensorFlow's graph can hold: it
passes through TensorFlow's lowering untouched, and libtpu compiles it. On a CPU Pallas' interpreter
is lowered instead, to ordinary operations: slow, the same numbers, for tests and comparisons.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import tensorflow as tf
from jax import export
from jaxlib.mlir import ir
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

_TARGET = "tpu_custom_call"
# The version of Mosaic in which kernels are written. jax writes what the libtpu of its own month
# reads; images pair it with older ones (Kaggle's jax 0.7.2 with libtpu 0.0.17, which reads up to
# 4), and newer compilers read old versions: 0.0.52 makes the same code of 4 as of its own.
_FORMAT = 4
_interpreted: contextvars.ContextVar[bool] = contextvars.ContextVar("interpreted", default=False)


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Kernels traced within are for this machine's CPU, by Pallas' interpreter."""
    token = _interpreted.set(True)
    try:
        yield
    finally:
        _interpreted.reset(token)


def call_jax(
    make: Callable[[bool], Callable[..., Any]], operands: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Calls a kernel on tensors.

    Args:
        make: gives the kernel, for a value of `pallas_call`'s `interpret`.
        operands: of static shape.
    """
    shapes = [
        jax.ShapeDtypeStruct(tuple(tensor.shape), tensor.dtype.as_numpy_dtype)
        for tensor in operands
    ]
    if _interpreted.get():
        exported = export.export(jax.jit(make(True)), platforms=["cpu"])(*shapes)
        outputs = gen_xla_ops.xla_call_module(
            list(operands),
            version=exported.calling_convention_version,
            module=exported.mlir_module_serialized,
            Sout=[tf.TensorShape(result.shape) for result in exported.out_avals],
            Tout=[tf.as_dtype(result.dtype) for result in exported.out_avals],
            platforms=["CPU"],
        )
        return list(outputs)
    kernel = make(False)
    results = jax.eval_shape(kernel, *shapes)
    outputs = gen_xla_ops.xla_custom_call_v2(
        operands=list(operands),
        call_target_name=_TARGET,
        backend_config=_text(kernel, shapes),
        has_side_effect=False,
        result_dtypes=[tf.as_dtype(result.dtype) for result in results],
        result_shapes=[tf.TensorShape(result.shape) for result in results],
    )
    return list(outputs)


@contextlib.contextmanager
def _in_format(version: int) -> Iterator[None]:
    """Kernels lowered within are written in this version of Mosaic. jax has no setting for it;
    a jax without the replaced function writes its own version."""
    from jax._src import tpu_custom_call

    name = "get_ir_version"
    original = getattr(tpu_custom_call, name, None)
    if original is None:
        yield
        return
    setattr(tpu_custom_call, name, lambda *_: version)
    try:
        yield
    finally:
        setattr(tpu_custom_call, name, original)


def _text(kernel: Callable[..., Any], shapes: Sequence[Any]) -> str:
    """What JAX hands to libtpu for a kernel."""
    with _in_format(_FORMAT):
        lowered = jax.jit(kernel).trace(*shapes).lower(lowering_platforms=("tpu",))
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
    return calls[0]
