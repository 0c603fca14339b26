"""Describe a run, check that it can begin, and make its engine and its input."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bigbird_ja import storage
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.data.verify import DataGuard
from bigbird_ja.model import pattern
from bigbird_ja.process import console
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run.checkpoints import Checkpoint
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import train_predictions
from bigbird_ja.train.engines import Engine, devices, memory
from bigbird_ja.train.engines.choose import Choice, check_divides
from bigbird_ja.train.single_process import SingleProcess

if TYPE_CHECKING:
    import numpy as np

    from bigbird_ja.model.forward import Model
    from bigbird_ja.train.warm_start import FirstValues

COMPILED = "compiled"  # folder of compiled programs in MODEL_DIR, kept for the next start


def _daemon_timer(seconds: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True  # a command that has failed does not wait for it
    return timer


@dataclass(frozen=True)
class Dependencies:
    """Log, clocks and the exit of the process, which tests replace.

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
    """A run to be done: settings, data set, flags, each checked as far as that needs no files."""

    config: Config  # completed by the data set
    manifest: Manifest
    guard: DataGuard  # raises where a shard has been replaced since the command began
    data_dir: str
    model_dir: str
    engine: Choice
    pod: SingleProcess = field(default_factory=SingleProcess)  # the processes that train together
    init_from: str | None = None
    changed: frozenset[str] = frozenset()  # settings that a resumed run gets another value of
    evaluates: bool = False  # --mode train_and_eval
    overwrite: bool = False
    wandb: bool = False  # also logs to Weights & Biases
    deps: Dependencies = field(default_factory=Dependencies)


@dataclass(frozen=True)
class Resumption:
    """The point at which training continues."""

    checkpoint: Checkpoint | None
    interruptions: int  # ends other than `finished`, of the whole run
    next_batch: int = 0  # of the data's order, in batches of the config

    @property
    def step(self) -> int:
        """Global step of the checkpoint; 0 without one."""
        return self.checkpoint.meta.step if self.checkpoint else 0

    @property
    def train_seconds(self) -> float:
        """Seconds of training before the checkpoint."""
        return self.checkpoint.meta.train_seconds if self.checkpoint else 0.0


def check(job: Job) -> None:
    """Refuse what cannot be trained, here or at all; reads only.

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
        pattern.is_full(config, job.manifest.seq_length)
    except ValueError as error:
        raise BadInput(str(error)) from error
    if job.wandb:
        from bigbird_ja.train.progress import load_wandb

        load_wandb()
    # Refuses a mask unit or a rate that static data does not have.
    job.manifest.rule(config.data.mask_unit, train_predictions(config, job.manifest))
    is_on_host = not engine.use_tpu and not devices.is_there(devices.GPU_FILES)
    if is_on_host and engine.name == "estimator":  # the other engine asks its compiler
        memory.refuse_if_too_large(memory.state_bytes(config, job.manifest))


def load_warm_start(job: Job, has_checkpoints: bool) -> FirstValues | None:
    """Load the parameters of `--init_from`; None without the flag, and where a run is resumed."""
    if not job.init_from:
        return None
    if not job.overwrite and has_checkpoints:
        job.deps.log(f"--init_from is ignored: {job.model_dir} is resumed")
        return None
    from bigbird_ja.train.warm_start import load_initial

    first = load_initial(job.init_from, job.config, job.manifest, job.manifest.tokenizer_sha256)
    job.deps.log(first.table)
    return first


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
    from bigbird_ja.train.warm_start import first_state

    config, choice = job.config, job.engine

    def state() -> Mapping[str, Any]:
        return first_state(config, job.manifest, resumption.checkpoint, warm_start)

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
        from bigbird_ja.train.engines.kept_programs import CompiledPrograms
        from bigbird_ja.train.engines.pjrt import PjrtEngine

        place = storage.join(job.model_dir, COMPILED)
        programs = CompiledPrograms(place, scratch, choice.devices.platform, job.deps.log)
        return PjrtEngine(config, job.manifest, state, read, choice.devices, programs)
    from bigbird_ja.train.engines.estimator import EstimatorEngine

    return EstimatorEngine(
        config, job.manifest, state, read, choice.replicas, scratch, choice.use_tpu
    )


def trained_model(
    choice: Choice, config: Config, data: Data, parameters: Mapping[str, np.ndarray]
) -> Model:
    """Bring a trained model to where the engine evaluates, when nothing is left to train.

    Args:
        choice: of `choose`.
        config: of the run.
        data: of the run.
        parameters: by name, float32.
    """
    if choice.devices is not None:
        from bigbird_ja.train.engines.pjrt_forward import (
            PjrtForward,
            keep_tensorflow_off_the_devices,
        )

        keep_tensorflow_off_the_devices()
        forward = PjrtForward(config, data, choice.devices.of_process())
        forward.place(parameters)
        return forward
    from bigbird_ja.model.forward import Forward

    return Forward(config, data, parameters)
