"""Conversion of lowered HLO to StableHLO, and to a function that JAX can call.

XLA's own converter converts HLO to StableHLO. To make the StableHLO callable, `jax.export` exports
a dummy function of the same signature, and the dummy's module is replaced by the converted one. The
result can be called like any JAX function, inside `jit` and `shard_map`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from bigbird_ja import compat
from bigbird_ja.train.engines.lowering.lowered import Traced

_KERNEL = "tpu_custom_call"


def make_jax_function(traced: Traced, platform: str) -> Callable[..., list[Any]]:
    """Return a JAX function with the arguments `traced.inputs` and the results `traced.outputs`.

    Arguments are positional, and the results are a list, both in the order of `traced`.

    Args:
        traced: lowered function.
        platform: platform to compile for: "cpu", "cuda" or "tpu".
    """
    import jax
    import jax.numpy as jnp
    from jax import export

    def same_signature(*arguments: Any) -> list[Any]:
        return [jnp.zeros(spec.shape, spec.dtype) for spec in traced.outputs.values()]

    arguments = [jax.ShapeDtypeStruct(s.shape, s.dtype) for s in traced.inputs.values()]
    # For several platforms the exported function would have one more argument.
    exported = export.export(jax.jit(same_signature, keep_unused=True), platforms=[platform])(
        *arguments
    )
    module = serialize_module(traced.hlo)
    return dataclasses.replace(exported, mlir_module_serialized=module).call


def serialize_module(hlo: bytes) -> bytes:
    """Serialize an HLO module as StableHLO, with TensorFlow's op names as locations."""
    from jax.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(compat.hlo_to_stablehlo(hlo))
        _return_results_one_by_one(module)
        if _KERNEL.encode() in hlo:
            _convert_kernel_calls(module)
        artifact: bytes = stablehlo.serialize_portable_artifact(
            module, stablehlo.get_current_version()
        )
    return artifact


def _return_results_one_by_one(module: Any) -> None:
    """Change a module to return its results separately, as JAX expects, and not as one tuple."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

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


def _convert_kernel_calls(module: Any) -> None:
    """Change the calls of a TPU's kernels to JAX's form, which libtpu reads.

    In HLO a call returns one tuple. In JAX's form a call returns its results separately, and states
    version 1 of the interface of custom calls.
    """
    from jaxlib.mlir import ir

    calls: list[Any] = []

    def look(op: Any) -> Any:
        is_call = op.name == "stablehlo.custom_call"
        if is_call and op.attributes["call_target_name"].value == _KERNEL:
            calls.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    for op in calls:
        _split_results(op)


def _split_results(op: Any) -> None:
    from jaxlib.mlir import ir

    kind = op.results[0].type
    # The check for a tuple type depends on jaxlib's version, so the type's text is compared.
    is_tuple = str(kind).startswith("tuple<")
    types = [kind]
    if is_tuple:
        parts = ir.TupleType(kind)
        types = [parts.get_type(i) for i in range(parts.num_types)]
    kept = ("call_target_name", "backend_config", "operand_layouts", "result_layouts")
    attributes = {name: op.attributes[name] for name in kept if name in op.attributes}
    attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1)
    new = ir.Operation.create(
        "stablehlo.custom_call",
        results=types,
        operands=list(op.operands),
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    if is_tuple:
        for use in list(op.results[0].uses):
            part = use.owner
            index = ir.IntegerAttr(part.attributes["index"]).value
            part.results[0].replace_all_uses_with(new.results[index])
            part.operation.erase()
    else:
        op.results[0].replace_all_uses_with(new.results[0])
    op.erase()
