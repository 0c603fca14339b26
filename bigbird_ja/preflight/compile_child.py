"""Compiles one HLO module for one chip, in a process of its own: `python -m ... HLO TOPOLOGY OUT`.

Reads a serialized HLO module; writes `OUT/result.json` and, where the module compiles,
`OUT/optimized.hlo`. The compiler ends its process when it meets something that it cannot do; here
that ends the child only. Run by `bigbird_ja.preflight.compile`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from bigbird_ja import children

# Before jax is imported. The first two keep libtpu from asking a metadata server what machine this
# is; the third lets two compilers run side by side instead of failing over a lock file.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "",
    # Otherwise a program that is far too large is refused without naming its buffers.
    "LIBTPU_INIT_ARGS": "--xla_tpu_impure_oom_fast_exit_threshold=-1",
}


def main(arguments: list[str]) -> None:
    children.be_a_child()
    hlo_path, topology, out = arguments
    with open(hlo_path, "rb") as stream:
        hlo = stream.read()
    try:
        result, text = compile_module(hlo, topology)
    except Exception as error:
        result, text = {"error": f"{type(error).__name__}: {error}"}, None
    if text is not None:
        with open(os.path.join(out, "optimized.hlo"), "w", encoding="utf-8") as stream:
            stream.write(text)
    with open(os.path.join(out, "result.json"), "w", encoding="utf-8") as stream:
        json.dump(result, stream)


def compile_module(hlo: bytes, topology: str) -> tuple[dict[str, Any], str]:
    """Compiles a serialized HLO module for one device of a topology.

    Returns:
        Sizes in bytes, the compiler's own FLOPs and traffic, its version; and the optimised HLO.
    """
    import numpy as np
    from jax._src.lib import xla_client
    from jax.experimental import topologies

    device = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    executable = _compile(hlo, device, options)
    memory = executable.get_compiled_memory_stats()
    cost = executable.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    result = {
        "temp_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
        "compiler": " ".join(device.client.platform_version.split()),
    }
    return result, executable.hlo_modules()[0].to_string()


def _compile(hlo: bytes, device: Any, options: Any) -> Any:
    """The executable, by what jax offers since 0.7.1, or by jaxlib 0.4.34's own converter."""
    try:
        from jax.extend.mlir import hlo_to_stablehlo
    except ImportError:
        from jax._src.lib import xla_client, xla_extension

        convert = xla_extension.mlir.xla_computation_to_mlir_module
        return device.client.compile(convert(xla_client.XlaComputation(hlo)), options)
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir import ir

    module = ir.Module.parse(hlo_to_stablehlo(hlo), mlir.make_ir_context())
    _copies_to_reshapes(module)
    devices = _jax.DeviceList((device,))
    return compiler.backend_compile_and_load(device.client, module, devices, options, [])


def _copies_to_reshapes(module: Any) -> None:
    """Replaces `mhlo.copy`, which TensorFlow writes for variables and newer compilers refuse."""
    from jaxlib.mlir import ir

    copies = []

    def find(operation: Any) -> Any:
        if operation.name == "mhlo.copy":
            copies.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(find)
    for copy in copies:
        with ir.InsertionPoint(copy), copy.location:
            reshape = ir.Operation.create(
                "stablehlo.reshape", [copy.results[0].type], [copy.operands[0]]
            )
        copy.results[0].replace_all_uses_with(reshape.results[0])
        copy.erase()


if __name__ == "__main__":
    main(sys.argv[1:])
