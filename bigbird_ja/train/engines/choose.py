"""Choose the engine that trains here, and say why: `--engine auto|estimator|pjrt`."""

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.accelerators import CHIPS
from bigbird_ja.process.console import shortened
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.engines import devices
from bigbird_ja.train.engines.devices import TPU_FILES, Devices

# The kinds of TPU that TensorFlow 2.15 is proven on.
_ESTIMATOR_TPUS = ("v2", "v3")
_EXACTLY = "and continues with the same weights, bit for bit"


@dataclass(frozen=True)
class Choice:
    """An engine, and what it will run on."""

    name: str  # estimator | pjrt
    why: str
    use_tpu: bool
    replicas: int  # of the step: the global batch divides over them
    device: str  # for people and events
    peak_flops: float | None = None  # bfloat16 FLOP/s of one replica, where known
    devices: Devices | None = None  # pjrt only
    processes: int = 1  # that train together

    def __str__(self) -> str:
        together = f" in {self.processes} processes" if self.processes > 1 else ""
        return f"engine: {self.name} on {self.device}{together} ({self.why})"


@dataclass(frozen=True)
class Before:
    """The engine and device of a run so far, from its events."""

    engine: str
    device: str


def choose(
    wanted: str, use_tpu: bool, config: Config, before: Before | None = None, processes: int = 1
) -> Choice:
    """Choose the engine for this machine, or for all machines of a pod; reads only.

    Args:
        wanted: auto, estimator or pjrt.
        use_tpu: as the flag.
        config: of the run.
        before: of the run that is continued; None for a new one.
        processes: that train together.

    Raises:
        BadInput: the engine's packages are missing, or what it should run on is.
    """
    # The machine's name for its TPU ("v3-8", "v5litepod-8"), if it has one.
    accelerator = os.environ.get("TPU_ACCELERATOR_TYPE") or os.environ.get("ACCELERATOR_TYPE")
    if wanted != "auto":
        name, why = wanted, f"--engine {wanted}"
    elif processes > 1:
        name, why = "pjrt", "several processes"
    else:
        name, why = _automatic(use_tpu, config, accelerator, before)
    if name == "estimator":
        return _estimator(why, use_tpu, config, accelerator)
    there = devices.find(use_tpu)
    about = there.description, there.peak_flops
    return Choice("pjrt", why, use_tpu, len(there.devices), *about, there, processes)


def has_estimator() -> bool:
    """Tell whether TensorFlow is 2.15, the last with TPUEstimator, and the estimator installed."""
    if importlib.util.find_spec("tensorflow_estimator") is None:
        return False
    for package in ("tensorflow", "tensorflow-cpu"):
        try:
            return importlib.metadata.version(package).startswith("2.15.")
        except importlib.metadata.PackageNotFoundError:
            continue
    import tensorflow as tf  # under another name

    return str(tf.__version__).startswith("2.15.")


def _automatic(
    use_tpu: bool, config: Config, accelerator: str | None, before: Before | None
) -> tuple[str, str]:
    """Choose the engine that suits this machine, and say why."""
    if not has_estimator():
        return "pjrt", "auto: TPUEstimator needs TensorFlow 2.15, which is not installed"
    if use_tpu and config.tpu.name != "local":
        return "estimator", "auto: only TensorFlow can reach a TPU by its name"
    wanted = _only_of_pjrt(config)
    if wanted:
        return "pjrt", f"auto: {wanted} needs it"
    if not use_tpu and not devices.is_installed():
        return "estimator", "auto: jax is not installed"
    if before is not None and _can_resume(before, use_tpu, accelerator):
        return before.engine, f"auto: this run was begun with it, {_EXACTLY}"
    if not use_tpu:
        return "pjrt", "auto: no TPU v2 or v3, which TPUEstimator is for"
    chip = _chip(accelerator or "")
    if chip and chip not in _ESTIMATOR_TPUS:
        return "pjrt", f"auto: TPUEstimator is not proven on a TPU {chip}"
    if not tensorflow_has_tpu():
        return "pjrt", "auto: this TensorFlow is built without TPU support"
    return "estimator", f"auto: TensorFlow 2.15 and a TPU {chip or 'of the first kinds'}"


def _can_resume(before: Before, use_tpu: bool, accelerator: str | None) -> bool:
    """Tell whether the run's engine works here, on the kind of device that it was trained on."""
    here = _chip(accelerator or "") if use_tpu else "GPU" if devices.has_gpu() else "CPU"
    if not here or here != _kind(before.device):
        return False
    if before.engine == "estimator":
        return not use_tpu or tensorflow_has_tpu()
    return before.engine == "pjrt" and devices.is_installed()


def _kind(device: str) -> str:
    """Name the chip of a device as events describe it, "CPU" or "GPU"; "" for an unknown TPU."""
    name = device.partition("TPU")[2].strip(" ,")
    if "TPU" in device:
        return _chip(name.replace("v5 lite", "v5e").replace("v6 lite", "v6e"))
    # TPUEstimator's runs say "CPU or GPU", where jax found nothing better.
    return "CPU" if "cpu" in device.lower() else "GPU"


def _chip(accelerator: str) -> str:
    """Name the chip, such as "v5e" of "v5litepod-8"; "" where it is not known."""
    match = re.match(r"v\d+[a-z]*", accelerator)
    return {"v5litepod": "v5e", "v5lite": "v5e"}.get(match[0], match[0]) if match else ""


def _only_of_pjrt(config: Config) -> str | None:
    """Return the setting, with its value, that only the engine pjrt has."""
    if config.model.attention_implementation == "kernel":
        return "model.attention_implementation=kernel"
    return None


def _estimator(why: str, use_tpu: bool, config: Config, accelerator: str | None) -> Choice:
    if not has_estimator():
        raise BadInput(
            "--engine estimator needs TensorFlow 2.15, which is not installed: pip install"
            " 'bigbird-ja[estimator]', or use --engine pjrt"
        )
    wanted = _only_of_pjrt(config)
    if wanted:
        raise BadInput(f"{wanted} needs --engine pjrt: TPUEstimator does not have it")
    if not use_tpu:
        return Choice("estimator", why, False, 1, "CPU or GPU")
    cores = config.tpu.num_cores  # as configured, so that a wrong batch is known on any machine
    accumulation = config.training.gradient_accumulation_steps
    check_divides(config.training.global_batch_size, cores, accumulation)
    check_estimator_tpu(config)
    device = f"TPU {accelerator or ''}".strip() + f", {cores} cores"
    chip = CHIPS.get(_chip(accelerator or ""))
    return Choice("estimator", why, True, cores, device, chip.peak_flops if chip else None)


def check_divides(global_batch: int, cores: int, micro_batches: int) -> int:
    """Return the sequences per core and micro-batch.

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


def check_estimator_tpu(config: Config, files: Sequence[str] = TPU_FILES) -> None:
    """Refuse `--use_tpu` under TPUEstimator where TensorFlow has no TPU.

    Raises:
        BadInput: no chip on this machine, a TensorFlow without TPU support, or a TPU of another
            name that does not answer.
    """
    advice = "run on a TPU VM with --tpu_name local, or leave --use_tpu out"
    if config.tpu.name != "local":
        resolve_tpu(config)
        return
    if not devices.is_there(files):
        raise BadInput(f"--use_tpu: this machine has no TPU: {advice}")
    if not tensorflow_has_tpu():
        raise BadInput(
            "--use_tpu: this TensorFlow is built without TPU support: use the TPU VM's own"
            f" (a tpu-vm-tf-2.15 runtime image): {advice}"
        )


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
