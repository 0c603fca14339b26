"""Training: `train.py` is where to begin. Here is what its parts share: a run and its processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bigbird_ja.process import console
from bigbird_ja.process.errors import CommandError
from bigbird_ja.process.streams import leave

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from bigbird_ja.data.check import DataGuard
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.run.checkpoints import Checkpoint
    from bigbird_ja.settings.schema import Config
    from bigbird_ja.train.engines.devices import Devices

COMPILED = "compiled"  # folder of compiled programs in MODEL_DIR, kept for the next start

# (host, hosts) -> that host's part of each global batch, from the first step on.
MakeBatches = Callable[[int, int], "tf.data.Dataset"]
# A copy of the state at one step: called in any thread, at most once, it gives the arrays.
Snapshot = Callable[[], "dict[str, np.ndarray]"]
NamedArrays = Mapping[str, "np.ndarray"]


def _daemon_timer(seconds: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True  # a command that has failed does not wait for it
    return timer


@dataclass(frozen=True)
class Dependencies:
    """Log, clocks and timers, which tests replace.

    `timer(seconds, act)` returns an object with `start` and `cancel`.

    `mark` is called with a phase at the instants where a kill is interesting: "start-up",
    "compile", "input", "session", "step" (with its number), "evaluate", "save", "between-files".
    """

    log: Callable[[str], None] = console.log
    clock: Callable[[], float] = time.time  # UNIX seconds
    monotonic: Callable[[], float] = time.monotonic
    mark: Callable[..., None] = lambda phase, step=0: None
    timer: Callable[[float, Callable[[], None]], Any] = _daemon_timer


class SingleProcess:
    """Train in one process; what `train.pod` does in several."""

    index, count, is_writer = 0, 1, True
    # Ends this process at once, from any thread; called where another one failed.
    leave: Callable[[CommandError], None] = staticmethod(leave)

    def barrier(self, name: str) -> None:
        """Wait until all processes are here."""

    def share(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what the writer makes (as JSON), in every process."""
        return make()

    def collect(
        self, key: str, arrays: NamedArrays, poll: Callable[[], None]
    ) -> list[NamedArrays] | None:
        """Return the arrays of all processes, in the writer; None in the others.

        `poll` is called meanwhile, and ends the wait if it raises.
        """
        return [arrays]

    def next_limit(self, step: int, limit: int, ahead: int) -> int:
        """Return the step up to which the engine may go now, `limit` at most.

        Called before each `advance`, which may dispatch `ahead` steps beyond the finished `step`.
        """
        return limit

    def saves_at(self, step: int, last: int, is_time: bool) -> bool:
        """Tell whether all processes save at `step`.

        By this process's clock it is time or is not (`is_time`); the save before was at step
        `last`.
        """
        return is_time

    def stops_at(self, step: int, is_requested: bool) -> bool:
        """Tell whether training stops at `step`, where this process was requested to or not."""
        return is_requested

    def fail(self, reason: str, message: str) -> None:
        """Tell the others that this process ends badly."""

    def explain(self, error: BaseException) -> CommandError | None:
        """Return the end of another process that an error of this one comes from, or None."""
        return None

    def finish(self) -> None:
        """Note that the run has ended well, in all processes."""


@dataclass(frozen=True)
class Choice:
    """An engine, and what it will run on."""

    name: str  # estimator | pjrt
    why: str
    use_tpu: bool
    replicas: int  # of the step: the global batch divides over them
    device: str  # for people and events
    peak_flops: float | None = None  # bfloat16 FLOP/s of one replica, where known
    devices: Devices | None = None  # pjrt only
    processes: int = 1  # that train together

    def __str__(self) -> str:
        together = f" in {self.processes} processes" if self.processes > 1 else ""
        return f"engine: {self.name} on {self.device}{together} ({self.why})"


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
    evaluates: bool = False  # --mode train_and_eval
    wandb: bool = False  # also logs to Weights & Biases
    profiled: range = range(0)  # steps of which a profile is recorded
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


@dataclass(frozen=True)
class StepResult:
    """The steps that an engine has finished since the last call."""

    step: int  # all steps up to this one
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # of logged ones
    first_nonfinite_step: int | None = None  # with a loss or gradients of NaN or infinity

    def then(self, later: StepResult) -> StepResult:
        """Join two results, the later one last."""
        first = self.first_nonfinite_step
        first = later.first_nonfinite_step if first is None else first
        return StepResult(later.step, {**self.metrics, **later.metrics}, first)
