"""Description of the run that a process trains."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bigbird_ja.errors import CommandError
from bigbird_ja.process import console
from bigbird_ja.train.engines.choose import Choice
from bigbird_ja.train.processes import Processes, SingleProcess

if TYPE_CHECKING:
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.settings.schema import Config


def _make_daemon_timer(seconds: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True  # The process does not wait for the timer when it exits.
    return timer


@dataclass(frozen=True)
class Dependencies:
    """Log, clocks, timers and callbacks of a run, which a caller or a test may replace.

    Attributes:
        timer: function of (seconds, callback) that returns an object with `start` and `cancel`.
        leave: function that ends the process with an error if the main thread is stuck. It is None
            in a user's own program, so that the program is not ended.
        summarize: function that displays a summary of a finished run. Its argument is the manifest
            of the run's data set.
    """

    log: Callable[[str], None] = console.log
    clock: Callable[[], float] = time.time  # UNIX seconds.
    monotonic: Callable[[], float] = time.monotonic
    leave: Callable[[CommandError], None] | None = None
    timer: Callable[[float, Callable[[], None]], Any] = _make_daemon_timer
    summarize: Callable[[Manifest], None] = lambda manifest: None


@dataclass(frozen=True)
class PretrainResult:
    """Results of a run, with totals over all its restarts."""

    global_step: int
    loss: float | None  # Loss of the last logged step.
    reason: str  # "finished", or the `reason` of an error of `bigbird_ja.errors`.
    train_seconds: float
    tokens_seen: int  # Estimated number of training tokens, without padding.
    interruptions: int  # Number of earlier starts that did not finish the run.
    model_dir: str


@dataclass(frozen=True)
class Job:
    """Description of a run: settings, data set, engine and arguments of `pretrain`."""

    config: Config  # Config of the run, fitted to the data set.
    manifest: Manifest
    data_dir: str
    engine: Choice
    pod: Processes = field(default_factory=SingleProcess)  # Interface to the other processes.
    init_from: str | None = None
    evaluates: bool = False
    wandb: bool = False
    profiled: range = range(0)  # Steps to profile.
    deps: Dependencies = field(default_factory=Dependencies)
