"""The engine of a run: checks before anything is written, and construction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bigbird_ja.process.extras import require
from bigbird_ja.settings.values import train_predictions
from bigbird_ja.train.engines.choose import check_divides
from bigbird_ja.train.engines.compile_cache import CompileCache
from bigbird_ja.train.engines.first_state import first_state
from bigbird_ja.train.engines.protocol import Engine
from bigbird_ja.train.job import Job, Resumption
from bigbird_ja.train.run_dir import RunDir


def check(job: Job) -> None:
    """Check that the run can be trained on this machine; write nothing.

    Args:
        job: run to train.

    Raises:
        BadInput: It cannot.
    """
    config, engine = job.config, job.engine
    check_divides(
        config.training.global_batch_size,
        engine.replicas,
        config.training.gradient_accumulation_steps,
    )
    if job.wandb:
        require("wandb")
    # Raises for a mask unit or a rate that static data does not have.
    job.manifest.rule(config.data.mask_unit, train_predictions(config, job.manifest))


def make_engine(
    job: Job, run_dir: RunDir, resumption: Resumption, initial: Mapping[str, np.ndarray]
) -> Engine:
    """Construct the engine; nothing is started.

    Args:
        job: run to train.
        run_dir: MODEL_DIR, locked or joined.
        resumption: the point at which training continues.
        initial: parameters that replace the random ones of a new run, float32 by name.
    """
    config, choice = job.config, job.engine

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
        cache = CompileCache(run_dir.manifest, run_dir.scratch, platform, job.deps.log)
        return PjrtEngine(config, job.manifest, state, read, choice.devices, cache)
    from bigbird_ja.train.engines.estimator import EstimatorEngine

    return EstimatorEngine(
        config, job.manifest, state, read, choice.replicas, run_dir.scratch, choice.use_tpu
    )
