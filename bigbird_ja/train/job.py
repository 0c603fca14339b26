"""What a run of `pretrain` was asked to do, and what it depends on outside of itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bigbird_ja.data.manifest import Manifest
from bigbird_ja.process import console
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.engines.choice import Choice
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
    "compile", "input", "session", "step", "evaluate", "save", "between-files".
    """

    log: Callable[[str], None] = console.log
    clock: Callable[[], float] = time.time  # UNIX seconds
    monotonic: Callable[[], float] = time.monotonic
    mark: Callable[[str], None] = lambda phase: None
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
    continue_with: frozenset[str] = frozenset()  # settings that may differ from the run's so far
    evaluates: bool = False  # --mode=train_and_eval
    profile_steps: tuple[int, int] | None = None
    overwrite: bool = False
    wandb: bool = False  # also logs to Weights & Biases
    json: bool = False  # prints its results as JSON when a thread has to end the process
    deps: Dependencies = field(default_factory=Dependencies)
