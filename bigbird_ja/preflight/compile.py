"""Runs the TPU compiler on a step, in a child process with a time limit."""

import importlib.metadata
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bigbird_ja import accelerators
from bigbird_ja.accelerators import CHIPS, MEGACORE, Chip
from bigbird_ja.preflight import machine_code
from bigbird_ja.preflight.compile_child import ENVIRONMENT, Job, Program
from bigbird_ja.process import children
from bigbird_ja.process.errors import INSTALL, BadInput, CommandError
from bigbird_ja.settings.option import nearest
from bigbird_ja.storage import decode
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.train.engines.lowering import LoweredStep

CHILD: tuple[str, ...] = (sys.executable, "-m", "bigbird_ja.preflight.compile_child")
PACKAGES = ("jax", "jaxlib", "libtpu")
TIMEOUT = 3600.0  # seconds; a 12-layer step takes one to four minutes on one CPU core


@dataclass(frozen=True)
class Target:
    """Describes what one compilation is for: one device of a chip, or a whole slice."""

    name: str  # "v3", "v5e:2x4"
    chip: Chip  # one device
    topology: str  # by libtpu's name
    devices: int = 1
    options: dict[str, Any] = field(default_factory=dict)  # of `topologies.get_topology_desc`

    @property
    def is_slice(self) -> bool:
        """Tell a whole slice from one device."""
        return self.name != self.chip.name


def of_chip(name: str) -> Target:
    """Return one device of a chip.

    Raises:
        BadInput: there is no such chip; the message names the nearest.
    """
    if name not in CHIPS:
        raise BadInput(f"--chip {name}{nearest(name, CHIPS)}: one of {', '.join(CHIPS)}")
    return Target(name, CHIPS[name], CHIPS[name].topology)


def of_topology(name: str) -> Target:
    """Return a whole slice, such as "v5e:2x4".

    Raises:
        BadInput: a name of another form.
    """
    try:
        machine = accelerators.of_topology(name)
    except BadInput as error:
        raise BadInput(f"--topology {error}") from error
    shape = name.partition(":")[2]
    options: dict[str, Any] = {}
    if math.prod(map(int, shape.split("x"))) == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    if machine.chip in MEGACORE:
        options["chip_config_name"] = "megacore"
    chip = MEGACORE.get(machine.chip, CHIPS[machine.chip])
    prefix = chip.topology.partition(":")[0]
    return Target(name, chip, f"{prefix}:{shape}", machine.devices, options)


@dataclass(frozen=True)
class Shortage:
    """Says what a program needs that does not fit."""

    used: int  # bytes it needs; 0 where the compiler stopped before that was known
    largest: list[dict[str, Any]]  # allocations: `bytes`, `op` (TensorFlow's), `shape`


class CompilerFailed(CommandError):
    """Raised where the compiler ended without a result; says how, in one line."""


def versions() -> dict[str, str]:
    """Return the versions of the compiler's packages.

    Raises:
        BadInput: the extra is not installed; names the command that installs it.
    """
    try:
        return {package: importlib.metadata.version(package) for package in PACKAGES}
    except importlib.metadata.PackageNotFoundError as error:
        raise BadInput(
            f"preflight needs {error.name}, which is not installed: {INSTALL['libtpu']}"
        ) from error


def lists_code(chip: str, libtpu: str) -> bool:
    """Tell whether this version of libtpu lists its machine code for a chip."""
    version = tuple(int(number) for number in re.findall(r"\d+", libtpu)[:3])
    return chip in machine_code.MATMUL_FLOPS and version >= (0, 0, 42)


def compile_for(
    step: LoweredStep, target: Target, with_code: bool = False, kernel_trips: tuple[float, ...] = ()
) -> Program | Shortage:
    """Compile a step for a target.

    Args:
        step: for as many replicas as the target has devices.
        target: one device or a slice.
        with_code: reads the machine code too, where this libtpu lists it.
        kernel_trips: as of `machine_code.collect`.

    Returns:
        The program, or what it needs where it does not fit.

    Raises:
        BadInput: the extra is not installed, or this libtpu does not know the chip or slice.
        CompilerFailed: a crash, a time-out, or an error other than too little memory.
    """
    libtpu = versions()["libtpu"]
    listed = with_code and lists_code(target.chip.name, libtpu)
    who = f"the compiler for {target.name}"
    program = _run(Job(step, target.topology, target.options, listed, kernel_trips), who)
    if program.unknown_place:
        raise BadInput(f"the installed libtpu ({libtpu}) knows no {target.name}: use a newer one")
    if is_shortage(program.error):
        return shortage(program.error)
    if program.error:
        raise CompilerFailed(f"{who} refused: {program.error.strip().splitlines()[0][:300]}")
    return program


def _run(job: Job, who: str) -> Program:
    """Run the child on a job; return the result that it wrote."""
    environment = {**os.environ, **ENVIRONMENT}
    with scratch_directory() as directory:
        if job.lists_code:
            environment["LIBTPU_INIT_ARGS"] += f" {machine_code.flags(directory)}"
        with open(os.path.join(directory, "job"), "wb") as stream:
            stream.write(msgspec.msgpack.encode(job))
        child = subprocess.Popen(
            [*CHILD, directory],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        with children.kill_on_exit(child):
            try:
                _, stderr = child.communicate(timeout=TIMEOUT)
            except subprocess.TimeoutExpired as error:
                message = f"{who} did not finish within {TIMEOUT:.0f} seconds"
                raise CompilerFailed(message) from error
        try:
            return decode.read_json(os.path.join(directory, "result.json"), Program)
        except (OSError, BadInput) as error:  # the child ended before it could write its result
            lines = stderr.decode(errors="replace").splitlines()
            advice = "compile for one --chip or --topology at a time, or on a larger machine"
            raise children.error_from_exit(child.returncode, lines, who, advice) from error


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"([\d.]+)([KMGT]?)B?"
# The compiler's message names what the program needs in one of these forms.
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
    """Tell whether a compiler's error means that HBM is too small.

    Not a core's vector memory, of which a kernel uses too much.
    """
    return "RESOURCE_EXHAUSTED" in message and "memory space vmem" not in message


def shortage(message: str) -> Shortage:
    """Read the compiler's RESOURCE_EXHAUSTED message."""
    largest = [
        {"bytes": _bytes(size, unit), "op": op_name or "(made by the compiler)", "shape": shape}
        for size, unit, op_name, shape in _BUFFER.findall(message)
    ]
    for form in _TOTALS:
        if total := form.search(message):
            return Shortage(_bytes(total[1], total[2]), largest)
    if single := _SINGLE.search(message):
        size, shape = int(single[1]), _SINGLE_SHAPE.search(message)
        op_name, text = (shape[2], shape[1]) if shape else ("", "")
        return Shortage(size, [{"bytes": size, "op": op_name, "shape": text}])
    return Shortage(0, largest)


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])
