"""Run what goes on beside the steps: saves, evaluations, the watchdog, periodic tasks.

Of a save, the main thread only takes a snapshot of the variables; writing, checksums, `fsync` or
upload happen in a thread. The next save, and the end of the run, wait for it; its failure ends the
run at the next step. The watchdog ends a process in which training hangs: its machine is billed all
the same. Heartbeats and the upload of logs share one thread, so that a slow bucket never stalls a
step.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from bigbird_ja.process.signals import StopRequest
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import SUFFIXES, CheckpointStore, Meta
from bigbird_ja.run.model import write_variables
from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.train import Job

if TYPE_CHECKING:
    from bigbird_ja.model.forward import Model
    from bigbird_ja.train.engines import Snapshot

T = TypeVar("T")

_NEVER = 1 << 62  # a step that is not reached
_EVALUATION_POLL_SECONDS = 0.1
_TASKS_POLL_SECONDS = 0.5


def in_thread(name: str, call: Callable[[], T]) -> Future[T]:
    """Make a call in a daemon thread, for which the process does not wait when it exits."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


@dataclass(eq=False)
class CheckpointSaver:
    """Save by minutes against preemption and by steps for keeps, one checkpoint at a time.

    Attributes:
        step: the last step that was saved, or where training starts.
    """

    job: Job
    # Of MODEL_DIR; without its mark in a process of a pod that does not write and only takes part
    # in the snapshot.
    store: CheckpointStore
    scratch: str  # local, on the disk of MODEL_DIR if that is local: files are moved, not copied
    may_publish: Callable[[], None]  # raises where this process may no longer write (lost lock)
    on_saved: Callable[[int, float], None]  # called with the step and the seconds in the background

    def __post_init__(self) -> None:
        """Count from step 0 on."""
        self._config, self._deps = self.job.config.checkpoints, self.job.deps
        self._saving: Future[None] | None = None
        self.begin(0)

    def begin(self, step: int) -> None:
        """Count minutes and steps from here on."""
        self.step, self._time = step, self._deps.monotonic()

    def is_due(self, step: int) -> bool:
        """Tell whether to save now; the first step at or after a multiple meets the step policy."""
        if step <= self.step:
            return False
        if self.next_due(self.step) <= step:
            return True
        seconds = self._config.save_every_minutes * 60
        is_time = bool(seconds) and self._deps.monotonic() - self._time >= seconds
        return self.job.pod.saves_at(step, self.step, is_time)

    def next_due(self, step: int) -> int:
        """Return the next step after `step` at which the step policy is met."""
        every = self._config.save_every_steps
        return (step // every + 1) * every if every else _NEVER

    def save(self, meta: Meta, snapshot: Callable[[], Snapshot]) -> None:
        """Take a snapshot now and save it in the background.

        Args:
            meta: the sidecar; the files are added.
            snapshot: copies the state, called before this returns; what it returns gives all
                variables by name, and is called in the thread that saves.
        """
        self.begin(meta.step)
        self.wait()
        fetch = snapshot()
        if self.store.owned is not None:
            self._saving = in_thread("checkpoint", lambda: self._run(meta, fetch))

    def give_time(self, seconds: float) -> None:
        """Wait at most this many seconds for a save under way, and ignore its failure."""
        if self._saving is not None:
            concurrent.futures.wait([self._saving], seconds)

    def poll(self) -> None:
        """Raise the failure of a save in the background."""
        if self._saving is not None and self._saving.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the save under way; raise its failure."""
        if self._saving is not None:
            try:
                self._saving.result()
            finally:
                self._saving = None

    def _run(self, meta: Meta, fetch: Snapshot) -> None:
        start, config = self._deps.monotonic(), self._config
        prefix = os.path.join(self.scratch, f"model.ckpt-{meta.step}")
        try:
            self._deps.mark("save")
            write_variables(prefix, fetch())
            self.may_publish()
            self.store.publish(prefix, meta, config.keep_last, config.keep_every_steps)
            self.on_saved(meta.step, self._deps.monotonic() - start)
        except BaseException:
            for suffix in SUFFIXES:
                with contextlib.suppress(OSError):
                    os.unlink(prefix + suffix)
            raise


class Evaluations:
    """Evaluate on held-out records every `training.eval_every_steps` steps and at the end.

    On `training.eval_max_batches` batches at most.

    Args:
        job: the run.
        stop: a request to stop leaves an evaluation unfinished.
        tick: called after each batch.
    """

    def __init__(self, job: Job, stop: StopRequest, tick: Callable[[], None]) -> None:
        self._job, self._stop, self._tick = job, stop, tick
        self._every = job.config.training.eval_every_steps
        self._total = job.config.training.num_train_steps
        self._evaluated = -1  # the last step that was
        self._running: Future[dict[str, Any] | None] | None = None

    def begin(self, step: int) -> None:
        """Find out which evaluation was the last before `step`, where training begins."""
        if self._job.evaluates:
            self._evaluated = self._job.pod.share("evaluated", lambda: self._last(step))

    def _last(self, step: int) -> int:
        """Return the last step, up to `step`, that eval.jsonl has an evaluation of; -1 for none."""
        lines = run_log.read_evaluations(self._job.model_dir)
        ours = self._job.manifest.fingerprint
        steps = [line["step"] for line in lines if line.get("data_fingerprint") == ours]
        return max((number for number in steps if number <= step), default=-1)

    def is_due(self, step: int) -> bool:
        """Tell whether the model is to be evaluated at `step`, also after a restart from there.

        That is at the first step reached since a multiple of the interval, and at the last step, if
        it is not evaluated yet; at step 0 only if the weights come from another model.
        """
        if not self._job.evaluates or (step == 0 and not self._job.init_from):
            return False
        due = self._total if step >= self._total else step // self._every * self._every
        return (due > 0 or step == 0) and self._evaluated < due

    def next_due(self, step: int) -> int:
        """Return the next step after `step` at which one will be due."""
        if not self._job.evaluates:
            return self._total
        return min((step // self._every + 1) * self._every, self._total)

    def evaluate(self, step: int, forward: Model) -> dict[str, Any] | None:
        """Evaluate, and return the results as `evaluation.evaluate_model` has them.

        None if a stop was requested before they were complete (the last batch may still be
        computed: see `join`), and in a process that does not write. In a pod each process evaluates
        its part.
        """
        self._job.deps.mark("evaluate")
        self._running = in_thread("evaluation", lambda: self._run(step, forward))
        waiting = {self._running}
        while waiting and not self._stop.is_set():
            waiting = concurrent.futures.wait(waiting, _EVALUATION_POLL_SECONDS).not_done
        if self._stop.is_set():
            return None
        result = self._running.result()
        self._evaluated = step
        return result

    def join(self) -> None:
        """Wait for a batch that is still being computed."""
        if self._running is not None:
            concurrent.futures.wait([self._running])

    def _run(self, step: int, forward: Model) -> dict[str, Any] | None:
        from bigbird_ja import evaluation

        def poll() -> None:
            if self._stop.is_set():
                raise _Abandoned

        def tick() -> None:
            self._tick()
            poll()

        job, pod = self._job, self._job.pod
        part = evaluation.BatchShare(
            pod.index, pod.count, lambda own: pod.collect(f"evaluation {step}", own, poll)
        )
        batches = job.config.training.eval_max_batches
        return evaluation.evaluate_model(
            forward, job.data_dir, job.manifest, max_batches=batches, tick=tick, part=part
        )


class _Abandoned(Exception):
    """A stop was requested."""


@dataclass(eq=False)
class Watchdog:
    """Call `on_stall` when nothing was finished for `limit` seconds."""

    limit: float  # seconds without `tick`; 0 is off
    on_stall: Callable[[float], None]  # gets the seconds of silence; expected not to return
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Watch nothing yet."""
        self._last = self.clock()
        self._ended = threading.Event()

    def tick(self) -> None:
        """Note that something was finished: a step, or a batch of an evaluation."""
        self._last = self.clock()

    def __enter__(self) -> Watchdog:
        self.tick()
        if self.limit:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(min(max(self.limit / 20, 0.05), 5.0)):
            silence = self.clock() - self._last
            if silence > self.limit:
                self.on_stall(silence)
                return


@dataclass(eq=False)
class Periodic:
    """Run tasks in a thread between `__enter__` and `__exit__`.

    A task that fails is logged, once per message, and retried; only a lost lock ends the run.
    """

    # By name: the seconds between two times, the first that long after the start; what is run.
    tasks: Mapping[str, tuple[float, Callable[[], None]]]
    log: Callable[[str], None]  # for failures
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Run nothing yet."""
        self._next = {name: self.clock() + seconds for name, (seconds, _) in self.tasks.items()}
        self._ended = threading.Event()
        self._logged: set[str] = set()
        self._lost: LeaseLost | None = None
        self._thread = threading.Thread(target=self._run, name="periodic", daemon=True)

    def poll(self) -> None:
        """Raise LeaseLost once the lock is lost."""
        if self._lost is not None:
            raise self._lost

    def run_due(self) -> None:
        """Run the tasks that are due.

        None runs any more once the lock is lost: MODEL_DIR belongs to another process then.
        """
        for name, (seconds, run) in self.tasks.items():
            now = self.clock()
            if self._lost is not None or now < self._next[name]:
                continue
            self._next[name] = now + seconds
            try:
                run()
            except LeaseLost as error:
                self._lost = error
            except Exception as error:
                message = f"{name} failed, will be tried again: {error}"
                if message not in self._logged:
                    self._logged.add(message)
                    self.log(message)

    def __enter__(self) -> Periodic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while not self._ended.wait(_TASKS_POLL_SECONDS):
            self.run_due()
