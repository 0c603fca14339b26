"""Compiles a step for one device or a slice, in a process of its own: `python -m ... FOLDER`.

Reads `FOLDER/job`, a `Job`, and writes `FOLDER/result.json`; libtpu's listings go there too. The
compiler ends its process when it meets something that it cannot do; here that ends the child only.
Run by `bigbird_ja.preflight.compile`. Needs jax and libtpu; TensorFlow is not imported.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bigbird_ja.preflight import machine_code
from bigbird_ja.process import children
from bigbird_ja.train.engines.lowering import LoweredStep

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


@dataclass(frozen=True)
class Job:
    """Asks for a step, compiled for as many devices of a topology as it has replicas."""

    step: LoweredStep
    topology: str  # by libtpu's name
    options: dict[str, Any]  # of `get_topology_desc`
    lists_code: bool = False  # libtpu lists its final code
    kernel_trips: tuple[float, ...] = ()  # as of `machine_code.collect`


@dataclass(frozen=True)
class Program:
    """Holds a compiled step, as the child writes it. Sizes in bytes, of one device."""

    error: str = ""  # where it did not compile
    unknown_place: bool = False  # the error is that this compiler has no such chip or slice
    hlo: str = ""  # optimised
    sizes: dict[str, int] = field(default_factory=dict)  # temp, argument, output, alias
    flops: float = 0.0  # the compiler's own count
    bytes_accessed: float = 0.0
    compiler: str = ""  # its version
    code: dict[str, machine_code.Code] | None = None  # by op name, where requested


def main(arguments: list[str]) -> None:
    """Do the job in a folder; an exception becomes the result's `error`."""
    children.be_a_child()
    folder = Path(arguments[0])
    job = msgspec.msgpack.decode((folder / "job").read_bytes(), type=Job)
    try:
        devices = devices_of(job.topology, job.options)[: job.step.replicas]
    except Exception as error:
        program = Program(f"{type(error).__name__}: {error}", "INVALID_ARGUMENT" in str(error))
    else:
        try:
            program = compile_step(job, devices, folder)
        except Exception as error:
            program = Program(f"{type(error).__name__}: {error}")
    (folder / "result.json").write_bytes(msgspec.json.encode(program))


def devices_of(topology: str, options: dict[str, Any]) -> list[Any]:
    """List the devices of a slice, in the order of the replicas (as `engines.devices.find`)."""
    from jax.experimental import topologies

    slice_ = topologies.get_topology_desc(platform="tpu", topology_name=topology, **options)
    return sorted(slice_.devices, key=lambda device: (device.process_index, device.id))


def compile_step(job: Job, devices: list[Any], folder: Path) -> Program:
    """Compile what `engines.pjrt` runs.

    Args:
        job: with as many replicas as there are devices.
        devices: that libtpu compiles for.
        folder: in which libtpu lists its code, where it does.
    """
    import numpy as np
    from jax.sharding import Mesh

    from bigbird_ja.train.engines.lowering.device_step import AXIS, make_step, shapes

    _take_layouts_as_they_are()
    mesh = Mesh(np.asarray(devices), (AXIS,))
    compiled = make_step(job.step, "tpu", mesh).lower(*shapes(job.step, mesh)).compile()
    memory = compiled.memory_analysis()
    cost = compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    kinds = ("temp", "argument", "output", "alias")
    return Program(
        hlo=optimised(compiled, folder),
        sizes={f"{kind}_bytes": getattr(memory, f"{kind}_size_in_bytes") for kind in kinds},
        flops=cost["flops"],
        bytes_accessed=cost["bytes accessed"],
        compiler=" ".join(devices[0].client.platform_version.split()),
        code=machine_code.collect(str(folder), job.kernel_trips) if job.lists_code else None,
    )


def optimised(compiled: Any, folder: Path) -> str:
    """Return the optimised HLO.

    jaxlib 0.10.2 refuses to read work on v6e's SparseCores that a newer libtpu writes (gathers:
    "async-update instruction should have 1 operands"); then it is taken from libtpu's listing.
    """
    try:
        return str(compiled.as_text())
    except Exception:
        programs = list(folder.glob("*-TLP-hlo.txt"))
        if len(programs) != 1:
            raise
        return programs[0].read_text(encoding="utf-8")


def _take_layouts_as_they_are() -> None:
    """Keep jax from asking the client for its default layouts after a compile.

    With jax 0.7.2 a client without devices crashes at that question (a null pointer). The answer is
    needed to call the program, which never happens here.
    """
    from jax._src.interpreters import pxla

    if hasattr(pxla, "is_default_layout"):
        pxla.is_default_layout = lambda layout, sharding, aval: True


if __name__ == "__main__":
    main(sys.argv[1:])
