"""The devices that a run trains on, or one line that says why there are none."""

from __future__ import annotations

import glob
import importlib.util
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.accelerators.hardware import CHIPS, MEGACORE
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import Config

# Where a TPU VM shows its chips: v2 to v4, and v5 and later.
TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
GPU_FILES = ("/dev/nvidia[0-9]*",)
_GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
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
        chip = self.chip
        if chip is None:
            return None
        return MEGACORE.get(chip, CHIPS[chip]).peak_flops

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
        raise BadInput(f"--engine=pjrt needs jax, which is not installed: {_INSTALL[platform]}")
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
    _check_equal_shares(ordered)
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


def _check_equal_shares(devices: Sequence[Any]) -> None:
    counts = Counter(device.process_index for device in devices)
    if len(set(counts.values())) > 1:
        words = ", ".join(f"process {index}: {count}" for index, count in sorted(counts.items()))
        raise BadInput(f"the processes of a pod need equally many devices each ({words})")


def _why_not(platform: str, text: str) -> str:
    """One line from what the runtime says."""
    name = {"tpu": "the TPU", "cpu": "the CPU"}.get(platform, "the GPU")
    words = " ".join(text.split())
    if any(said in words for said in ("already in use", "lockfile", "Device or resource busy")):
        return (
            f"{name} is in use by another process ({words[:160]}): end that process, or wait for it"
        )
    if "driver" in words.lower():
        return f"{name}: its driver and this jax do not match ({words[:200]}): update one of them"
    return f"{name} cannot be used ({words[:240]})"


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
            f"--use_tpu: no TPU {tpu.name!r} here ({' '.join(str(error).split())[:200]}): run on a"
            " TPU VM with --tpu_name local, or leave --use_tpu out"
        ) from error
    return resolver
