"""Whether there is a TPU that TensorFlow can train on, asked before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.engines.devices import TPU_FILES, is_there


def check(config: Config, files: Sequence[str] = TPU_FILES) -> None:
    """Refuses `--use_tpu` where there is no TPU.

    Raises:
        BadInput: no chip on this machine, a TensorFlow without TPU support, or a TPU of another
            name that does not answer.
    """
    advice = "run on a TPU VM with --tpu_name local, or leave --use_tpu out"
    if config.tpu.name != "local":
        resolve(config)
        return
    if not is_there(files):
        raise BadInput(f"--use_tpu: this machine has no TPU: {advice}")
    if not is_supported():
        raise BadInput(
            "--use_tpu: this TensorFlow is built without TPU support: use the TPU VM's own"
            f" (a tpu-vm-tf-2.15 runtime image): {advice}"
        )


def is_supported() -> bool:
    """Whether TensorFlow is built with support for the TPU of this machine."""
    from tensorflow.python.framework import kernels

    return bool(kernels.get_registered_kernels_for_op("ConfigureDistributedTPU").kernel)


def resolve(config: Config) -> Any:
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
