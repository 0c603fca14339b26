"""What a run of `pretrain` is to do, what it depends on outside of itself, and whether it can."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.data.verify import DataGuard
from bigbird_ja.model import pattern
from bigbird_ja.process import console
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import train_predictions
from bigbird_ja.train.engines import devices, memory
from bigbird_ja.train.engines.choose import Choice, check_divides
from bigbird_ja.train.pod import Alone


def _daemon_timer(seconds: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True  # a command that has failed does not wait for it
    return timer


@dataclass(frozen=True)
class Dependencies:
    """Log, clocks and the exit of the process; tests replace them.

    `timer(seconds, act)` returns an object with `start` and `cancel`.

    `mark` is called with a phase at the instants where a kill is interesting: "start-up",
    "compile", "input", "session", "step" (with its number), "evaluate", "save", "between-files".
    """

    log: Callable[[str], None] = console.log
    clock: Callable[[], float] = time.time  # UNIX seconds
    monotonic: Callable[[], float] = time.monotonic
    mark: Callable[..., None] = lambda phase, step=0: None
    leave: Callable[[int], Any] = os._exit
    timer: Callable[[float, Callable[[], None]], Any] = _daemon_timer


@dataclass(frozen=True)
class Job:
    """One run: settings, data set, flags. The flags are checked as far as that needs no files."""

    config: Config  # completed by the data set
    manifest: Manifest
    data_dir: str
    model_dir: str
    engine: Choice
    pod: Alone = field(default_factory=Alone)  # the processes that train together
    init_from: str | None = None
    changed: frozenset[str] = frozenset()  # settings that a resumed run gets another value of
    evaluates: bool = False  # --mode train_and_eval
    overwrite: bool = False
    wandb: bool = False  # also logs to Weights & Biases
    deps: Dependencies = field(default_factory=Dependencies)


def check(job: Job) -> DataGuard:
    """Refuses what cannot be trained, here or at all; reads only.

    Returns:
        The versions of the data set's shards as they are now.

    Raises:
        BadInput: what, where, and what to do.
        OutOfMemory: a step does not fit into this machine.
    """
    config, engine = job.config, job.engine
    check_divides(
        config.training.global_batch_size,
        engine.replicas,
        config.training.gradient_accumulation_steps,
    )
    try:
        pattern.is_full(config, config.make_data.seq_length)
    except ValueError as error:
        raise BadInput(str(error)) from error
    if job.wandb:
        from bigbird_ja.train.progress import load_wandb

        load_wandb()
    # Refuses a mask unit or a rate that static data does not have.
    job.manifest.rule(config.data.mask_unit, train_predictions(config))
    guard = DataGuard(job.manifest, job.data_dir)
    _check_shards_open(job.manifest, job.data_dir)
    is_on_host = not engine.use_tpu and not devices.is_there(devices.GPU_FILES)
    if is_on_host and engine.name == "estimator":  # the other engine asks its compiler
        memory.refuse_if_too_large(memory.state_bytes(config))
    return guard


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
