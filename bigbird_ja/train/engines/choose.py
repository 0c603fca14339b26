"""Choice of an engine, TensorFlow's TPUEstimator or JAX's runtime."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
from dataclasses import dataclass

from bigbird_ja.accelerators.chips import CHIPS
from bigbird_ja.errors import BadInput
from bigbird_ja.settings.checks import check_estimator
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.engines import devices
from bigbird_ja.train.engines.devices import Devices

ENGINES = ("auto", "estimator", "pjrt")
# TPUs on which TensorFlow 2.15 is known to work.
_ESTIMATOR_TPUS = ("v2", "v3")
_KERNEL = "model.attention_implementation=kernel"


@dataclass(frozen=True)
class Choice:
    """Engine, and the devices it will run on."""

    name: str  # estimator | pjrt
    why: str
    use_tpu: bool
    replicas: int  # Number of replicas of the step, which divide the global batch.
    device: str  # Description for messages and events.
    peak_flops: float | None = None  # bfloat16 FLOP/s of one replica, if known.
    devices: Devices | None = None  # Only for pjrt.
    processes: int = 1  # Number of processes that train together.

    def __str__(self) -> str:
        together = f" in {self.processes} processes" if self.processes > 1 else ""
        return f"engine: {self.name} on {self.device}{together} ({self.why})"


def choose(wanted: str, use_tpu: bool, config: Config, processes: int = 1) -> Choice:
    """Choose the engine for this machine, or for all machines of a pod.

    Args:
        wanted: auto, estimator or pjrt.
        use_tpu: whether to train on a TPU.
        config: config of the run.
        processes: number of processes that train together.

    Raises:
        BadInput: The engine's packages or its devices are missing.
    """
    # Type of the machine's TPU ("v3-8", "v5litepod-8").
    accelerator = os.environ.get("TPU_ACCELERATOR_TYPE") or os.environ.get("ACCELERATOR_TYPE")
    if wanted != "auto":
        name, why = wanted, f"`engine` {wanted}"
    elif processes > 1:
        name, why = "pjrt", "several processes"
    else:
        name, why = _choose_automatically(use_tpu, config, accelerator)
    if name == "estimator":
        return _choose_estimator(why, use_tpu, config, accelerator)
    present = devices.find(use_tpu)
    about = present.description, present.peak_flops
    return Choice("pjrt", why, use_tpu, len(present.devices), *about, present, processes)


def has_estimator() -> bool:
    """Return whether the installed TensorFlow is 2.15, the last with TPUEstimator."""
    if importlib.util.find_spec("tensorflow_estimator") is None:
        return False
    for package in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package).startswith("2.15.")
    return False


def _choose_automatically(
    use_tpu: bool, config: Config, accelerator: str | None
) -> tuple[str, str]:
    """Return the engine that suits this machine, and the reason."""
    if not has_estimator():
        return "pjrt", "auto: TPUEstimator needs TensorFlow 2.15, which is not installed"
    if use_tpu and config.tpu.name != "local":
        return "estimator", "auto: only TensorFlow can connect to a TPU by name"
    if config.model.attention_implementation == "kernel":
        return "pjrt", f"auto: {_KERNEL} needs it"
    if not use_tpu and not devices.is_installed():
        return "estimator", "auto: jax is not installed"
    if not use_tpu:
        return "pjrt", "auto: TPUEstimator is for a TPU v2 or v3, and `use_tpu` is not set"
    chip = _parse_chip(accelerator or "")
    if chip and chip not in _ESTIMATOR_TPUS:
        return "pjrt", f"auto: TPUEstimator was not tested on a TPU {chip}"
    if not devices.has_tensorflow_tpu():
        return "pjrt", "auto: this TensorFlow is built without TPU support"
    return "estimator", f"auto: TensorFlow 2.15 and a TPU {chip or 'of the first kinds'}"


def _parse_chip(accelerator: str) -> str:
    """Return the chip's name, such as "v5e" for "v5litepod-8", or "" if it is not known."""
    match = re.match(r"v\d+[a-z]*", accelerator)
    return {"v5litepod": "v5e", "v5lite": "v5e"}.get(match[0], match[0]) if match else ""


def _choose_estimator(why: str, use_tpu: bool, config: Config, accelerator: str | None) -> Choice:
    if not has_estimator():
        raise BadInput(
            "`engine` estimator needs TensorFlow 2.15, which is not installed: pip install"
            " 'bigbird-ja[estimator]', or use `engine` pjrt"
        )
    check_estimator(config)
    if not use_tpu:
        return Choice("estimator", why, False, 1, "CPU or GPU")
    check_estimator_tpu(config)
    cores = config.tpu.num_cores
    device = f"TPU {accelerator or ''}".strip() + f", {cores} cores"
    chip = CHIPS.get(_parse_chip(accelerator or ""))
    return Choice("estimator", why, True, cores, device, chip.peak_flops if chip else None)


def check_estimator_tpu(config: Config) -> None:
    """Check that TensorFlow can use the configured TPU, as TPUEstimator requires.

    Raises:
        BadInput: This machine has no TPU, TensorFlow has no TPU support, or the remote TPU that
            `tpu.name` names cannot be reached.
    """
    advice = "run on a TPU VM with `tpu_name` local, or leave `use_tpu` out"
    if config.tpu.name != "local":
        devices.resolve_tpu(config)
        return
    if not devices.is_there(devices.TPU_FILES):
        raise BadInput(f"`use_tpu` is set, but this machine has no TPU: {advice}")
    if not devices.has_tensorflow_tpu():
        raise BadInput(
            "`use_tpu` is set, but this TensorFlow is built without TPU support: use the TensorFlow"
            " of a TPU VM with the runtime image tpu-vm-tf-2.15, or leave `use_tpu` out"
        )
