"""What can be refused before anything is written to MODEL_DIR: batch, data set, device."""

from __future__ import annotations

import glob

from bigbird_ja import storage
from bigbird_ja.config import Config
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.data.verify import DataGuard
from bigbird_ja.errors import BadInput
from bigbird_ja.model import pattern
from bigbird_ja.train import hosts
from bigbird_ja.train.request import Request

# Where a TPU VM shows its chips: v2 to v4, and v5 and later.
_TPU_DEVICES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")


def check(request: Request) -> DataGuard:
    """Refuses what cannot be trained, here or at all; reads only.

    Returns:
        The versions of the data set's shards as they are now.

    Raises:
        BadInput: what, where, and what to do.
    """
    config = request.config
    hosts.check_divides(
        config.training.global_batch_size,
        request.cores,
        config.training.gradient_accumulation_steps,
    )
    _check_length(config)
    if request.wandb:
        from bigbird_ja.train.wandb_log import load_library

        load_library()
    _check_mask_unit(config, request.manifest)
    guard = DataGuard(request.manifest, request.data_dir)
    _check_shards_open(request.manifest, request.data_dir)
    if request.use_tpu:
        check_tpu(config)
    return guard


def _check_length(config: Config) -> None:
    try:
        pattern.is_full(config, config.data.seq_length or 0)
    except ValueError as error:
        raise BadInput(str(error)) from error


def _check_mask_unit(config: Config, manifest: Manifest) -> None:
    from bigbird_ja.data.pipeline import check_mask_unit

    check_mask_unit(manifest, config.data.mask_unit)


def _check_shards_open(manifest: Manifest, data_dir: str) -> None:
    """Opens each shard on disk; on a bucket, where a look costs a request, the first alone."""
    shards = manifest.train_shards + manifest.eval_shards
    for shard in shards[:1] if storage.is_remote(data_dir) else shards:
        path = storage.join(data_dir, shard.name)
        try:
            with storage.open_read(path) as file:
                file.read(1)
        except OSError as error:
            why = error.strerror or str(error)
            raise BadInput(f"{path}: cannot be read: {why}: check its permissions") from error


def check_tpu(config: Config, device_globs: tuple[str, ...] = _TPU_DEVICES) -> None:
    """Refuses `--use_tpu` where there is no TPU.

    Raises:
        BadInput: no chip on this machine, a TensorFlow without TPU support, or a TPU of another
            name that does not answer.
    """
    advice = "run on a TPU VM with --tpu_name local, or leave --use_tpu out"
    if config.tpu.name != "local":
        resolve_tpu(config)
        return
    if not any(glob.glob(place) for place in device_globs):
        raise BadInput(f"--use_tpu: this machine has no TPU: {advice}")
    from tensorflow.python.framework import kernels

    if not kernels.get_registered_kernels_for_op("ConfigureDistributedTPU").kernel:
        raise BadInput(
            "--use_tpu: this TensorFlow is built without TPU support: use the TPU VM's own"
            f" (a tpu-vm-tf-2.15 runtime image): {advice}"
        )


def resolve_tpu(config: Config):  # type: ignore[no-untyped-def]
    """TensorFlow's resolver of the configured TPU.

    Raises:
        BadInput: it cannot be reached.
    """
    import tensorflow as tf

    tpu = config.tpu
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=tpu.name, zone=tpu.zone, project=tpu.project
        )
        resolver.master()
    except Exception as error:
        raise BadInput(
            f"--use_tpu: no TPU {tpu.name!r} here ({' '.join(str(error).split())[:200]}): run on a"
            " TPU VM with --tpu_name local, or leave --use_tpu out"
        ) from error
    return resolver
