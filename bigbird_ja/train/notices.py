"""Notice of a run's duration on a CPU, before the run starts."""

import os

from bigbird_ja.model.flops import count_model_flops
from bigbird_ja.process.console import format_time
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.engines import devices
from bigbird_ja.train.engines.choose import Choice

# FLOP/s of one CPU core in float32, an optimistic assumption.
_CORE_FLOPS = 50e9
# Minimum duration on a CPU, in days, for a warning.
_LONG_DAYS = 30


def make_cpu_warning(config: Config, data: Data, engine: Choice) -> str | None:
    """Return a warning if the run would take more than `_LONG_DAYS` days on this CPU, else None."""
    is_gpu = engine.devices.platform != "cpu" if engine.devices else devices.has_gpu()
    if engine.use_tpu or is_gpu:
        return None
    cores = (os.cpu_count() or 1) * engine.processes
    step = count_model_flops(config, data, config.training.global_batch_size)
    seconds = config.training.num_train_steps * step / (cores * _CORE_FLOPS)
    if seconds < _LONG_DAYS * 86_400:
        return None
    return (
        f"{config.training.num_train_steps:,} steps of this model take about {format_time(seconds)}"
        f" on this CPU (assumed: {cores} cores of {_CORE_FLOPS / 1e9:g} GFLOP/s). `bigbird-ja plan`"
        " shows faster machines"
    )
