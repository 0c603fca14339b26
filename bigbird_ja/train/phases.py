"""The engine of a run and its input; two engines for one whose sequences are short at first."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.data.masking import MaskRate
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import first_phase, mask_rates, train_predictions
from bigbird_ja.train.engines import Engine, PhasedEngine
from bigbird_ja.train.job import Job
from bigbird_ja.train.run_dir import COMPILED, Resumption


def make_engine(
    job: Job,
    resumption: Resumption,
    warm_start: Mapping[str, Any] | None,
    scratch: str,
    on_lengthened: Callable[[], None],
) -> Engine:
    """The engine, not yet begun.

    Args:
        job: the run.
        resumption: where training continues.
        warm_start: parameters that replace the random ones of a new run, or None.
        scratch: local directory for an engine's own files.
        on_lengthened: called when sequences have their full length from here on.
    """
    from bigbird_ja.train.warm_start import first_state, lengthened

    config = job.config
    whole, short = config.make_data.seq_length, first_phase(config)
    step, change = resumption.step, config.training.first_seq_length_steps

    def state() -> Mapping[str, Any]:
        return first_state(config, resumption.checkpoint, warm_start)

    if short is None or change is None or step >= change:
        if step == change:
            on_lengthened()
        return _engine_from(job, resumption, step, state, scratch)
    job.deps.log(
        f"up to step {change:,} a step is on {short.training.global_batch_size:,} sequences of"
        f" {short.make_data.seq_length:,} tokens, then on {config.training.global_batch_size:,} of"
        f" {whole:,}: {config.training.global_batch_size * whole:,} positions each"
    )
    return PhasedEngine(
        _engine_from(job, resumption, step, state, scratch, short),
        lambda later: _engine_from(job, resumption, change, later, os.path.join(scratch, "whole")),
        change,
        lambda state: lengthened(config, state),
        on_lengthened,
    )


def _engine_from(
    job: Job,
    resumption: Resumption,
    first_step: int,
    state: Callable[[], Mapping[str, Any]],
    scratch: str,
    short: Config | None = None,
) -> Engine:
    """The engine for the steps from `first_step` on: to the end, or on short sequences until the
    length changes."""
    config, choice = job.config, job.engine

    def read(host: int, count: int) -> Any:
        job.deps.mark("input")
        return batches(
            config,
            job.manifest,
            job.data_dir,
            start_step=resumption.next_batch + first_step - resumption.step,
            first_step=first_step,
            num_hosts=count,
            host_index=host,
            phase=short,
        )

    if choice.devices is not None:
        from bigbird_ja.train.engines.pjrt import PjrtEngine
        from bigbird_ja.train.engines.xla_call import CompiledPrograms

        place = storage.join(job.model_dir, COMPILED)
        programs = CompiledPrograms(place, scratch, choice.devices.platform, job.deps.log)
        return PjrtEngine(config, state, read, choice.devices, programs, short)
    from bigbird_ja.train.engines.estimator import EstimatorEngine

    last_step = config.training.num_train_steps
    if short is not None:
        last_step = min(last_step, config.training.first_seq_length_steps or 0)
    return EstimatorEngine(
        config, state, read, choice.replicas, scratch, choice.use_tpu, short, last_step
    )


def batches(
    config: Config,
    manifest: Manifest,
    data_dir: str,
    *,
    start_step: int = 0,
    first_step: int | None = None,
    num_hosts: int = 1,
    host_index: int = 0,
    phase: Config | None = None,
) -> Any:
    """`data.pipeline.batches` as a run with this config reads them, masked at its rates.

    Args:
        config: completed by the manifest.
        manifest, data_dir: the data set.
        start_step: the number of the first batch.
        first_step: the global step of that batch; after a change of batch size the two differ.
        num_hosts, host_index: the part of each global batch to read.
        phase: the config of the first phase, where records are cut to its length.
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
        max_predictions=train_predictions(phase or config),
        seq_length=phase.make_data.seq_length if phase else None,
        num_hosts=num_hosts,
        host_index=host_index,
    )
