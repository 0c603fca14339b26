"""Checkpoints saved in the background of training.

The main thread only takes a snapshot of the variables. A background thread computes checksums and
writes or uploads the files. The next save, and the end of the run, wait for that thread. A failure
in the thread ends the run at the next step.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bigbird_ja.model_dir.checkpoints import SUFFIXES, Meta
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.model_dir.variables import write_variables
from bigbird_ja.train.job import Job
from bigbird_ja.train.threads import run_in_thread

if TYPE_CHECKING:
    from bigbird_ja.train.engines.protocol import Snapshot


# Step that no run reaches.
_NEVER = 1 << 62


@dataclass(frozen=True)
class Saved:
    """Completed save of a checkpoint."""

    step: int
    seconds: float  # Duration of the save.
    time: float  # UNIX seconds at the end of the save.


@dataclass(eq=False)
class CheckpointSaver:
    """Saver of checkpoints at intervals of minutes or steps, one checkpoint at a time.

    `poll` and `wait` return each completed save once. In a pod, all processes take snapshots, but
    only one process writes them.

    Attributes:
        step: last saved step, or the step from which training started or continued.
    """

    job: Job
    model_dir: ModelDir  # Locked in the process that writes.

    def __post_init__(self) -> None:
        """Assume a start at step 0 until `begin` is called."""
        self._config, self._deps = self.job.config.checkpoints, self.job.deps
        self._saving: Future[Saved] | None = None
        self.begin(0)

    def begin(self, step: int) -> None:
        """Begin a new interval between two saves, now and at `step`."""
        self.step, self._time = step, self._deps.monotonic()

    def is_due(self, step: int) -> bool:
        """Return whether to save at `step`.

        A save is due at the first finished step at or after a multiple of `save_every_steps`. A
        save is also due when `save_every_minutes` have passed since the last one.
        """
        if step <= self.step:
            return False
        if self.find_next_due(self.step) <= step:
            return True
        seconds = self._config.save_every_minutes * 60
        is_time = bool(seconds) and self._deps.monotonic() - self._time >= seconds
        return self.job.pod.saves_at(step, self.step, is_time)

    def find_next_due(self, step: int) -> int:
        """Return the next step after `step` at which `save_every_steps` requires a save."""
        every = self._config.save_every_steps
        return (step // every + 1) * every if every else _NEVER

    def save(self, meta: Meta, snapshot: Callable[[], Snapshot]) -> None:
        """Take a snapshot now and save it in the background.

        The previous save must be completed.

        Args:
            meta: metadata of the checkpoint, to which its files are added.
            snapshot: function that copies the state. It is called before `save` returns. It returns
                a second function, which the saving thread calls to get all variables by name.
        """
        assert self._saving is None
        self.begin(meta.step)
        fetch = snapshot()
        if self.model_dir.lease is not None:
            self._saving = run_in_thread("checkpoint", lambda: self._run(meta, fetch))

    def give_time(self, seconds: float) -> None:
        """Wait at most this many seconds for a save in progress, and ignore its failure."""
        if self._saving is not None:
            concurrent.futures.wait([self._saving], seconds)

    def poll(self) -> Saved | None:
        """Return the save that was completed since the last call, or None.

        If that save has failed, raise its error.
        """
        return self.wait() if self._saving is not None and self._saving.done() else None

    def wait(self) -> Saved | None:
        """Wait for the save in progress, if any, and return it. If it fails, raise its error."""
        if self._saving is None:
            return None
        try:
            return self._saving.result()
        finally:
            self._saving = None

    def _run(self, meta: Meta, fetch: Snapshot) -> Saved:
        start, config, model_dir = self._deps.monotonic(), self._config, self.model_dir
        prefix = os.path.join(model_dir.scratch, f"model.ckpt-{meta.step}")
        try:
            write_variables(prefix, fetch())
            model_dir.check_lock()
            model_dir.checkpoints.publish(prefix, meta, config.keep_last, config.keep_every_steps)
            return Saved(meta.step, self._deps.monotonic() - start, self._deps.clock())
        except BaseException:
            for suffix in SUFFIXES:
                with contextlib.suppress(OSError):
                    os.unlink(prefix + suffix)
            raise
