"""What can be refused before anything is written to MODEL_DIR: batch, data set, device, memory."""

from __future__ import annotations

from bigbird_ja import storage
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.data.verify import DataGuard
from bigbird_ja.model import pattern
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.values import first_phase, get_value, train_predictions
from bigbird_ja.train import hosts, memory
from bigbird_ja.train.engines.devices import GPU_FILES, is_there
from bigbird_ja.train.request import Request


def check(request: Request) -> DataGuard:
    """Refuses what cannot be trained, here or at all; reads only.

    Returns:
        The versions of the data set's shards as they are now.

    Raises:
        BadInput: what, where, and what to do.
        OutOfMemory: a step does not fit into this machine.
    """
    config = request.config
    sequences = hosts.check_divides(
        config.training.global_batch_size,
        request.engine.replicas,
        config.training.gradient_accumulation_steps,
    )
    phase = first_phase(config)
    for one in (config, phase) if phase else (config,):
        _check_length(one)
    for setting in without_effect(config, request.engine.name):
        request.surroundings.log(f"{setting} has no effect under the engine {request.engine.name}")
    if request.wandb:
        from bigbird_ja.train.wandb_log import load_library

        load_library()
    # Refuses a unit or a rate that static data does not have.
    request.manifest.rule(config.data.mask_unit, train_predictions(config))
    guard = DataGuard(request.manifest, request.data_dir)
    _check_shards_open(request.manifest, request.data_dir)
    is_on_host = not request.engine.use_tpu and not is_there(GPU_FILES)
    if is_on_host and request.engine.name == "estimator":  # the other asks its compiler
        memory.check(config, sequences)
        if phase is not None:
            more = phase.training.global_batch_size // config.training.global_batch_size
            memory.check(phase, sequences * more)
    return guard


def without_effect(config: Config, engine: str) -> list[str]:
    """`key=value` of the settings that were changed and that only another engine reads."""
    given = (
        (key, get_value(config, key), option) for key, option in OPTIONS.items() if option.engine
    )
    return [
        f"{key}={value}"
        for key, value, option in given
        if option.engine != engine and value != option.default
    ]


def _check_length(config: Config) -> None:
    try:
        pattern.is_full(config, config.make_data.seq_length)
    except ValueError as error:
        raise BadInput(str(error)) from error


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
