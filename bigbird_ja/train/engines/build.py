"""Check of a run before anything is written, and construction of its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bigbird_ja.data.manifest import Manifest
from bigbird_ja.model_dir.folder import ModelDir, Resumption
from bigbird_ja.settings.checks import check_divides
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import count_train_predictions
from bigbird_ja.train.engines.choose import Choice
from bigbird_ja.train.engines.compile_cache import CompileCache
from bigbird_ja.train.engines.first_state import make_first_state
from bigbird_ja.train.engines.protocol import Engine


def check_run(config: Config, manifest: Manifest, choice: Choice) -> None:
    """Check that a run's batch size suits its engine, and that its masks suit the data set.

    Raises:
        BadInput: The batch size is not divisible by replicas times micro-batches, or the data set
            was masked in advance with another unit or rate.
    """
    training = config.training
    check_divides(training.global_batch_size, choice.replicas, training.gradient_accumulation_steps)
    # This raises if the data set is masked in advance with another unit or rate than the config's.
    manifest.make_rule(config.data.mask_unit, count_train_predictions(config, manifest))


def make_engine(
    config: Config,
    manifest: Manifest,
    data_dir: str,
    choice: Choice,
    model_dir: ModelDir,
    resumption: Resumption,
    initial: Mapping[str, np.ndarray],
    log: Callable[[str], None],
) -> Engine:
    """Construct the engine, without starting it.

    Args:
        config: config of the run.
        manifest: manifest of the data set.
        data_dir: data set, on disk or gs://.
        choice: engine and devices.
        model_dir: MODEL_DIR, locked by this process, or by process 0 of its pod.
        resumption: point at which training continues.
        initial: parameters that replace the random ones of a new run, float32 arrays by name.
        log: callback for messages to the user.
    """

    def state() -> Mapping[str, Any]:
        return make_first_state(config, manifest, resumption.checkpoint, initial)

    def read(host: int, count: int) -> Any:
        from bigbird_ja.data import pipeline

        return pipeline.read_batches(
            config,
            manifest,
            data_dir,
            start_step=resumption.next_batch,
            first_step=resumption.step,
            num_steps=config.training.num_train_steps - resumption.step,
            num_hosts=count,
            host_index=host,
        )

    if choice.devices is not None:
        from bigbird_ja.train.engines.pjrt import PjrtEngine

        platform = choice.devices.platform
        cache = CompileCache(model_dir.manifest, model_dir.scratch, platform, log)
        return PjrtEngine(config, manifest, state, read, choice.devices, cache)
    from bigbird_ja.train.engines.estimator import EstimatorEngine

    scratch, use_tpu = model_dir.scratch, choice.use_tpu
    return EstimatorEngine(config, manifest, state, read, choice.replicas, scratch, use_tpu)
