"""The run that a process trains, and where it continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bigbird_ja.process import console
from bigbird_ja.train.engines.choose import Choice
from bigbird_ja.train.processes import SingleProcess

if TYPE_CHECKING:
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.model_dir.checkpoints import Checkpoint
    from bigbird_ja.settings.schema import Config


def _daemon_timer(seconds: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True  # so that a command that has failed does not wait for it
    return timer


@dataclass(frozen=True)
class Dependencies:
    """Log, clocks and timers, which tests replace.

    `timer(seconds, act)` returns an object with `start` and `cancel`.

    `mark` is called with a phase at which tests may kill the process: "start-up", "compile",
    "input", "session", "step" (with its number), "evaluate", "save", "between-files".
    """

    log: Callable[[str], None] = console.log
    clock: Callable[[], float] = time.time  # UNIX seconds
    monotonic: Callable[[], float] = time.monotonic
    mark: Callable[..., None] = lambda phase, step=0: None
    timer: Callable[[float, Callable[[], None]], Any] = _daemon_timer


@dataclass(frozen=True)
class Job:
    """Run to train: settings, data set, engine and flags."""

    config: Config  # completed by the data set
    manifest: Manifest
    data_dir: str
    engine: Choice
    pod: SingleProcess = field(default_factory=SingleProcess)  # the processes that train together
    init_from: str | None = None
    evaluates: bool = False  # --mode train_and_eval
    wandb: bool = False  # whether to log to Weights & Biases too
    profiled: range = range(0)  # steps to profile
    deps: Dependencies = field(default_factory=Dependencies)


@dataclass(frozen=True)
class Resumption:
    """The point at which training continues."""

    checkpoint: Checkpoint | None
    interruptions: int  # number of ends other than `finished`, of the whole run
    next_batch: int = 0  # position in the data's order, in batches of the config

    @property
    def step(self) -> int:
        """Global step of the checkpoint; 0 without one."""
        return self.checkpoint.meta.step if self.checkpoint else 0

    @property
    def train_seconds(self) -> float:
        """Seconds of training before the checkpoint."""
        return self.checkpoint.meta.train_seconds if self.checkpoint else 0.0
