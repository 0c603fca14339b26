"""Decide when checkpoints are due, and save them without stalling the step.

The main thread only takes a snapshot of the variables; writing, checksums, `fsync` or upload happen
in a thread. The next save, and the end of the run, wait for it; its failure ends the run at the
next step.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bigbird_ja.run.checkpoints import SUFFIXES, CheckpointStore, Meta
from bigbird_ja.run.model import write_variables
from bigbird_ja.settings.schema import CheckpointsConfig
from bigbird_ja.train.single_process import SingleProcess

if TYPE_CHECKING:
    from bigbird_ja.train.engines import Snapshot

_NEVER = 1 << 62  # a step that is not reached


class SaveSchedule:
    """Two policies of saving: by minutes against preemption, by steps for keeps.

    Args:
        config: the two policies; 0 is off.
        step: the last saved step, or where training starts.
        clock: seconds, monotonic.
        pod: the processes that save together.
    """

    def __init__(
        self,
        config: CheckpointsConfig,
        step: int,
        clock: Callable[[], float] = time.monotonic,
        pod: SingleProcess | None = None,
    ) -> None:
        self._pod = pod or SingleProcess()
        self._seconds = config.save_every_minutes * 60
        self._steps = config.save_every_steps
        self._clock = clock
        self._last_step, self._last_time = step, clock()

    def is_due(self, step: int) -> bool:
        """Tell whether to save now; the first step at or after a multiple meets the step policy."""
        if step <= self._last_step:
            return False
        if self._steps and step // self._steps > self._last_step // self._steps:
            return True
        is_time = bool(self._seconds) and self._clock() - self._last_time >= self._seconds
        return self._pod.saves_at(step, self._last_step, is_time)

    def next_due(self, step: int) -> int:
        """Return the next step after `step` at which the step policy is met."""
        return (step // self._steps + 1) * self._steps if self._steps else _NEVER

    def saved(self, step: int) -> None:
        """Note that a save of `step` has begun."""
        self._last_step, self._last_time = step, self._clock()


@dataclass
class CheckpointSaver:
    """Save in the background, one checkpoint at a time.

    Args:
        store: of MODEL_DIR.
        scratch: a local directory; on the disk of MODEL_DIR where that is local, so that files are
            moved and not copied.
        config: retention.
        may_publish: raises where this process may no longer write (lost lock).
        on_saved: called with the sidecar, seconds in the background, seconds the step waited.
        mark: called with the phase, for tests that kill there.
        clock: seconds, monotonic.
        writes: False in a process of a pod that only takes part in the snapshot.
        stalled_seconds: of the step, in all.
    """

    store: CheckpointStore
    scratch: str
    config: CheckpointsConfig
    may_publish: Callable[[], None]
    on_saved: Callable[[Meta, float, float], None]
    mark: Callable[[str], None] = lambda phase: None
    clock: Callable[[], float] = time.monotonic
    writes: bool = True
    stalled_seconds: float = 0.0
    _thread: threading.Thread | None = None
    _error: BaseException | None = None

    def save(self, meta: Meta, snapshot: Callable[[], Snapshot]) -> None:
        """Take a snapshot now and save it in the background.

        Args:
            meta: the sidecar; the files are added.
            snapshot: copies the state, called before this returns; what it returns gives all
                variables by name, and is called in the thread that saves.
        """
        start = self.clock()
        self.wait()
        fetch = snapshot()
        if not self.writes:
            return
        waited = self.clock() - start
        self.stalled_seconds += waited
        self._thread = threading.Thread(
            target=self._run, args=(meta, fetch, waited), name="checkpoint", daemon=True
        )
        self._thread.start()

    def give_time(self, seconds: float) -> None:
        """Wait at most so long for a save under way, and ignore its failure."""
        if self._thread is not None:
            self._thread.join(seconds)

    def poll(self) -> None:
        """Raise what a save in the background failed with."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait for the save under way; raise what it failed with."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.poll()

    def _run(self, meta: Meta, fetch: Snapshot, waited: float) -> None:
        start = self.clock()
        prefix = os.path.join(self.scratch, f"model.ckpt-{meta.step}")
        try:
            self.mark("save")
            write_variables(prefix, fetch())
            self.may_publish()
            keep = self.config.keep_last, self.config.keep_every_steps
            saved = self.store.publish(prefix, meta, *keep)
            self.on_saved(saved, self.clock() - start, waited)
        except BaseException as error:
            self._error = error
            for suffix in SUFFIXES:
                with contextlib.suppress(OSError):
                    os.unlink(prefix + suffix)
