"""Devices of this machine, or the reason why they cannot be used."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.accelerators.chips import CHIPS, MEGACORE
from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import shorten
from bigbird_ja.process.extras import require
from bigbird_ja.settings.schema import Config

# Device files of a TPU VM. The first pattern is for TPU v2 to v4, and the second for v5 and later.
TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
GPU_FILES = ("/dev/nvidia[0-9]*",)
_GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
# Names of chips by JAX's `device_kind`.
CHIP_OF_KIND = {
    "TPU v2": "v2", "TPU v3": "v3", "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5e": "v5e",
    "TPU v5": "v5p", "TPU v5p": "v5p", "TPU v6 lite": "v6e", "TPU v6e": "v6e", "TPU7x": "v7x",
}  # fmt: skip
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


@dataclass(frozen=True)
class Devices:
    """Devices of a run, all of one kind."""

    platform: str  # "cpu", "cuda" or "tpu", the names of `jax.export`.
    devices: tuple[Any, ...]  # JAX's devices of all processes, in the order of the replicas.

    def select_own(self) -> Devices:
        """Return the devices of this process."""
        import jax

        here = jax.process_index()
        return Devices(self.platform, tuple(d for d in self.devices if d.process_index == here))

    @property
    def description(self) -> str:
        """Number and kind of the devices, for messages and events."""
        kind = getattr(self.devices[0], "device_kind", self.platform)
        return f"{len(self.devices)} x {kind}"

    @property
    def chip(self) -> str | None:
        """Name of a TPU's chip, or None for other devices and unknown TPUs."""
        return CHIP_OF_KIND.get(getattr(self.devices[0], "device_kind", ""))

    @property
    def peak_flops(self) -> float | None:
        """Peak bfloat16 FLOP/s of one device, or None if unknown."""
        return MEGACORE.get(self.chip, CHIPS[self.chip]).peak_flops if self.chip else None

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one device in bytes, or None if unknown, as on a CPU."""
        stats = None if self.platform == "cpu" else self.devices[0].memory_stats()
        return (stats or {}).get("bytes_limit")


def is_there(files: Sequence[str]) -> bool:
    """Return whether this machine has a device file that matches one of the patterns."""
    return any(glob.glob(pattern) for pattern in files)


def is_installed() -> bool:
    """Return whether JAX is installed."""
    return importlib.util.find_spec("jax") is not None


def prepare(use_tpu: bool) -> str:
    """Choose the platform ("cpu", "cuda" or "tpu"), and restrict JAX to it.

    By default JAX tries all installed platforms. On a machine without a TPU, libtpu would fail only
    after eight minutes.

    Args:
        use_tpu: whether to use a TPU. Otherwise a GPU is used if there is one, or the CPU.

    Raises:
        BadInput: A package is missing, or there is no TPU.
    """
    platform = "tpu" if use_tpu else "cuda" if has_gpu() else "cpu"
    if use_tpu and not is_there(TPU_FILES):
        raise BadInput(
            "`use_tpu` is set, but this machine has no TPU: run on a TPU VM, or leave `use_tpu` out"
        )
    require("jax", *(["libtpu"] if use_tpu else []))
    # The environment variable has an effect if jax is imported later, and in child processes.
    os.environ["JAX_PLATFORMS"] = "cpu" if platform == "cpu" else f"{platform},cpu"
    if platform == "cuda":  # Sums in a fixed order make a resume bit-identical.
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DETERMINISTIC}".strip()
    import jax

    jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
    return platform


def find(use_tpu: bool) -> Devices:
    """Return the devices of this machine, or of all machines if this process has joined a pod.

    Raises:
        BadInput: A package is missing, there is no TPU, or the devices cannot be used.
    """
    platform = prepare(use_tpu)
    import jax

    try:
        devices = jax.devices("gpu" if platform == "cuda" else platform)
    except RuntimeError as error:
        raise BadInput(_explain_failure(platform, str(error))) from error
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    counts = Counter(device.process_index for device in ordered)
    if len(set(counts.values())) > 1:
        shares = ", ".join(f"process {index}: {count}" for index, count in sorted(counts.items()))
        raise BadInput(
            f"all processes of a pod need the same number of devices ({shares}). Use equal machines"
        )
    return Devices(platform, tuple(ordered))


def has_gpu() -> bool:
    """Return whether there is a GPU, and a package with which JAX can use it."""
    return is_there(GPU_FILES) and any(importlib.util.find_spec(name) for name in _GPU_PLUGINS)


def _explain_failure(platform: str, text: str) -> str:
    """Return a one-line message for an error of JAX's runtime."""
    name = {"tpu": "the TPU", "cpu": "the CPU"}.get(platform, "the GPU")
    words = shorten(text, 240)
    if re.search("already in use|lockfile|Device or resource busy", words):
        end = "end that process, or wait for it"
        return f"{name} is in use by another process ({words}): {end}"
    if "driver" in words.lower():
        return f"{name} has a driver that does not match this jax ({words}): update one of them"
    return f"{name} cannot be used ({words})"


def has_tensorflow_tpu() -> bool:
    """Return whether TensorFlow is built with support for the TPU of this machine."""
    from tensorflow.python.framework import kernels

    return bool(kernels.get_registered_kernels_for_op("ConfigureDistributedTPU").kernel)


def resolve_tpu(config: Config) -> Any:
    """Return TensorFlow's cluster resolver for the configured TPU.

    Raises:
        BadInput: The TPU cannot be reached.
    """
    import tensorflow as tf

    tpu = config.tpu
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu.name, zone=tpu.zone)
        resolver.master()
    except Exception as error:
        raise BadInput(
            f"`use_tpu` finds no TPU {tpu.name!r} ({shorten(str(error), 200)}): run on a"
            " TPU VM with `tpu_name` local, or leave `use_tpu` out"
        ) from error
    return resolver
