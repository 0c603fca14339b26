"""Carries a kernel written in Pallas inside a TensorFlow graph.

For a TPU, JAX lowers the kernel to one custom call, whose text TensorFlow's own graph can hold: it
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
    """Kernels that are traced in here are for this machine's CPU, by Pallas' interpreter."""
    token = _interpreted.set(True)
    try:
        yield
    finally:
        _interpreted.reset(token)


def carried(
    make: Callable[[Any], Callable[..., Any]],
    operands: Sequence[tf.Tensor],
    results: Sequence[tuple[tuple[int, ...], str]],
) -> list[tf.Tensor]:
    """Calls a kernel on tensors.

    Args:
        make: gives the kernel, for a value of `pallas_call`'s `interpret`.
        operands: of static shape.
        results: shapes and names of the numpy types of what it returns.
    """
    shapes = [
        jax.ShapeDtypeStruct(tuple(tensor.shape), tensor.dtype.as_numpy_dtype)
        for tensor in operands
    ]
    types = [tf.as_dtype(dtype) for _, dtype in results]
    sizes = [tf.TensorShape(size) for size, _ in results]
    if _interpreted.get():
        exported = export.export(jax.jit(make(True)), platforms=["cpu"])(*shapes)
        found = gen_xla_ops.xla_call_module(
            list(operands),
            version=exported.calling_convention_version,
            module=exported.mlir_module_serialized,
            Sout=sizes,
            Tout=types,
            platforms=["CPU"],
        )
    else:
        found = gen_xla_ops.xla_custom_call_v2(
            operands=list(operands),
            call_target_name=_TARGET,
            backend_config=_text(make(False), shapes),
            has_side_effect=False,
            result_dtypes=types,
            result_shapes=sizes,
        )
    return list(found)


@contextlib.contextmanager
def _in_format(version: int) -> Iterator[None]:
    """What is lowered in here is written in this version of Mosaic. jax has no setting for it; a
    jax without the function that is replaced writes the version of its own choice."""
    from jax._src import tpu_custom_call

    name = "get_ir_version"
    own = getattr(tpu_custom_call, name, None)
    if own is None:
        yield
        return
    setattr(tpu_custom_call, name, lambda *_: version)
    try:
        yield
    finally:
        setattr(tpu_custom_call, name, own)


def _text(kernel: Callable[..., Any], shapes: Sequence[Any]) -> str:
    """What JAX hands to libtpu for a kernel."""
    with _in_format(_FORMAT):
        lowered = jax.jit(kernel).trace(*shapes).lower(lowering_platforms=("tpu",))
    module = lowered.compiler_ir("stablehlo")
    found: list[str] = []

    def look(op: Any) -> Any:
        if op.name == "stablehlo.custom_call":
            attributes = op.attributes
            if attributes["call_target_name"].value == _TARGET:
                found.append(attributes["backend_config"].value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    if len(found) != 1:
        raise ValueError(f"a kernel was lowered to {len(found)} calls of {_TARGET}, not to one")
    return found[0]
