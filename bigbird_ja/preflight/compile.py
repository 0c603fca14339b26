"""Runs the TPU compiler on a step, in a child process with a time limit, and caches the result.

The cache key is the SHA-256 of everything that a result depends on: the step's functions, the
device or slice, the versions of libtpu and jaxlib, and this project's way of calling them.
"""

import contextlib
import gzip
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bigbird_ja import storage
from bigbird_ja.preflight import machine_code
from bigbird_ja.preflight.compile_child import ENVIRONMENT, Job, Place
from bigbird_ja.preflight.targets import Target
from bigbird_ja.process import children
from bigbird_ja.process.errors import BadInput, CommandError
from bigbird_ja.storage import decode
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.train.engines.lowering import LoweredStep

CHILD: tuple[str, ...] = (sys.executable, "-m", "bigbird_ja.preflight.compile_child")
_PACKAGES = ("jax", "jaxlib", "libtpu")
_CACHE_FORMAT = "5"
_LISTING_TIMEOUT = 300.0  # seconds


@dataclass(frozen=True)
class Shortage:
    """Says what a program needs that does not fit."""

    used: int  # bytes it needs; 0 where the compiler stopped before that was known
    largest: list[dict[str, Any]]  # allocations: `bytes`, `op` (TensorFlow's), `shape`


@dataclass(frozen=True)
class Compiled:
    """Holds the compiler's result for one target. Sizes in bytes."""

    hlo: str  # optimised, "" where it did not fit
    stats: dict[str, Any]  # see `compile_child.compile_step`; {} where it did not fit
    shortage: Shortage | None  # None: it fits
    code: dict[str, machine_code.Code] | None = None  # by op name, where requested and available


class CompilerFailed(CommandError):
    """Raised where the compiler ended without a result; says how, in one line."""


def versions() -> dict[str, str]:
    """Return the versions of the compiler's packages.

    Raises:
        BadInput: the extra is not installed; names the command that installs it.
    """
    installed = {}
    for package in _PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise BadInput(
                f"preflight needs {package}, which is not installed:"
                " pip install 'bigbird-ja[preflight]'"
            ) from error
    return installed


@dataclass(frozen=True)
class CompileOptions:
    """Options of every compilation of one command."""

    cache_dir: str | None = None  # folder of results that are kept; None: none are
    timeout: float = 3600.0  # seconds; a 12-layer step takes one to four minutes on one CPU core
    dump_dir: str | None = None  # keeps HLO, in and out
    machine_code: bool = False  # reads the machine code too, where this libtpu lists it


def compile_for(
    step: LoweredStep, target: Target, options: CompileOptions = CompileOptions()
) -> Compiled:
    """Compile a step for a target.

    Args:
        step: for as many replicas as the target has devices.
        target: one device or a slice.
        options: of the compilation.

    Raises:
        BadInput: the extra is not installed, or this libtpu does not know the chip.
        CompilerFailed: a crash, a time-out, or an error other than too little memory.
    """
    installed = versions()
    listed = machine_code.is_available(target.chip.name, installed["libtpu"])
    code = options.machine_code and listed
    key = cache_key(step, target, installed, code)
    path = os.path.join(options.cache_dir, f"{key}.json.gz") if options.cache_dir else None
    result = _load(path) if path else None
    if result is None:
        result = _compile(step, target, options.timeout, code)
        if path:
            _store(path, result)
    if "error" in result:
        return Compiled("", {}, shortage(result["error"]))
    codes = result.pop("code", None)
    if codes is not None:
        codes = decode.convert(codes, dict[str, machine_code.Code], "code")
    return Compiled(result.pop("hlo"), result, None, codes)


def cache_key(
    step: LoweredStep, target: Target, installed: dict[str, str], code: bool = False
) -> str:
    """Hash all that a result depends on (SHA-256, hex).

    Args:
        step: the program.
        target: what it is compiled for.
        installed: versions of the compiler's packages.
        code: the result includes the machine code.
    """
    inputs = {
        "format": _CACHE_FORMAT,
        "code": code,
        "place": msgspec.to_builtins(target.place),
        "versions": installed,
        "environment": ENVIRONMENT,
    }
    text = json.dumps(inputs, sort_keys=True).encode()
    return hashlib.sha256(text + b"\0" + msgspec.msgpack.encode(step)).hexdigest()


def count_devices(places: Sequence[Place]) -> list[int]:
    """Count the devices that the installed compiler has in each place; 0 where it does not know it.

    Raises:
        BadInput: the extra is not installed.
        CompilerFailed: a crash, or no result.
    """
    versions()
    result = _run(Job(list(places)), "libtpu", _LISTING_TIMEOUT)
    if "error" in result:
        raise CompilerFailed(f"libtpu cannot list its devices: {_first_line(result['error'])}")
    return decode.convert(result["devices"], list[int], "libtpu")


def default_cache_dir(environment: dict[str, str]) -> str:
    """Return `$XDG_CACHE_HOME/bigbird-ja/preflight`, under `~/.cache` by default."""
    root = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "bigbird-ja", "preflight")


def _compile(step: LoweredStep, target: Target, timeout: float, code: bool) -> dict[str, Any]:
    """Return the child's result: the program, or the error that says that it does not fit."""
    who = f"the compiler for {target.name}"
    result = _run(Job([target.place], step, code), who, timeout)
    error = result.get("error", "")
    if "Invalid TPU external name" in error:
        raise BadInput(f"the installed libtpu ({versions()['libtpu']}) knows no {target.name}")
    if error and not is_shortage(error):
        raise CompilerFailed(f"{who} refused: {_first_line(error)}")
    return result


def _run(job: Job, who: str, timeout: float) -> dict[str, Any]:
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
                _, stderr = child.communicate(timeout=timeout)
            except subprocess.TimeoutExpired as error:
                message = f"{who} did not finish within {timeout:.0f} seconds"
                raise CompilerFailed(message) from error
        try:
            return decode.read_json(os.path.join(directory, "result.json"), dict[str, Any])
        except (OSError, BadInput) as error:  # the child ended before it could write its result
            lines = stderr.decode(errors="replace").splitlines()
            advice = "compile for one --chip or --topology at a time, or on a larger machine"
            raise children.error_from_exit(child.returncode, lines, who, advice) from error


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300]


def _load(path: str) -> dict[str, Any] | None:
    try:
        with gzip.open(path, "rb") as stream:
            return decode.decode_json(stream.read(storage.MAX_BYTES), dict[str, Any], path)
    except (OSError, EOFError, zlib.error, BadInput):
        return None  # absent or damaged: compile again


def _store(path: str, result: dict[str, Any]) -> None:
    """Keep a result; a cache that cannot be written only costs time."""
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with gzip.open(f"{path}.{os.getpid()}", "wb", compresslevel=3) as stream:
            stream.write(msgspec.json.encode(result))
        os.replace(f"{path}.{os.getpid()}", path)


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
