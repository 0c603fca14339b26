"""Find the devices of this machine and their memory, or say in one line why they cannot be used."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigbird_ja import storage
from bigbird_ja.accelerators import CHIPS, MEGACORE
from bigbird_ja.process.console import human_bytes, shortened
from bigbird_ja.process.errors import BadInput, OutOfMemory, StorageError
from bigbird_ja.process.extras import require
from bigbird_ja.settings.schema import Config
from bigbird_ja.storage.ownership import Made, Owned
from bigbird_ja.train import COMPILED

# A TPU VM shows its chips here: v2 to v4, and v5 and later.
TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
GPU_FILES = ("/dev/nvidia[0-9]*",)
_GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
# JAX's `device_kind` -> our name of the chip.
CHIP_OF_KIND = {
    "TPU v2": "v2", "TPU v3": "v3", "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5e": "v5e",
    "TPU v5": "v5p", "TPU v5p": "v5p", "TPU v6 lite": "v6e", "TPU v6e": "v6e", "TPU7x": "v7x",
}  # fmt: skip
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Devices:
    """The devices of a run, all of one kind."""

    platform: str  # "cpu", "cuda" or "tpu": as `jax.export` names them
    devices: tuple[Any, ...]  # of all processes, in the order of the replicas

    def of_process(self) -> Devices:
        """Select those of this process."""
        import jax

        here = jax.process_index()
        return Devices(self.platform, tuple(d for d in self.devices if d.process_index == here))

    @property
    def description(self) -> str:
        """Describe them for people and events."""
        kind = getattr(self.devices[0], "device_kind", self.platform)
        return f"{len(self.devices)} x {kind}"

    @property
    def chip(self) -> str | None:
        """Name a TPU's chip; None for what is no TPU, or one that is not known."""
        return CHIP_OF_KIND.get(getattr(self.devices[0], "device_kind", ""))

    @property
    def peak_flops(self) -> float | None:
        """bfloat16 FLOP/s of one device, where it is known."""
        return MEGACORE.get(self.chip, CHIPS[self.chip]).peak_flops if self.chip else None

    @property
    def memory_bytes(self) -> int | None:
        """Memory in bytes of one device for a program; None where not known, as on a CPU."""
        stats = None if self.platform == "cpu" else self.devices[0].memory_stats()
        return (stats or {}).get("bytes_limit")


def is_there(files: Sequence[str]) -> bool:
    """Tell whether this machine shows a device under one of these names."""
    return any(glob.glob(pattern) for pattern in files)


def is_installed() -> bool:
    """Tell whether JAX is installed."""
    return importlib.util.find_spec("jax") is not None


def prepare(use_tpu: bool, tpu_files: Sequence[str] = TPU_FILES) -> str:
    """Choose the platform ("cpu", "cuda" or "tpu") and tell JAX to use that alone.

    Left to itself JAX tries every one that is installed, and libtpu takes eight minutes to find no
    TPU.

    Args:
        use_tpu: take a TPU; else a GPU if there is one, or the CPU.
        tpu_files: where a TPU shows.

    Raises:
        BadInput: a package is missing, or there is no TPU.
    """
    platform = "tpu" if use_tpu else "cuda" if has_gpu() else "cpu"
    if use_tpu and not is_there(tpu_files):
        raise BadInput(
            "--use_tpu: this machine has no TPU: run on a TPU VM, or leave --use_tpu out"
        )
    require("jax", *(["libtpu"] if use_tpu else []))
    # Before jax is imported, so that it also holds where something else has imported it by then.
    os.environ["JAX_PLATFORMS"] = "cpu" if platform == "cpu" else f"{platform},cpu"
    if platform == "cuda":  # else sums come in any order, and a resumed run differs by rounding
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DETERMINISTIC}".strip()
    import jax

    jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
    return platform


def find(use_tpu: bool, tpu_files: Sequence[str] = TPU_FILES) -> Devices:
    """Find the devices of this machine, or of all machines of a pod that is joined.

    Args:
        use_tpu: as `prepare` takes it.
        tpu_files: as `prepare` takes them.

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


def has_gpu() -> bool:
    """Tell whether there is a GPU, and a package with which JAX can use it."""
    return is_there(GPU_FILES) and any(importlib.util.find_spec(name) for name in _GPU_PLUGINS)


def _why_not(platform: str, text: str) -> str:
    """Compose one line from the runtime's error."""
    name = {"tpu": "the TPU", "cpu": "the CPU"}.get(platform, "the GPU")
    words = shortened(text, 240)
    if re.search("already in use|lockfile|Device or resource busy", words):
        end = "end that process, or wait for it"
        return f"{name} is in use by another process ({words}): {end}"
    if "driver" in words.lower():
        return f"{name}: its driver and this jax do not match ({words}): update one of them"
    return f"{name} cannot be used ({words})"


def tensorflow_has_tpu() -> bool:
    """Tell whether TensorFlow is built with support for the TPU of this machine."""
    from tensorflow.python.framework import kernels

    return bool(kernels.get_registered_kernels_for_op("ConfigureDistributedTPU").kernel)


def resolve_tpu(config: Config) -> Any:
    """Make TensorFlow's resolver of the configured TPU.

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


def refuse_if_too_large(needed: int) -> None:
    """Refuse a step that needs so many bytes, where this process cannot get them.

    Raises:
        OutOfMemory: with the figures and what to lower.
    """
    available = available_bytes()
    if available is not None and needed > available:
        raise out_of_memory(needed, available, "this machine")


def out_of_memory(needed: int, available: int, where: str) -> OutOfMemory:
    """Compose the error that a step does not fit, with what to lower."""
    return OutOfMemory(
        f"a step of this model needs about {human_bytes(needed)} of memory and {where} has"
        f" {human_bytes(available)} left: use a smaller training.global_batch_size or more"
        " training.gradient_accumulation_steps, training.gradient_checkpointing=true, or a smaller"
        " model"
    )


def available_bytes() -> int | None:
    """Find the bytes this process can still get, of the machine and of its container."""
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


class CompiledPrograms:
    """Keep compiled programs for the next start on the same kind of machine.

    JAX keeps and finds them itself, by all that they depend on, in a local folder. What MODEL_DIR
    has is copied there before the first compilation, and what is new is copied back after it. It is
    native code: what is not as MODEL_DIR's mark states it is left alone.

    Args:
        model_dir: on disk or on gs://, with its mark.
        scratch: local folder.
        platform: "cpu", "cuda" or "tpu".
        log: for what fails; a program that is not kept only costs time.
    """

    def __init__(
        self, model_dir: str, scratch: str, platform: str, log: Callable[[str], None]
    ) -> None:
        self._folder = COMPILED
        if platform == "cpu":  # its programs hold instructions that another CPU may not have
            self._folder = f"{COMPILED}/cpu-{_cpu_features()}"
        self._model_dir, self._log = model_dir, log
        self._local = os.path.join(scratch, COMPILED)
        self._platform = platform
        self._before: set[str] = set()

    def begin(self) -> None:
        """Copy what was kept, and set JAX's folder."""
        import jax

        if self._platform == "cpu" and jax.__version_info__ < (0, 7):
            return  # jaxlib 0.4.34 keeps CPU programs that write over donated memory, and crash
        with self._failures_logged():
            self._fetch()
        jax.config.update("jax_compilation_cache_dir", self._local)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        # Further caches of XLA's would make the folder's path a part of the key.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")

    def keep(self) -> None:
        """Copy what was compiled since to MODEL_DIR."""
        with self._failures_logged():
            owned = Owned.load(self._model_dir)
            if owned is None or not os.path.isdir(self._local):
                return
            storage.make_directory(storage.join(self._model_dir, self._folder))
            new = sorted(set(os.listdir(self._local)) - self._before)
            paths = {f"{self._folder}/{name}": os.path.join(self._local, name) for name in new}
            owned.note({name: Made.of_file(path) for name, path in paths.items()})
            for name, path in paths.items():
                storage.upload(path, storage.join(self._model_dir, name))
            self._before |= set(new)

    def _fetch(self) -> None:
        os.makedirs(self._local, exist_ok=True)
        owned = Owned.load(self._model_dir)
        for name in storage.list_files(storage.join(self._model_dir, self._folder)):
            path = os.path.join(self._local, storage.check_inside(name))
            storage.download(storage.join(self._model_dir, f"{self._folder}/{name}"), path)
            if owned is None or not owned.states(f"{self._folder}/{name}", Made.of_file(path)):
                os.unlink(path)
            else:
                self._before.add(name)

    @contextlib.contextmanager
    def _failures_logged(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError, BadInput) as error:
            self._log(f"compiled programs are not kept this time: {error}")


def _cpu_features() -> str:
    """Hash what this machine's CPU can do to eight hex digits."""
    text = ""
    with contextlib.suppress(OSError):
        match = re.search(r"^(flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.M)
        text = match[0] if match else ""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
