"""The devices that a run trains on and this machine's memory, or one line on why they do not do."""

from __future__ import annotations

import contextlib
import glob
import importlib.metadata
import importlib.util
import os
import re
import resource
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigbird_ja.accelerators.hardware import CHIPS, MEGACORE
from bigbird_ja.model.params import count_parameters, count_state
from bigbird_ja.process.console import human_bytes, shortened
from bigbird_ja.process.errors import BadInput, OutOfMemory
from bigbird_ja.settings.schema import Config

# Where a TPU VM shows its chips: v2 to v4, and v5 and later.
TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
GPU_FILES = ("/dev/nvidia[0-9]*",)
_GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_METADATA_SECONDS = 2.0
_PACKAGES = ("tensorflow", "tensorflow-cpu", "jax", "jaxlib", "libtpu", "numpy", "sentencepiece")
# JAX's `device_kind` -> our name of the chip.
_CHIPS = {
    "TPU v2": "v2", "TPU v3": "v3", "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5e": "v5e",
    "TPU v5": "v5p", "TPU v5p": "v5p", "TPU v6 lite": "v6e", "TPU v6e": "v6e", "TPU7x": "v7x",
}  # fmt: skip
_INSTALL = {
    "tpu": "pip install 'bigbird-ja[tpu]'",
    "cuda": "pip install 'bigbird-ja[gpu]'",
    "cpu": "pip install 'bigbird-ja[cpu]'",
}


@dataclass(frozen=True)
class Devices:
    """What one run trains on: all devices of one kind."""

    platform: str  # "cpu", "cuda" or "tpu": as `jax.export` names them
    devices: tuple[Any, ...]  # of all processes, in the order of the replicas

    def of_process(self) -> Devices:
        """Those of this process alone."""
        import jax

        here = jax.process_index()
        return Devices(self.platform, tuple(d for d in self.devices if d.process_index == here))

    @property
    def description(self) -> str:
        """For people and events."""
        kind = getattr(self.devices[0], "device_kind", self.platform)
        return f"{len(self.devices)} x {kind}"

    @property
    def chip(self) -> str | None:
        """Our name of a TPU's chip; None for what is no TPU, or one that is not known."""
        return _CHIPS.get(getattr(self.devices[0], "device_kind", ""))

    @property
    def peak_flops(self) -> float | None:
        """bfloat16 FLOP/s of one device, where it is known."""
        return MEGACORE.get(self.chip, CHIPS[self.chip]).peak_flops if self.chip else None

    @property
    def memory_bytes(self) -> int | None:
        """What a program may use on one device; None where that is not known, as on a CPU."""
        stats = None if self.platform == "cpu" else self.devices[0].memory_stats()
        return (stats or {}).get("bytes_limit")


def is_there(files: Sequence[str]) -> bool:
    """Whether this machine shows a device under one of these names."""
    return any(glob.glob(pattern) for pattern in files)


def is_installed() -> bool:
    """Whether JAX is."""
    return importlib.util.find_spec("jax") is not None


def prepare(use_tpu: bool, tpu_files: Sequence[str] = TPU_FILES) -> str:
    """The platform that JAX will train on ("cpu", "cuda" or "tpu"), and JAX told to use it: left to
    itself it asks every one that is installed, and libtpu takes eight minutes to find no TPU.

    Args:
        use_tpu: wants a TPU; else a GPU is taken where there is one, or the CPU.
        tpu_files: where a TPU shows.

    Raises:
        BadInput: a package is missing, or there is no TPU.
    """
    platform = "tpu" if use_tpu else "cuda" if has_gpu() else "cpu"
    if use_tpu and not is_there(tpu_files):
        raise BadInput(
            "--use_tpu: this machine has no TPU: run on a TPU VM, or leave --use_tpu out"
        )
    if use_tpu and importlib.util.find_spec("libtpu") is None:
        raise BadInput(f"--use_tpu needs libtpu, which is not installed: {_INSTALL['tpu']}")
    if not is_installed():
        raise BadInput(f"--engine pjrt needs jax, which is not installed: {_INSTALL[platform]}")
    # Before jax is imported, so that it also holds where something else has imported it by then.
    os.environ["JAX_PLATFORMS"] = "cpu" if platform == "cpu" else f"{platform},cpu"
    import jax

    jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
    return platform


def find(use_tpu: bool, tpu_files: Sequence[str] = TPU_FILES) -> Devices:
    """The devices of this machine, or of all machines of a pod that is joined.

    Args:
        use_tpu, tpu_files: as `prepare` takes them.

    Raises:
        BadInput: as `prepare`, or the devices cannot be used.
    """
    platform = prepare(use_tpu, tpu_files)
    import jax

    try:
        devices = jax.devices("gpu" if platform == "cuda" else platform)
    except RuntimeError as error:
        raise BadInput(_why_not(platform, str(error))) from error
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    counts = Counter(device.process_index for device in ordered)
    if len(set(counts.values())) > 1:
        shares = ", ".join(f"process {index}: {count}" for index, count in sorted(counts.items()))
        raise BadInput(f"the processes of a pod need equally many devices each ({shares})")
    return Devices(platform, tuple(ordered))


def check_divides(global_batch: int, cores: int, micro_batches: int) -> int:
    """Sequences per core and micro-batch.

    Raises:
        BadInput: the batch does not divide; the nearest ones that do are named.
    """
    unit = cores * micro_batches
    if global_batch % unit:
        below, above = global_batch // unit * unit, -(-global_batch // unit) * unit
        nearest = f"{below} or {above}" if below else f"{above}"
        raise BadInput(
            f"training.global_batch_size={global_batch} is not divisible by {cores} cores x"
            f" {micro_batches} micro-batches (training.gradient_accumulation_steps): use {nearest}"
        )
    return global_batch // unit


def has_gpu() -> bool:
    """A GPU that JAX has been given the means to use."""
    return is_there(GPU_FILES) and any(importlib.util.find_spec(name) for name in _GPU_PLUGINS)


def _why_not(platform: str, text: str) -> str:
    """One line from the runtime's error."""
    name = {"tpu": "the TPU", "cpu": "the CPU"}.get(platform, "the GPU")
    words = shortened(text, 240)
    if re.search("already in use|lockfile|Device or resource busy", words):
        end = "end that process, or wait for it"
        return f"{name} is in use by another process ({words}): {end}"
    if "driver" in words.lower():
        return f"{name}: its driver and this jax do not match ({words}): update one of them"
    return f"{name} cannot be used ({words})"


def check_estimator_tpu(config: Config, files: Sequence[str] = TPU_FILES) -> None:
    """Refuses `--use_tpu` under TPUEstimator where TensorFlow has no TPU.

    Raises:
        BadInput: no chip on this machine, a TensorFlow without TPU support, or a TPU of another
            name that does not answer.
    """
    advice = "run on a TPU VM with --tpu_name local, or leave --use_tpu out"
    if config.tpu.name != "local":
        resolve_tpu(config)
        return
    if not is_there(files):
        raise BadInput(f"--use_tpu: this machine has no TPU: {advice}")
    if not tensorflow_has_tpu():
        raise BadInput(
            "--use_tpu: this TensorFlow is built without TPU support: use the TPU VM's own"
            f" (a tpu-vm-tf-2.15 runtime image): {advice}"
        )


def tensorflow_has_tpu() -> bool:
    """Whether TensorFlow is built with support for the TPU of this machine."""
    from tensorflow.python.framework import kernels

    return bool(kernels.get_registered_kernels_for_op("ConfigureDistributedTPU").kernel)


def resolve_tpu(config: Config) -> Any:
    """TensorFlow's resolver of the configured TPU.

    Raises:
        BadInput: it cannot be reached.
    """
    import tensorflow as tf

    tpu = config.tpu
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu.name, zone=tpu.zone)
        resolver.master()
    except Exception as error:
        raise BadInput(
            f"--use_tpu: no TPU {tpu.name!r} here ({shortened(str(error), 200)}): run on a"
            " TPU VM with --tpu_name local, or leave --use_tpu out"
        ) from error
    return resolver


_CGROUP = Path("/sys/fs/cgroup")


def state_bytes(config: Config) -> int:
    """Bytes that the state alone takes in a step of TensorFlow's executor on a CPU, where nothing
    refuses a step that is too large: the machine swaps, or the kernel kills the process.

    The state is there four times (variables, results of the step, a snapshot that is written, first
    values), and beside it the gradients."""
    return 4 * (4 * count_state(config) + count_parameters(config))


def refuse_if_too_large(needed: int) -> None:
    """Refuses a step that needs so many bytes, where this process cannot get them.

    Raises:
        OutOfMemory: with the figures and what to lower.
    """
    available = available_bytes()
    if available is not None and needed > available:
        raise out_of_memory(needed, available, "this machine")


def out_of_memory(needed: int, available: int, where: str) -> OutOfMemory:
    """The error that a step does not fit, with what to lower."""
    return OutOfMemory(
        f"a step of this model needs about {human_bytes(needed)} of memory and {where} has"
        f" {human_bytes(available)} left: use a smaller training.global_batch_size or more"
        " training.gradient_accumulation_steps, training.gradient_checkpointing=true, or a smaller"
        " model"
    )


def available_bytes() -> int | None:
    """What this process can still get: of the machine, of its container, of its own limits."""
    return min(_memory_limits(), default=None)


def _memory_limits() -> Iterator[int]:
    with contextlib.suppress(OSError):
        text = Path("/proc/meminfo").read_text()
        if match := re.search(r"MemAvailable:\s+(\d+) kB", text):
            yield int(match[1]) * 1024
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            yield int((_CGROUP / limit).read_text()) - int((_CGROUP / used).read_text())
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            yield soft - pages * os.sysconf("SC_PAGESIZE")


def package_versions() -> dict[str, str]:
    """The installed packages that have a part in a run."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def tpu_metadata(attribute: str) -> str | None:
    """An attribute of this TPU VM; None where there is none, or no metadata server."""
    url = f"http://metadata.google.internal/computeMetadata/v1/instance/attributes/{attribute}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_METADATA_SECONDS) as reply:
            return str(reply.read().decode().strip()) or None
    except (OSError, ValueError):
        return None


def slice_place(
    environ: Mapping[str, str] = os.environ, metadata: Callable[[str], str | None] = tpu_metadata
) -> tuple[list[str], int] | None:
    """The hosts of the TPU slice that this machine belongs to, and which of them it is; None where
    neither GKE's variables nor the TPU VM's metadata tell.

    Raises:
        BadInput: one of several slices, or the machine has no number.
    """
    if int(environ.get("MEGASCALE_NUM_SLICES") or 1) > 1:
        raise BadInput("several TPU slices in one run are not supported: use one slice")
    hosts, number = environ.get("TPU_WORKER_HOSTNAMES"), environ.get("TPU_WORKER_ID")
    if hosts is None or number is None:
        endpoints = metadata("worker-network-endpoints")
        if not endpoints:
            return None
        hosts = ",".join(worker.split(":")[-1] for worker in endpoints.split(","))
        # The Cloud TPU API has the first name, Compute Engine's groups the second.
        number = metadata("agent-worker-number") or metadata("worker-id") or ""
    if not number.isdigit():
        raise BadInput(f"this TPU VM's number in its slice is {number!r}: give --process_id")
    return hosts.split(","), int(number)
