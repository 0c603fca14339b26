"""A function that TensorFlow has lowered, as a function that JAX can call inside its own programs.

HLO becomes StableHLO by XLA's own converter. A function of the same signature is exported by
`jax.export`, and its module replaced by ours: what `jax.export` gives is then called like any other
JAX function, inside `jit` and `shard_map`. All names are public but two, for jax before 0.7.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.interpreters import mlir
from jax.sharding import Mesh
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from bigbird_ja.train.lowered import Traced


def as_jax_function(traced: Traced, platform: str) -> Callable[..., list[Any]]:
    """A JAX function of `traced.inputs`, in their order, that returns `traced.outputs`.

    Args:
        traced: a lowered function.
        platform: for which it may be compiled: "cpu", "cuda", "tpu".
    """

    def same_signature(*arguments: Any) -> list[Any]:
        return [jnp.zeros(spec.shape, spec.dtype) for spec in traced.outputs.values()]

    arguments = [jax.ShapeDtypeStruct(s.shape, s.dtype) for s in traced.inputs.values()]
    # One platform: with several, the exported function has one argument more.
    exported = export.export(jax.jit(same_signature, keep_unused=True), platforms=[platform])(
        *arguments
    )
    module = to_portable_artifact(traced.hlo)
    return dataclasses.replace(exported, mlir_module_serialized=module).call


def shard_map(function: Any, mesh: Mesh, in_specs: Any, out_specs: Any) -> Any:
    """`jax.shard_map`, by the name and with the arguments that the installed jax has."""
    if hasattr(jax, "shard_map"):
        return jax.shard_map(
            function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
    from jax.experimental.shard_map import shard_map as experimental

    return experimental(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=False
    )


def to_portable_artifact(hlo: bytes) -> bytes:
    """A serialized HLO module as StableHLO, serialized; TensorFlow's op names are its locations."""
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(_to_stablehlo(hlo))
        _return_results_one_by_one(module)
        artifact: bytes = stablehlo.serialize_portable_artifact(
            module, stablehlo.get_current_version()
        )
    return artifact


def _to_stablehlo(hlo: bytes) -> Any:
    try:
        from jax.extend.mlir import hlo_to_stablehlo  # jax 0.7.1
    except ImportError:
        from jax._src.lib import xla_client, xla_extension

        convert = xla_extension.mlir.xla_computation_to_mlir_module
        return convert(xla_client.XlaComputation(hlo))
    return hlo_to_stablehlo(hlo)


def _return_results_one_by_one(module: Any) -> None:
    """HLO's entry returns one tuple; JAX expects as many results as there are outputs."""
    main = next(op for op in module.body.operations if op.sym_name.value == "main")
    last = main.entry_block.operations[len(main.entry_block.operations) - 1]
    if len(last.operands) != 1 or last.operands[0].owner.name != "stablehlo.tuple":
        return
    joined = last.operands[0].owner
    values = list(joined.operands)
    with ir.InsertionPoint(last), last.location:
        func.ReturnOp(values)
    last.operation.erase()
    joined.erase()
    kind = ir.FunctionType.get(main.type.inputs, [value.type for value in values])
    main.attributes["function_type"] = ir.TypeAttr.get(kind)
