"""Compiles a step for one device or a slice, in a process of its own: `python -m ... FOLDER`.

Reads `FOLDER/job`, a `Job`, and writes `FOLDER/result.json`; libtpu's listings go there too. The
compiler ends its process when it meets something that it cannot do; here that ends the child only.
Run by `bigbird_ja.preflight.compile`. Needs jax and libtpu; TensorFlow is not imported.
"""

import sys
from dataclasses import dataclass
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
class Place:
    """Describes what libtpu compiles for."""

    topology: str  # by libtpu's name
    is_one_chip: bool = False
    is_megacore: bool = False  # a chip's two cores as one device

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of `get_topology_desc`."""
        one: dict[str, Any] = {"chips_per_host_bounds": (1, 1, 1)} if self.is_one_chip else {}
        return one | ({"chip_config_name": "megacore"} if self.is_megacore else {})


@dataclass(frozen=True)
class Job:
    """Asks for a step, compiled for as many devices of the first place as it has replicas.

    Without a step it asks how many devices each place has.
    """

    places: list[Place]
    step: LoweredStep | None = None
    lists_code: bool = False  # libtpu lists its final code


def main(arguments: list[str]) -> None:
    """Do the job in a folder; an exception becomes the result's `error`."""
    children.be_a_child()
    folder = Path(arguments[0])
    job = msgspec.msgpack.decode((folder / "job").read_bytes(), type=Job)
    result: dict[str, Any]
    try:
        if job.step is None:
            result = {"devices": [count_devices(place) for place in job.places]}
        else:
            result = compile_step(job.step, job.places[0], str(folder))
            result["code"] = machine_code.collect(str(folder)) if job.lists_code else None
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    # Counts of machine code are NumPy's numbers.
    encoded = msgspec.json.encode(result, enc_hook=lambda number: number.item())
    (folder / "result.json").write_bytes(encoded)


def devices_of(place: Place) -> list[Any]:
    """List the devices of a slice, in the order of the replicas (as `engines.devices.find`)."""
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=place.topology, **place.options
    )
    return sorted(topology.devices, key=lambda device: (device.process_index, device.id))


def count_devices(place: Place) -> int:
    """Count a place's devices: 0 where the compiler does not know it."""
    try:
        return len(devices_of(place))
    except Exception as error:
        if "INVALID_ARGUMENT" in str(error):
            return 0
        raise


def compile_step(step: LoweredStep, place: Place, listing: str) -> dict[str, Any]:
    """Compile what `engines.pjrt` runs.

    Args:
        step: for as many replicas as devices of the place are taken.
        place: what libtpu compiles for.
        listing: the folder in which libtpu lists its code, where it does.

    Returns:
        Of one device: sizes in bytes, the compiler's own FLOPs and traffic, its version; and the
        optimised HLO.
    """
    import numpy as np
    from jax.sharding import Mesh

    from bigbird_ja.train.engines.lowering.device_step import AXIS, make_step, shapes

    _take_layouts_as_they_are()
    devices = devices_of(place)[: step.replicas]
    mesh = Mesh(np.asarray(devices), (AXIS,))
    compiled = make_step(step, "tpu", mesh).lower(*shapes(step, mesh)).compile()
    memory = compiled.memory_analysis()
    cost = compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return {
        "temp_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
        "compiler": " ".join(devices[0].client.platform_version.split()),
        "hlo": optimised(compiled, listing),
    }


def optimised(compiled: Any, listing: str) -> str:
    """Return the optimised HLO.

    jaxlib 0.10.2 refuses to read work on v6e's SparseCores that a newer libtpu writes (gathers:
    "async-update instruction should have 1 operands"); then it is taken from libtpu's listing.
    """
    try:
        return str(compiled.as_text())
    except Exception:
        programs = list(Path(listing).glob("*-TLP-hlo.txt"))
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
