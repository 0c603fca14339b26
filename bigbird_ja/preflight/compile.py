"""Runs the TPU compiler on a step, in a child process with a time limit, and keeps what came out.

A result is kept under the SHA-256 of everything that it depends on: the step's functions, what it
is compiled for, the versions of libtpu and jaxlib, and this project's way of calling them. Anything
else is compiled anew, so a kept result cannot be that of another program.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bigbird_ja import storage
from bigbird_ja.preflight import machine_code, memory
from bigbird_ja.preflight.compile_child import ENVIRONMENT, Job, Place, listings
from bigbird_ja.preflight.targets import Target
from bigbird_ja.process import children
from bigbird_ja.process.errors import BadInput, CommandError
from bigbird_ja.storage import decode
from bigbird_ja.storage.scratch import scratch_directory
from bigbird_ja.train.lowered import LoweredStep

_PACKAGES = ("jax", "jaxlib", "libtpu")
_INSTALL = "pip install 'bigbird-ja[preflight]'"
_CACHE_FORMAT = "2"
_CODE_FORMAT = "2"  # of what is read of the machine code, and of how it is counted
CHILD: tuple[str, ...] = (sys.executable, "-m", "bigbird_ja.preflight.compile_child")
_LISTING_TIMEOUT = 300.0  # seconds
DEFAULT_TIMEOUT = 1800.0  # seconds; a 12-layer step takes one to four minutes on one CPU core


@dataclass(frozen=True)
class Compiled:
    """What the compiler answered for one target. Sizes in bytes."""

    target: Target
    hlo: str  # optimised, "" where it did not fit
    stats: dict[str, Any]  # see `compile_child.compile_step`; {} where it did not fit
    shortage: memory.Shortage | None  # None: it fits
    code: dict[str, machine_code.Code] | None = None  # by the ops' names, where asked for and there


class CompilerFailed(CommandError):
    """The compiler ended without an answer; the message says how, in one line."""


def versions() -> dict[str, str]:
    """The versions of what compiles.

    Raises:
        BadInput: the extra is not installed; names the command that installs it.
    """
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise BadInput(
                f"preflight needs {package}, which is not installed: {_INSTALL}"
            ) from error
    return found


def compile_for(
    step: LoweredStep,
    target: Target,
    cache_dir: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    code: bool = False,
) -> Compiled:
    """Compiles a step for a target.

    Args:
        step: for as many replicas as the target has devices.
        cache_dir: where results are kept; None keeps nothing.
        timeout: seconds.
        code: reads the machine code too, where this libtpu lists it for the chip.

    Raises:
        BadInput: the extra is not installed, or this libtpu does not know the chip.
        CompilerFailed: a crash, a time-out, or an error other than too little memory.
    """
    installed = versions()
    code = code and machine_code.is_there(target.chip.name, installed["libtpu"])
    key = cache_key(step, target, installed, code)
    kept = _load(cache_dir, key) if cache_dir else None
    if kept is None:
        kept = _compile(step, target, timeout, code)
        if cache_dir:
            _store(cache_dir, key, *kept)
    result, text = kept
    if "error" in result:
        return Compiled(target, "", {}, memory.shortage(result["error"]))
    listed = result.pop("code", None)
    read = None if listed is None else decode.convert(listed, dict[str, machine_code.Code], "code")
    return Compiled(target, text, result, None, read)


def cache_key(
    step: LoweredStep, target: Target, installed: dict[str, str], code: bool = False
) -> str:
    """SHA-256 (hex) of all that a result depends on.

    Args:
        code: the result has what was read of the machine code.
    """
    about = {
        "format": _CACHE_FORMAT,
        **({"code": _CODE_FORMAT} if code else {}),
        "place": msgspec.to_builtins(target.place),
        "versions": installed,
        "environment": ENVIRONMENT,
    }
    words = json.dumps(about, sort_keys=True).encode()
    return hashlib.sha256(words + b"\0" + msgspec.msgpack.encode(step)).hexdigest()


def count_devices(places: Sequence[Place]) -> list[int]:
    """How many devices the installed compiler counts in each place; 0 where it does not know it.

    Raises:
        BadInput: the extra is not installed.
        CompilerFailed: a crash, or no answer.
    """
    versions()
    with scratch_directory() as directory:
        result = _run(Job(list(places)), directory, "libtpu", _LISTING_TIMEOUT)
    if "error" in result:
        raise CompilerFailed(f"libtpu does not say what it knows: {_first_line(result['error'])}")
    return decode.convert(result["devices"], list[int], "libtpu")


def default_cache_dir(environment: dict[str, str]) -> str:
    """`$XDG_CACHE_HOME/bigbird-ja/preflight`, under `~/.cache` by default."""
    root = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "bigbird-ja", "preflight")


def _compile(
    step: LoweredStep, target: Target, timeout: float, code: bool
) -> tuple[dict[str, Any], str]:
    with scratch_directory() as directory:
        who = f"the compiler for {target.name}"
        result = _run(Job([target.place], step, code), directory, who, timeout)
        error_text = result.get("error", "")
        if "Invalid TPU external name" in error_text:
            raise BadInput(f"the installed libtpu ({versions()['libtpu']}) knows no {target.name}")
        if error_text and not memory.is_shortage(error_text):
            raise CompilerFailed(f"{who} refused: {_first_line(error_text)}")
        text = ""
        if not error_text:
            with open(os.path.join(directory, "optimized.hlo"), encoding="utf-8") as stream:
                text = stream.read()
        return result, text


def _run(job: Job, directory: str, who: str, timeout: float) -> dict[str, Any]:
    """Runs the child on a job; what it wrote as its result."""
    path = os.path.join(directory, "job")
    with open(path, "wb") as stream:
        stream.write(msgspec.msgpack.encode(job))
    environment = {**os.environ, **ENVIRONMENT}
    if job.lists_code:
        os.mkdir(listings(directory))
        environment["LIBTPU_INIT_ARGS"] += f" {machine_code.flags(listings(directory))}"
    child = subprocess.Popen(
        [*CHILD, path, directory],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    with children.kill_on_exit(child):
        try:
            _, words = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise CompilerFailed(f"{who} did not finish within {timeout:.0f} seconds") from error
    result = _read_json(os.path.join(directory, "result.json"))
    if result is None:
        lines = words.decode(errors="replace").splitlines()
        to_do = "compile for one --chip or --topology at a time, or on a larger machine"
        raise children.error_from_exit(child.returncode, lines, who, to_do)
    return result


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300]


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        return decode.read_json(path, dict[str, Any])
    except (OSError, BadInput):
        return None  # the child ended before it could write it


@dataclass(frozen=True)
class _Cached:
    result: dict[str, Any]
    hlo: str


def _load(cache_dir: str, key: str) -> tuple[dict[str, Any], str] | None:
    try:
        path = os.path.join(cache_dir, f"{key}.json.gz")
        with gzip.open(path, "rb") as stream:
            value = decode.decode_json(stream.read(storage.MAX_BYTES), _Cached, path)
        return value.result, value.hlo
    except (OSError, EOFError, zlib.error, BadInput):
        return None  # absent or damaged: compile again


def _store(cache_dir: str, key: str, result: dict[str, Any], text: str) -> None:
    """Keeps a result; a cache that cannot be written only costs time."""
    path = os.path.join(cache_dir, f"{key}.json.gz")
    try:
        os.makedirs(cache_dir, exist_ok=True)
        with gzip.open(f"{path}.{os.getpid()}", "wt", encoding="utf-8", compresslevel=3) as stream:
            json.dump({"result": result, "hlo": text}, stream)
        os.replace(f"{path}.{os.getpid()}", path)
    except OSError:
        return
