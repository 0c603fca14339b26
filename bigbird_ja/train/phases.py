"""The engine of a run, or the two of one whose sequences are short at first."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import first_phase
from bigbird_ja.train import inputs
from bigbird_ja.train.engines import Engine, PhasedEngine, choice
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

    config, deps = job.config, job.deps

    def state() -> Mapping[str, Any]:
        return first_state(config, resumption.checkpoint, warm_start)

    def start(
        first_step: int,
        state: Callable[[], Mapping[str, Any]],
        phase: Config | None = None,
        last_step: int | None = None,
        folder: str = "",
    ) -> Engine:
        """An engine for the steps from `first_step` on."""

        def batches(host: int, count: int) -> Any:
            deps.mark("input")
            return inputs.batches(
                config,
                job.manifest,
                job.data_dir,
                start_step=resumption.next_batch + first_step - resumption.step,
                first_step=first_step,
                num_hosts=count,
                host_index=host,
                in_first_phase=phase is not None,
            )

        return choice.start(
            job.engine,
            config,
            state,
            batches,
            os.path.join(scratch, folder) if folder else scratch,
            storage.join(job.model_dir, COMPILED),
            deps.log,
            phase,
            last_step,
        )

    step, change = resumption.step, config.training.first_seq_length_steps
    short = first_phase(config)
    if short is None or change is None or step >= change:
        if step == change:
            on_lengthened()
        return start(step, state)
    batch, whole = config.training.global_batch_size, config.make_data.seq_length
    deps.log(
        f"up to step {change:,} a step is on {short.training.global_batch_size:,} sequences of"
        f" {short.make_data.seq_length:,} tokens, then on {batch:,} of {whole:,}:"
        f" {batch * whole:,} positions each"
    )
    return PhasedEngine(
        start(step, state, short, min(change, config.training.num_train_steps)),
        lambda state: start(change, state, folder="whole"),
        change,
        lambda state: lengthened(config, state),
        on_lengthened,
    )
