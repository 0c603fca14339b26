"""Compilation of a train step for one TPU device or a slice, in a child process with a timeout.

The compiler aborts its process on an unsupported program. So `compile_for` runs this file as a
child process, `python -m bigbird_ja.preflight.compile FOLDER`. The child reads a `Job` from
`FOLDER/job`, and writes a `Program` to `FOLDER/result.json`. On request, libtpu writes listings of
its machine code to FOLDER. The child imports jax and libtpu, but not TensorFlow.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bigbird_ja import compat
from bigbird_ja.accelerators import chips
from bigbird_ja.accelerators.chips import CHIPS, MEGACORE, Chip
from bigbird_ja.errors import BadInput, CommandError
from bigbird_ja.preflight import machine_code
from bigbird_ja.process import cleanup, workers
from bigbird_ja.process.extras import INSTALL
from bigbird_ja.settings.suggestions import suggest_nearest
from bigbird_ja.storage import decode
from bigbird_ja.storage.disk import create_scratch_directory
from bigbird_ja.train.engines import compile_cache
from bigbird_ja.train.engines.lowering.lowered import LoweredStep

CHILD: tuple[str, ...] = (sys.executable, "-m", "bigbird_ja.preflight.compile")
PACKAGES = ("jax", "jaxlib", "libtpu")
# Maximum seconds of a compilation. A 12-layer step takes one to four minutes on one CPU core.
TIMEOUT = 3600.0

# Environment variables of the child process. TPU_SKIP_MDS_QUERY and TPU_WORKER_HOSTNAMES keep
# libtpu from asking a metadata server about this machine. Without ALLOW_MULTIPLE_LIBTPU_LOAD, a
# second compiler process on this machine fails on libtpu's lock file.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "",
    # Without this flag, the error for a program that far exceeds HBM does not list its buffers.
    "LIBTPU_INIT_ARGS": "--xla_tpu_impure_oom_fast_exit_threshold=-1",
}


@dataclass(frozen=True)
class Target:
    """Target of a compilation: one device of a chip, or a whole slice.

    Attributes:
        name: Name of the chip or slice, such as "v3" or "v5e:2x4".
        chip: Chip of each device.
        topology: Name of the topology in libtpu.
        devices: Number of devices.
        options: Further arguments of JAX's `topologies.get_topology_desc`.
    """

    name: str
    chip: Chip
    topology: str
    devices: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_slice(self) -> bool:
        """Whether the target is a whole slice, and not one device."""
        return self.name != self.chip.name


def find_chip(name: str) -> Target:
    """Return the target for one device of a chip.

    Raises:
        BadInput: The chip is unknown. The message suggests a similar name.
    """
    if name not in CHIPS:
        hint = suggest_nearest(name, CHIPS)
        raise BadInput(f"`chips` {name}{hint}: must be one of {', '.join(CHIPS)}")
    return Target(name, CHIPS[name], CHIPS[name].topology)


def find_slice(name: str) -> Target:
    """Return the target for a whole slice, such as "v5e:2x4".

    Raises:
        BadInput: The name does not have this form, or Google offers no slice of this shape.
    """
    try:
        machine = chips.parse_topology(name)
    except BadInput as error:
        raise BadInput(f"`topology` {error}") from error
    shape = name.partition(":")[2]
    sides = [int(side) for side in shape.split("x")]
    dimensions = CHIPS[machine.chip].topology.count("x") + 1
    if len(sides) > dimensions or not _is_built(sorted(sides)):
        raise BadInput(
            f"`topology` {name}: there is no such slice. Use a shape such as 2x2, 2x4, 4x4, 4x8,"
            " 8x8 or 16x16, or on chips with three dimensions 2x2x1, 2x2x2, 2x2x4, 2x4x4 or sides"
            " that are multiples of 4"
        )
    options: dict[str, Any] = {}
    if machine.hosts == 1:
        # Assign all chips to one host. By default, libtpu divides a slice into hosts of four chips.
        options["chips_per_host_bounds"] = (*sides, 1)[:3]
    if machine.chip in MEGACORE:
        options["chip_config_name"] = "megacore"
    chip = MEGACORE.get(machine.chip, CHIPS[machine.chip])
    prefix = chip.topology.partition(":")[0]
    return Target(name, chip, f"{prefix}:{shape}", machine.devices, options)


def _is_built(sides: list[int]) -> bool:
    """Return whether Google offers slices with these side lengths, which must be ascending.

    Sources: the tables of topologies in cloud.google.com/tpu/docs/v5e, v6e, v4 and v5p.
    """
    if len(sides) == 2:
        return all(side & (side - 1) == 0 for side in sides) and sides[1] <= 2 * sides[0]
    return all(side in (1, 2) or side % 4 == 0 for side in sides)


@dataclass(frozen=True)
class Job:
    """Input of the child process: a step to compile, and options.

    Attributes:
        step: Lowered step. It is compiled for as many devices as it has replicas.
        topology: Name of the topology in libtpu.
        options: Further arguments of JAX's `topologies.get_topology_desc`.
        lists_code: Whether libtpu writes listings of its final machine code.
        kernel_trips: For each kernel, the mean trip counts of its loops that depend on data.
        kept_in: Local folder of JAX's compilation cache; "" for none.
    """

    step: LoweredStep
    topology: str
    options: dict[str, Any]
    lists_code: bool = False
    kernel_trips: tuple[tuple[float, ...], ...] = ()
    kept_in: str = ""


@dataclass(frozen=True)
class Program:
    """Result of the child process: a compiled step, or an error.

    Attributes:
        error: Error message of the compiler; "" if the step compiled.
        unknown_place: Whether this compiler does not know the chip or slice.
        hlo: Text of the optimized module.
        sizes: Bytes on one device: temp_bytes, argument_bytes, output_bytes, alias_bytes.
        flops: FLOPs of one run, with each loop body counted once.
        bytes_accessed: Bytes read and written in one run, with each loop body counted once.
        compiler: Version of the compiler.
        code: Counts of the machine code by op name, or None without `Job.lists_code`.
        lowering_seconds: Wall-clock time of lowering on this machine.
        compile_seconds: Wall-clock time of compilation on this machine.
    """

    error: str = ""
    unknown_place: bool = False
    hlo: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    flops: float = 0.0
    bytes_accessed: float = 0.0
    compiler: str = ""
    code: dict[str, machine_code.Code] | None = None
    lowering_seconds: float = 0.0
    compile_seconds: float = 0.0


@dataclass(frozen=True)
class Shortage:
    """Memory that a program requires, if this exceeds the memory of a device.

    Attributes:
        used: Required bytes; 0 if the compiler stopped before they were known.
        largest: Largest allocations: `bytes`, `op` (TensorFlow's name) and `shape` of each.
    """

    used: int
    largest: list[dict[str, Any]]


class CompilerFailed(CommandError):
    """Compilation that ended without a result."""


def read_versions() -> dict[str, str]:
    """Return the versions of jax, jaxlib and libtpu by package name.

    Raises:
        BadInput: A package is not installed. The message contains the command that installs it.
    """
    try:
        return {package: importlib.metadata.version(package) for package in PACKAGES}
    except importlib.metadata.PackageNotFoundError as error:
        raise BadInput(
            f"preflight needs {error.name}, which is not installed: {INSTALL['libtpu']}"
        ) from error


def lists_code(chip: str, libtpu: str) -> bool:
    """Return whether this version of libtpu can list the machine code that it makes for a chip."""
    version = tuple(int(number) for number in re.findall(r"\d+", libtpu)[:3])
    return chip in machine_code.MATMUL_FLOPS and version >= (0, 0, 42)


def compile_for(
    step: LoweredStep,
    target: Target,
    with_code: bool = False,
    kernel_trips: tuple[tuple[float, ...], ...] = (),
    kept_in: str = "",
) -> Program | Shortage:
    """Compile a step for a target.

    Args:
        step: Lowered step, with as many replicas as the target has devices.
        target: One device or a slice.
        with_code: Whether to count the machine code too, if the installed libtpu can list it.
        kernel_trips: For each kernel, the mean trip counts of its loops that depend on data.
        kept_in: Local folder of JAX's compilation cache, which `pretrain` can use; "" for none.

    Returns:
        The compiled program, or the required memory if it exceeds the memory of a device.

    Raises:
        BadInput: A package is not installed, or this libtpu does not know the chip or slice.
        CompilerFailed: The compiler crashed, timed out, or reported another error than insufficient
            memory.
    """
    libtpu = read_versions()["libtpu"]
    listed = with_code and lists_code(target.chip.name, libtpu)
    who = f"the compiler for {target.name}"
    program = _run(Job(step, target.topology, target.options, listed, kernel_trips, kept_in), who)
    if program.unknown_place:
        raise BadInput(
            f"the installed libtpu ({libtpu}) does not know {target.name}: install a newer version"
        )
    if is_shortage(program.error):
        return parse_shortage(program.error)
    if program.error:
        raise CompilerFailed(f"{who} failed: {program.error.strip().splitlines()[0][:300]}")
    return program


def _run(job: Job, who: str) -> Program:
    """Run a child process on a job, and return the child's result."""
    environment = {**os.environ, **ENVIRONMENT}
    with create_scratch_directory() as directory:
        if job.lists_code:
            environment["LIBTPU_INIT_ARGS"] += f" {machine_code.format_flags(directory)}"
        with open(os.path.join(directory, "job"), "wb") as stream:
            stream.write(msgspec.msgpack.encode(job))
        child = subprocess.Popen(
            [*CHILD, directory],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        with cleanup.kill_on_exit(child):
            try:
                _, stderr = child.communicate(timeout=TIMEOUT)
            except subprocess.TimeoutExpired as error:
                message = f"{who} did not finish within {TIMEOUT:.0f} seconds"
                raise CompilerFailed(message) from error
        try:
            return decode.read_json(os.path.join(directory, "result.json"), Program)
        except (OSError, BadInput) as error:
            lines = stderr.decode(errors="replace").splitlines()
            advice = "compile for one of `chips` or `topology` at a time, or on a larger machine"
            raise workers.make_exit_error(child.returncode, lines, who, advice) from error


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"([\d.]+)([KMGT]?)B?"
# Patterns for the required memory of a program in the compiler's error messages.
_TOTALS = (
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"Requires {_SIZE}, has {_SIZE} available"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM"),
)
_SINGLE = re.compile(r"Allocation \(size=(\d+)\) would exceed memory")
_SINGLE_SHAPE = re.compile(r"shape = '([^']*)'.*?tag = '([^']*)'", re.DOTALL)
_BUFFER = re.compile(
    rf"^\s*\d+\. Size: {_SIZE}\s*\n(?:\s*Operator: op_name=\"([^\"]*)\"[^\n]*\n)?"
    r"\s*Shape: ([^\n]*)\n",
    re.MULTILINE,
)


def is_shortage(message: str) -> bool:
    """Return whether a compiler's error means that HBM is too small.

    RESOURCE_EXHAUSTED does not suffice, since a kernel that exceeds a core's vector memory (VMEM)
    also fails with it.
    """
    return "RESOURCE_EXHAUSTED" in message and "memory space vmem" not in message


def parse_shortage(message: str) -> Shortage:
    """Return the memory that a program requires, from the compiler's RESOURCE_EXHAUSTED message."""
    largest = [
        {
            "bytes": _parse_bytes(size, unit),
            "op": op_name or "(made by the compiler)",
            "shape": shape,
        }
        for size, unit, op_name, shape in _BUFFER.findall(message)
    ]
    for form in _TOTALS:
        if total := form.search(message):
            return Shortage(_parse_bytes(total[1], total[2]), largest)
    if single := _SINGLE.search(message):
        size, shape = int(single[1]), _SINGLE_SHAPE.search(message)
        op_name, text = (shape[2], shape[1]) if shape else ("", "")
        return Shortage(size, [{"bytes": size, "op": op_name, "shape": text}])
    return Shortage(0, largest)


def _parse_bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


# --- in the child process ---


def main(arguments: list[str]) -> None:
    """Compile the job in the folder `arguments[0]`, and write the result or an error there."""
    workers.init_child()
    folder = Path(arguments[0])
    job = msgspec.msgpack.decode((folder / "job").read_bytes(), type=Job)
    devices: list[Any] = []
    try:
        devices = find_devices(job.topology, job.options)[: job.step.replicas]
        program = compile_step(job, devices, folder)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        program = Program(text, unknown_place=not devices and "INVALID_ARGUMENT" in text)
    (folder / "result.json").write_bytes(msgspec.json.encode(program))


def find_devices(topology: str, options: dict[str, Any]) -> list[Any]:
    """Return the devices of a slice, in the order of the replicas (see `engines.devices.find`)."""
    from jax.experimental import topologies

    slice_ = topologies.get_topology_desc(platform="tpu", topology_name=topology, **options)
    return sorted(slice_.devices, key=lambda device: (device.process_index, device.id))


def compile_step(job: Job, devices: list[Any], folder: Path) -> Program:
    """Compile the program that `engines.pjrt` runs.

    Args:
        job: Job with as many replicas as there are devices.
        devices: Devices to compile for.
        folder: Folder of libtpu's listings.
    """
    import numpy as np
    from jax.sharding import Mesh

    from bigbird_ja.train.engines.lowering.device_step import AXIS, make_shapes, make_step

    compat.skip_default_layouts()
    if job.kept_in:
        compile_cache.use(job.kept_in)
        # Remove LIBTPU_INIT_ARGS, since it is part of the cache's key, and `pretrain` does not set
        # it. libtpu has already read its flags, which do not change the compiled code.
        os.environ.pop("LIBTPU_INIT_ARGS", None)
    mesh = Mesh(np.asarray(devices), (AXIS,))
    began = time.monotonic()
    lowered = make_step(job.step, "tpu", mesh).lower(*make_shapes(job.step, mesh))
    lowering = time.monotonic() - began
    compiled = lowered.compile()
    compiling = time.monotonic() - began - lowering
    memory = compiled.memory_analysis()
    cost = compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    kinds = ("temp", "argument", "output", "alias")
    return Program(
        hlo=read_optimized(compiled, folder),
        sizes={f"{kind}_bytes": getattr(memory, f"{kind}_size_in_bytes") for kind in kinds},
        flops=cost["flops"],
        bytes_accessed=cost["bytes accessed"],
        compiler=" ".join(devices[0].client.platform_version.split()),
        code=machine_code.collect(str(folder), job.kernel_trips) if job.lists_code else None,
        lowering_seconds=round(lowering, 1),
        compile_seconds=round(compiling, 1),
    )


def read_optimized(compiled: Any, folder: Path) -> str:
    """Return the text of the optimized HLO.

    jaxlib 0.10.2 cannot parse a newer libtpu's programs for v6e's SparseCores (gathers fail with
    "async-update instruction should have 1 operands"). The text of such a program is read from
    libtpu's listing in `folder`.
    """
    try:
        return str(compiled.as_text())
    except Exception:
        programs = list(folder.glob("*-TLP-hlo.txt"))
        if len(programs) != 1:
            raise
        return programs[0].read_text(encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
