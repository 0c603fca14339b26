"""The engine of a run and its input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bigbird_ja import storage
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.data.masking import MaskRate
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import mask_rates, train_predictions
from bigbird_ja.train.engines import Engine
from bigbird_ja.train.engines.choose import Choice
from bigbird_ja.train.job import Job
from bigbird_ja.train.run_dir import COMPILED, Resumption

if TYPE_CHECKING:
    import numpy as np

    from bigbird_ja.evaluation.forward import Model
    from bigbird_ja.train.warm_start import FirstValues


def make_engine(
    job: Job, resumption: Resumption, warm_start: FirstValues | None, scratch: str
) -> Engine:
    """The engine, not yet begun.

    Args:
        job: the run.
        resumption: where training continues.
        warm_start: what replaces the random parameters of a new run, or None.
        scratch: local directory for an engine's own files.
    """
    from bigbird_ja.train.warm_start import first_state

    config, choice = job.config, job.engine

    def state() -> Mapping[str, Any]:
        return first_state(config, resumption.checkpoint, warm_start)

    def read(host: int, count: int) -> Any:
        job.deps.mark("input")
        return batches(
            config,
            job.manifest,
            job.data_dir,
            start_step=resumption.next_batch,
            first_step=resumption.step,
            num_hosts=count,
            host_index=host,
        )

    if choice.devices is not None:
        from bigbird_ja.train.engines.kept_programs import CompiledPrograms
        from bigbird_ja.train.engines.pjrt import PjrtEngine

        place = storage.join(job.model_dir, COMPILED)
        programs = CompiledPrograms(place, scratch, choice.devices.platform, job.deps.log)
        return PjrtEngine(config, state, read, choice.devices, programs)
    from bigbird_ja.train.engines.estimator import EstimatorEngine

    return EstimatorEngine(config, state, read, choice.replicas, scratch, choice.use_tpu)


def trained_model(choice: Choice, config: Config, parameters: Mapping[str, np.ndarray]) -> Model:
    """A trained model where the chosen engine evaluates, when nothing is left to train.

    Args:
        choice: of `choose`.
        config: completed by a data set.
        parameters: by name, float32.
    """
    if choice.devices is not None:
        from bigbird_ja.train.engines.pjrt_forward import (
            PjrtForward,
            keep_tensorflow_off_the_devices,
        )

        keep_tensorflow_off_the_devices()
        forward = PjrtForward(config, choice.devices.of_process())
        forward.place(parameters)
        return forward
    from bigbird_ja.evaluation.forward import Forward

    return Forward(config, parameters)


def batches(
    config: Config,
    manifest: Manifest,
    data_dir: str,
    *,
    start_step: int = 0,
    first_step: int | None = None,
    num_hosts: int = 1,
    host_index: int = 0,
) -> Any:
    """`data.pipeline.batches` as a run with this config reads them, masked at its rates.

    Args:
        config: completed by the manifest.
        manifest, data_dir: the data set.
        start_step: the number of the first batch.
        first_step: the global step of that batch; after a change of batch size the two differ.
        num_hosts, host_index: the part of each global batch to read.
    """
    from bigbird_ja.data import pipeline

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
        max_predictions=train_predictions(config),
        num_hosts=num_hosts,
        host_index=host_index,
    )
