"""How a function of JAX's becomes a part of TensorFlow's graph.

For a TPU, JAX lowers a Pallas kernel to one custom call, whose text TensorFlow's graph can hold: it
passes through TensorFlow's lowering untouched, and libtpu compiles it. The few operations that a
library adds to its kernels are written as TensorFlow's, one by one. On a CPU Pallas'
interpreter is lowered instead, to ordinary operations: slow, the same numbers, for tests and
comparisons.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
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
    """Calls a function of JAX's on tensors.

    Args:
        make: gives the function, for a value of `pallas_call`'s `interpret`. It returns arrays, in
            any tree.
        operands: of static shape.

    Returns:
        The arrays that it returns, in the order of the tree's leaves.
    """
    shapes = [
        jax.ShapeDtypeStruct(tuple(tensor.shape), tensor.dtype.as_numpy_dtype)
        for tensor in operands
    ]
    if not _interpreted.get():
        closed = jax.make_jaxpr(make(False))(*shapes)
        return _evaluated(closed.jaxpr, closed.consts, list(operands))
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


def _evaluated(jaxpr: Any, consts: Sequence[Any], operands: list[tf.Tensor]) -> list[tf.Tensor]:
    """A traced function as TensorFlow's operations, kernels as custom calls."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, operands, strict=True))

    def read(variable: Any) -> Any:
        known = variable.val if hasattr(variable, "val") else values[variable]
        return known if tf.is_tensor(known) else tf.constant(np.asarray(known))

    for equation in jaxpr.eqns:
        results = _result(equation, [read(variable) for variable in equation.invars])
        values |= dict(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _result(equation: Any, given: list[tf.Tensor]) -> list[tf.Tensor]:
    """What one operation of JAX's makes of tensors.

    Raises:
        NotImplementedError: an operation that no library adds to its kernels today.
    """
    params, name = equation.params, equation.primitive.name
    if name == "pallas_call":
        return _custom_call(equation, given)
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in params:
            inner = params[key]
            return _evaluated(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given)
    shape = [int(size) for size in equation.outvars[0].aval.shape]
    if name == "broadcast_in_dim":
        kept = [1] * len(shape)
        for size, place in zip(given[0].shape, params["broadcast_dimensions"], strict=True):
            kept[place] = int(size)
        return [tf.broadcast_to(tf.reshape(given[0], kept), shape)]
    if name in ("reshape", "squeeze"):
        return [tf.reshape(given[0], shape)]
    if name == "transpose":
        return [tf.transpose(given[0], params["permutation"])]
    if name == "convert_element_type":
        return [tf.cast(given[0], tf.as_dtype(params["new_dtype"]))]
    if name == "reduce_sum":
        return [tf.reduce_sum(given[0], params["axes"])]
    if name == "slice":
        return [tf.slice(given[0], params["start_indices"], shape)]
    if name == "mul":
        return [given[0] * given[1]]
    if name == "dot_general":
        return [_product(*given, *params["dimension_numbers"])]
    if name in ("name", "copy", "stop_gradient"):
        return given
    raise NotImplementedError(f"JAX's {name} has no counterpart here")


def _product(left: tf.Tensor, right: tf.Tensor, contracted: Any, batched: Any) -> tf.Tensor:
    """`lax.dot_general`: batched axes, then what is left of `left`, then of `right`."""
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names = [[""] * len(left.shape), [""] * len(right.shape)]
    for pairs in (batched, contracted):
        for one, other in zip(*pairs, strict=True):
            names[0][one] = names[1][other] = next(letters)
    shared = {name for name in names[0] if name}
    names = [[name or next(letters) for name in side] for side in names]
    result = [names[0][axis] for axis in batched[0]]
    result += [name for side in names for name in side if name not in shared]
    return tf.einsum(f"{''.join(names[0])},{''.join(names[1])}->{''.join(result)}", left, right)


def _custom_call(equation: Any, given: list[tf.Tensor]) -> list[tf.Tensor]:
    """One kernel."""
    types = [variable.aval for variable in equation.outvars]
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]

    def kernel(*arrays: Any) -> Any:
        return equation.primitive.bind(*arrays, **equation.params)

    outputs = gen_xla_ops.xla_custom_call_v2(
        operands=given,
        call_target_name=_TARGET,
        backend_config=_text(kernel, shapes),
        has_side_effect=False,
        result_dtypes=[tf.as_dtype(one.dtype) for one in types],
        result_shapes=[tf.TensorShape(one.shape) for one in types],
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
