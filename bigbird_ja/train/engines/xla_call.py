"""A function that TensorFlow has lowered, as a function that JAX can call inside its own programs.

HLO becomes StableHLO by XLA's own converter. A function of the same signature is exported by
`jax.export`, and its module replaced by ours: what `jax.export` gives is then called like any other
JAX function, inside `jit` and `shard_map`. All names are public but two, for jax before 0.7.1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.interpreters import mlir
from jax.sharding import Mesh
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from bigbird_ja import storage
from bigbird_ja.process.errors import StorageError
from bigbird_ja.train.lowered import Traced

_KERNEL = "tpu_custom_call"


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
        if _KERNEL.encode() in hlo:
            _kernels_as_jax_writes_them(module)
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


def _kernels_as_jax_writes_them(module: Any) -> None:
    """Kernels for a TPU return one tuple when they come from HLO; libtpu reads what JAX writes, as
    many results as there are, by the first version of the call's interface."""
    calls: list[Any] = []

    def look(op: Any) -> Any:
        is_call = op.name == "stablehlo.custom_call"
        if is_call and op.attributes["call_target_name"].value == _KERNEL:
            calls.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    for op in calls:
        _with_single_results(op)


def _with_single_results(op: Any) -> None:
    kind = op.results[0].type
    is_tuple = str(kind).startswith("tuple<")  # old and new bindings ask for types differently
    types = [kind]
    if is_tuple:
        parts = ir.TupleType(kind)
        types = [parts.get_type(i) for i in range(parts.num_types)]
    kept = ("call_target_name", "backend_config", "operand_layouts", "result_layouts")
    attributes = {name: op.attributes[name] for name in kept if name in op.attributes}
    attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1)
    new = ir.Operation.create(
        "stablehlo.custom_call", results=types, operands=list(op.operands),
        attributes=attributes, loc=op.location, ip=ir.InsertionPoint(op),
    )  # fmt: skip
    if is_tuple:
        for use in list(op.results[0].uses):
            part = use.owner
            index = ir.IntegerAttr(part.attributes["index"]).value
            part.results[0].replace_all_uses_with(new.results[index])
            part.operation.erase()
    else:
        op.results[0].replace_all_uses_with(new.results[0])
    op.erase()


class CompiledPrograms:
    """Compiled programs, kept next to the run: a restart on the same kind of machine compiles none.

    JAX keeps and finds them itself, by all that they depend on, in a local folder. For a run on a
    bucket that folder is downloaded before the first compilation and uploaded after it.

    Args:
        place: folder on disk or on gs://.
        scratch: local folder, used where `place` is on a bucket.
        platform: "cpu", "cuda" or "tpu".
        log: for what fails; a program that is not kept only costs time.
    """

    def __init__(self, place: str, scratch: str, platform: str, log: Callable[[str], None]) -> None:
        if platform == "cpu":  # its programs hold instructions that another CPU may not have
            place = storage.join(place, f"cpu-{_cpu_features()}")
        self._place, self._log = place, log
        self._local = os.path.join(scratch, "compiled") if storage.is_remote(place) else place
        self._platform = platform
        self._before: set[str] = set()

    def begin(self) -> None:
        """Downloads what was kept, and sets JAX's folder."""
        if self._is_unsafe(jax.__version_info__):
            return
        with self._failures_logged():
            self._fetch()
        jax.config.update("jax_compilation_cache_dir", self._local)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        # Further caches of XLA's would make the folder's path a part of the key.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")

    def keep(self) -> None:
        """Uploads what was compiled since to the bucket."""
        if not storage.is_remote(self._place) or not os.path.isdir(self._local):
            return
        with self._failures_logged():
            new = sorted(set(os.listdir(self._local)) - self._before)
            for name in new:
                storage.upload(os.path.join(self._local, name), storage.join(self._place, name))
            self._before |= set(new)

    def _is_unsafe(self, jax_version: tuple[int, ...]) -> bool:
        """jaxlib 0.4.34 brings CPU programs back that write over donated memory and crash."""
        return self._platform == "cpu" and jax_version < (0, 7)

    def _fetch(self) -> None:
        if not storage.is_remote(self._place):
            return
        os.makedirs(self._local, exist_ok=True)
        names = storage.list_files(self._place)
        for name in map(storage.check_inside, names):
            storage.download(storage.join(self._place, name), os.path.join(self._local, name))
        self._before = set(names)

    @contextlib.contextmanager
    def _failures_logged(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError) as error:
            self._log(f"compiled programs are not kept this time: {error}")


def _cpu_features() -> str:
    """Eight hex digits for what this machine's CPU can do."""
    text = ""
    with contextlib.suppress(OSError):
        match = re.search(r"^(flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.M)
        text = match[0] if match else ""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
