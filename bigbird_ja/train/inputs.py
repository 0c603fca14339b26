"""What a run takes in: its data and its machine, checked before it starts, and its batches."""

from __future__ import annotations

from typing import Any

from bigbird_ja import storage
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.data.masking import MaskRate
from bigbird_ja.data.verify import DataGuard
from bigbird_ja.model import pattern
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.values import first_phase, get_value, mask_rates, train_predictions
from bigbird_ja.train import memory
from bigbird_ja.train.engines import devices
from bigbird_ja.train.engines.devices import GPU_FILES, is_there
from bigbird_ja.train.job import Job


def check(job: Job) -> DataGuard:
    """Refuses what cannot be trained, here or at all; reads only.

    Returns:
        The versions of the data set's shards as they are now.

    Raises:
        BadInput: what, where, and what to do.
        OutOfMemory: a step does not fit into this machine.
    """
    config, engine = job.config, job.engine
    sequences = devices.check_divides(
        config.training.global_batch_size,
        engine.replicas,
        config.training.gradient_accumulation_steps,
    )
    short = first_phase(config)
    try:
        for phase in (config, short) if short else (config,):
            pattern.is_full(phase, phase.make_data.seq_length)
    except ValueError as error:
        raise BadInput(str(error)) from error
    for setting in without_effect(config, engine.name):
        job.deps.log(f"{setting} has no effect under the engine {engine.name}")
    if job.wandb:
        from bigbird_ja.train.curves import load_wandb

        load_wandb()
    # Refuses a mask unit or a rate that static data does not have.
    job.manifest.rule(config.data.mask_unit, train_predictions(config))
    guard = DataGuard(job.manifest, job.data_dir)
    _check_shards_open(job.manifest, job.data_dir)
    is_on_host = not engine.use_tpu and not is_there(GPU_FILES)
    if is_on_host and engine.name == "estimator":  # the other engine asks its compiler
        memory.refuse_if_too_large(memory.estimate(config, sequences))
        if short is not None:
            more = short.training.global_batch_size // config.training.global_batch_size
            memory.refuse_if_too_large(memory.estimate(short, sequences * more))
    return guard


def without_effect(config: Config, engine: str) -> list[str]:
    """`key=value` of the settings that were changed and that only another engine reads."""
    given = [(key, get_value(config, key), option) for key, option in OPTIONS.items()]
    return [
        f"{key}={value}"
        for key, value, option in given
        if option.engine and option.engine != engine and value != option.default
    ]


def _check_shards_open(manifest: Manifest, data_dir: str) -> None:
    """Opens each shard on disk; on a bucket, where each costs a request, the first alone."""
    shards = manifest.train_shards + manifest.eval_shards
    for shard in shards[:1] if storage.is_remote(data_dir) else shards:
        path = storage.join(data_dir, shard.name)
        try:
            with storage.open_read(path) as file:
                file.read(1)
        except OSError as error:
            why = error.strerror or str(error)
            raise BadInput(f"{path}: cannot be read: {why}: check its permissions") from error


def batches(
    config: Config,
    manifest: Manifest,
    data_dir: str,
    *,
    start_step: int = 0,
    first_step: int | None = None,
    num_hosts: int = 1,
    host_index: int = 0,
    in_first_phase: bool = False,
) -> Any:
    """`data.pipeline.batches` as a run with this config reads them, masked at its rates.

    Args:
        config: completed by the manifest.
        manifest, data_dir: the data set.
        start_step: the number of the first batch.
        first_step: the global step of that batch; after a change of batch size the two differ.
        num_hosts, host_index: the part of each global batch to read.
        in_first_phase: cuts records to `training.first_seq_length`.
    """
    from bigbird_ja.data import pipeline

    phase = first_phase(config) if in_first_phase else None
    rates = mask_rates(config)
    return pipeline.batches(
        manifest,
        data_dir,
        seed=config.data.seed,
        global_batch_size=config.training.global_batch_size,
        start_step=start_step,
        first_step=first_step,
        shuffle_window=config.data.shuffle_window,
        mask_unit=config.data.mask_unit,
        mask_rate=MaskRate(*rates) if rates else None,
        max_predictions=train_predictions(phase or config),
        seq_length=phase.make_data.seq_length if phase else None,
        num_hosts=num_hosts,
        host_index=host_index,
    )
