"""Which machines there are: what they can do, which image they boot, which of them we refuse."""

from __future__ import annotations

import re

from bigbird_ja.accelerators import hardware
from bigbird_ja.accelerators.chips import CHIPS
from bigbird_ja.accelerators.hardware import USUAL, generation_of
from bigbird_ja.launch import compute
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.option import nearest

# TF 2.15 is the last with tf.estimator; `-se` is the stream-executor runtime, the one that v2 and
# v3 are documented with.
RUNTIME_VERSION = "tpu-vm-tf-2.15.0-se"
V5E_RUNTIME_VERSION = "v2-alpha-tpuv5-lite"  # of the Cloud TPU API; it brings no TensorFlow

_TYPE = re.compile(r"(v[0-9]+[a-z]*|tpu7x)-([0-9]+)")


def check_rentable(accelerator_type: str, force: bool = False, engine: str = "auto") -> list[str]:
    """Refuses what cannot work, before anything is created.

    Args:
        accelerator_type: as the Cloud TPU API names it, such as `v3-8`.
        force: the user insists (`--force`).
        engine: as `pretrain --engine`.

    Returns:
        Warnings to show.

    Raises:
        BadInput: not a TPU type, a size that there is not, a slice of several hosts for the
            engine of one, or a generation that the engine is known to fail on.
    """
    generation = _known_generation(accelerator_type)
    machine = hardware.find(accelerator_type)
    if compute.serves(accelerator_type):
        compute.machine_type(accelerator_type)
    warnings = []
    if engine_on(accelerator_type, engine) == "pjrt":
        warnings.append(
            f"{accelerator_type}: trained by JAX's runtime, which no run of ours has used on a TPU"
            " yet: watch its first hour"
        )
        if machine.hosts > 1:
            warnings.append(
                f"{accelerator_type}: a slice of {machine.hosts} hosts, which no run of ours has"
                " rented yet (docs/pods.md)"
            )
        return warnings
    if generation >= 5:
        reason = (
            f"{accelerator_type}: tf.estimator of TensorFlow 2.15 fails on TPU v5 and later"
            " (tensorflow/tensorflow#90807, open)"
        )
        warnings.append(_insisted_on(reason, "use --engine=auto", force))
    elif generation == 4:
        warnings.append(
            f"{accelerator_type}: TPUEstimator on v4 is unproven; v2-8 and v3-8 are known"
        )
    if machine.hosts > 1:
        reason = (
            f"{accelerator_type} has {machine.hosts} hosts, of which the estimator engine uses one"
        )
        warnings.append(_insisted_on(reason, "use --engine=pjrt, or an -8 type", force))
    return warnings


def _known_generation(accelerator_type: str) -> int:
    """The generation of a TPU type that is known here.

    Raises:
        BadInput: it is none.
    """
    if _TYPE.fullmatch(accelerator_type) is None:
        raise BadInput(
            f"--accelerator_type={accelerator_type!r}{nearest(accelerator_type, USUAL)}:"
            " write a TPU type such as v2-8, v3-8 or v4-8"
        )
    generation = generation_of(accelerator_type)
    if generation not in {generation_of(name) for name in CHIPS}:
        raise BadInput(
            f"--accelerator_type={accelerator_type}: no TPU v{generation} is known here: there are"
            f" {', '.join(CHIPS)}"
        )
    return generation


def _insisted_on(reason: str, instead: str, force: bool) -> str:
    """The warning where the user insists.

    Raises:
        BadInput: the user does not.
    """
    if not force:
        raise BadInput(f"{reason}: {instead}, or insist with --force")
    return f"{reason}; going on because of --force"


def runtime_version(accelerator_type: str) -> str:
    """What the Cloud TPU API boots a TPU of this type with."""
    return V5E_RUNTIME_VERSION if generation_of(accelerator_type) == 5 else RUNTIME_VERSION


def engine_on(accelerator_type: str, engine: str) -> str:
    """The engine that `pretrain --engine` takes on a TPU of this type, for a new run."""
    if engine == "auto":
        return "estimator" if generation_of(accelerator_type) in (2, 3) else "pjrt"
    return engine
