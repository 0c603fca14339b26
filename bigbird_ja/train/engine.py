"""The engine of a run: checks before anything is written, and construction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigbird_ja.process.extras import require
from bigbird_ja.settings.values import train_predictions
from bigbird_ja.train.engines.choose import check_divides
from bigbird_ja.train.engines.compile_cache import CompiledPrograms
from bigbird_ja.train.engines.first_state import first_state
from bigbird_ja.train.engines.protocol import Engine
from bigbird_ja.train.job import Job, Resumption
from bigbird_ja.train.warm_start import FirstValues


def check(job: Job) -> None:
    """Refuse what cannot be trained, here or at all; reads only.

    Raises:
        BadInput: what, where, and what to do.
    """
    config, engine = job.config, job.engine
    check_divides(
        config.training.global_batch_size,
        engine.replicas,
        config.training.gradient_accumulation_steps,
    )
    if job.wandb:
        require("wandb")
    # Refuses a mask unit or a rate that static data does not have.
    job.manifest.rule(config.data.mask_unit, train_predictions(config, job.manifest))


def make_engine(
    job: Job, resumption: Resumption, warm_start: FirstValues | None, scratch: str
) -> Engine:
    """Make the engine, not yet begun.

    Args:
        job: the run.
        resumption: where training continues.
        warm_start: what replaces the random parameters of a new run, or None.
        scratch: local directory for an engine's own files.
    """
    config, choice = job.config, job.engine
    initial = warm_start.values if warm_start else {}

    def state() -> Mapping[str, Any]:
        return first_state(config, job.manifest, resumption.checkpoint, initial)

    def read(host: int, count: int) -> Any:
        from bigbird_ja.data import pipeline

        job.deps.mark("input")
        return pipeline.batches(
            config,
            job.manifest,
            job.data_dir,
            start_step=resumption.next_batch,
            first_step=resumption.step,
            num_steps=config.training.num_train_steps - resumption.step,
            num_hosts=count,
            host_index=host,
        )

    if choice.devices is not None:
        from bigbird_ja.train.engines.pjrt import PjrtEngine

        platform = choice.devices.platform
        programs = CompiledPrograms(job.model_dir, scratch, platform, job.deps.log)
        return PjrtEngine(config, job.manifest, state, read, choice.devices, programs)
    from bigbird_ja.train.engines.estimator import EstimatorEngine

    return EstimatorEngine(
        config, job.manifest, state, read, choice.replicas, scratch, choice.use_tpu
    )
