"""Training, from a job to its last checkpoint; read this file from top to bottom.

`train` refuses what can be refused, locks MODEL_DIR, finds the checkpoint to continue from, and
hands over to `Trainer`, whose loop is the same for every engine:

    advance -> finite? -> log -> save -> evaluate -> stop?

Saving, heartbeats and the watchdog have threads of their own. In a pod, process 0 writes; the
others follow it. `train.ends` records how a run ended.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bigbird_ja.data import verify
from bigbird_ja.data.verify import DataGuard
from bigbird_ja.process.console import waiting
from bigbird_ja.process.errors import Diverged
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore, Meta, parameters_of
from bigbird_ja.run.model import check_tokenizer, read_checkpoint
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.storage.lease import RENEW_SECONDS, Lease
from bigbird_ja.train.ends import Ends
from bigbird_ja.train.engines import StepResult
from bigbird_ja.train.evaluations import Evaluations
from bigbird_ja.train.job import Job, check
from bigbird_ja.train.phases import make_engine, trained_model
from bigbird_ja.train.record import Recorder
from bigbird_ja.train.run_dir import Resumption, RunDir
from bigbird_ja.train.saving import CheckpointSaver, SaveSchedule
from bigbird_ja.train.watch import Periodic, Task, Watchdog

HEARTBEAT_SECONDS = 15.0
METRICS_SYNC_SECONDS = 60.0

if TYPE_CHECKING:
    from bigbird_ja.train.warm_start import FirstValues


def train(job: Job, run_dir: RunDir, stop: StopRequest) -> dict[str, Any]:
    """Trains or resumes to the end.

    Args:
        job: what to train.
        run_dir: MODEL_DIR, opened.
        stop: tells whether someone asked to stop.

    Returns:
        The `--json` results.

    Raises:
        CommandError: every other end, recorded in MODEL_DIR once work has begun there; its
            `results` carry `global_step` and `loss`.
    """
    config, pod, deps = job.config, job.pod, job.deps

    def report(event: str, step: int, text: str) -> None:  # of checkpoints that are not used
        deps.log(text)
        run_log.append_event(job.model_dir, event, deps.clock, global_step=step, message=text)

    deps.mark("start-up")
    if not job.overwrite:
        run_dir.check_settings(config, job.changed)
    guard = check(job)
    warm_start = _load_warm_start(job, run_dir)
    pod.barrier("checked")

    with contextlib.ExitStack() as stack:
        if pod.is_writer:
            lease, scratch = stack.enter_context(run_dir.locked(deps))
            store = CheckpointStore(job.model_dir, scratch, report, deps.mark, run_dir.owned)
            resumption = run_dir.find_resumption(store, config, job.manifest.fingerprint)
            if resumption.checkpoint is not None:
                deps.log(f"{job.model_dir}: checkpoint {resumption.step} verified")
            start = lease.owner.id, resumption.interruptions, resumption.next_batch
            pod.share("start", lambda: (*start, resumption.step))
        else:
            owner, interruptions, next_batch, step = pod.share("start", tuple)
            lease, scratch = None, stack.enter_context(scratch_directory())
            run_dir.check_is_of(owner, deps)
            store = CheckpointStore(job.model_dir, scratch, mark=deps.mark)
            checkpoint = store.fetch(step) if step else None  # verified here too
            resumption = Resumption(checkpoint, interruptions, next_batch)
        check_tokenizer(job.model_dir, job.manifest.tokenizer_sha256)
        pod.barrier("ready")
        trainer = Trainer(job, run_dir, stop, store, scratch, resumption, lease, guard, warm_start)
        return trainer.run()


def _load_warm_start(job: Job, run_dir: RunDir) -> FirstValues | None:
    """Parameters of `--init_from`, for a fresh start only."""
    if not job.init_from:
        return None
    if not job.overwrite and run_dir.has_checkpoints:
        job.deps.log(f"--init_from is ignored: {job.model_dir} is resumed")
        return None
    from bigbird_ja.train.warm_start import load_initial

    first = load_initial(job.init_from, job.config, job.manifest.tokenizer_sha256)
    job.deps.log(first.table)
    return first


@dataclass
class Trainer:
    """One process's part of a run, once MODEL_DIR is locked; `job` to `stop` are as of `train`."""

    job: Job
    run_dir: RunDir
    stop: StopRequest
    store: CheckpointStore  # of MODEL_DIR
    scratch: str  # an empty local folder
    resumption: Resumption  # where training continues
    lease: Lease | None  # the lock; None in a process that does not write
    guard: DataGuard  # raises where the data set has changed
    warm_start: FirstValues | None  # replaces the random parameters of a new run

    def __post_init__(self) -> None:
        job = self.job
        self.config, self.deps, self.pod = job.config, job.deps, job.pod
        self.total = self.config.training.num_train_steps
        self.recorder = Recorder(job, self.resumption, self.scratch)
        self.saver = CheckpointSaver(
            self.store,
            self.scratch,
            self.config.checkpoints,
            self._check_may_publish,
            self._on_saved,
            self.deps.mark,
            self.deps.monotonic,
            writes=self.pod.is_writer,
        )
        self.ends = Ends(job, self.run_dir, self.stop, self.recorder, self.saver)
        self.watchdog = Watchdog(self.config.training.stall_minutes * 60, self.ends.stalled)
        self.evaluations = Evaluations(job, self.stop, self.watchdog.tick)
        self.periodic = Periodic(self._tasks(), self.deps.log, self.deps.monotonic)
        self.saved = self.logged = self.resumption.step  # the last steps that were

    def run(self) -> dict[str, Any]:
        """Trains, and records the end, whichever it is."""
        step = self.resumption.step
        # Ends that come from other threads are recorded as this run's from here on.
        self.stop.leave = lambda message: self.ends.leave("interrupted", message)
        self.pod.leave = lambda error: self.ends.leave(error.reason, str(error))
        if step >= self.total:
            return self._complete()
        with self.ends.recorded_failure(is_new=self.resumption.checkpoint is None):
            source = self.warm_start.record if self.warm_start else None
            self.recorder.started(self.run_dir, source)
            # Several processes stop at a step that they agree on, in the loop.
            stops_now = self.stop.is_set() and self.pod.count == 1
            reason = "interrupted" if stops_now else self._train()
        self.stop.answered()
        return self.ends.reached(reason)

    def _complete(self) -> dict[str, Any]:
        """No step is left: makes up for what a kill after the last step has prevented, the last
        evaluation and the record of the end."""
        step, checkpoint = self.resumption.step, self.resumption.checkpoint
        is_past = f", past training.num_train_steps={self.total:,}" if step > self.total else ""
        self.deps.log(
            f"{self.job.model_dir}: already at step {step:,}{is_past}: nothing left to do (a larger"
            " --num_train_steps continues)"
        )
        if is_past:  # a run of another length, finished or not: its record stays as it is
            return self.ends.reached("finished", is_new=False)
        self.evaluations.begin(step)
        if checkpoint is None or not self.evaluations.is_due(step):
            return self.ends.reached("finished", is_new=not self.run_dir.is_recorded_as_finished())
        with self.ends.recorded_failure(), self._threads():
            parameters = parameters_of(read_checkpoint(checkpoint))
            self._evaluate(step, trained_model(self.job.engine, self.config, parameters))
        if not self.evaluations.is_due(step):
            return self.ends.reached("finished")
        self.stop.answered()  # someone asked to stop before it was complete
        self.evaluations.join()
        return self.ends.reached("interrupted")

    def _train(self) -> str:
        """Starts the engine and runs the loop; "finished" or "interrupted"."""
        self.engine = make_engine(self.job, self.resumption, self.warm_start, self.scratch)
        start = self.resumption.step
        self.schedule = SaveSchedule(self.config.checkpoints, start, self.deps.monotonic, self.pod)
        self.recorder.open_board()
        with contextlib.closing(self.recorder):
            # Closed once: each time may wait half a minute for an input that does not end.
            with self._threads(), contextlib.closing(self.engine):
                self.deps.mark("compile")
                with waiting("compiling the step, or loading it where it is kept", self.deps.log):
                    self.engine.begin()
                self.ends.has_stepped = True
                self.deps.mark("session")
                self.watchdog.tick()
                reason = self._loop(start)
                self.recorder.heartbeat(write=True, state="saving")
                self.saver.wait()
            self.recorder.sync()
        return reason

    # The loop.

    def _loop(self, start: int) -> str:
        """Trains from step `start` to the last one.

        Raises:
            Diverged: a loss or gradient is not finite.
            CommandError: input, device, saving or the lock failed.
        """
        step = start
        self.evaluations.begin(start)
        if self.evaluations.is_due(start) and not self._is_over(start):
            self._evaluate(start, self.engine.forward())
        self.recorder.began()
        self.deps.mark("step", start)
        while not self._is_over(step):
            result = self._advance(step)
            step = result.step
            self._stepped(step)
            self._log(result)
            if step >= self.total or self.schedule.is_due(step):
                self._save(step)
            if self.evaluations.is_due(step) and not self._is_over(step):
                self._evaluate(step, self.engine.forward())
            if step >= self.total:
                if self.evaluations.is_due(step):  # someone asked to stop before it was complete
                    break
                return "finished"
        if self.recorder.step > start:  # someone asked to stop: saves what is finished
            result = self.engine.settle()
            _check_finite(result)
            self._stepped(result.step)
            self._log(result)
            self._save(result.step)
        self.saver.wait()
        self.evaluations.join()
        return "interrupted"

    def _advance(self, step: int) -> StepResult:
        """One turn of the engine; all dispatched steps are finished where the state is needed."""
        limit = min(self.schedule.next_due(step), self.evaluations.next_due(step))
        limit = self.pod.turn(step, limit, self.engine.ahead)
        result = self.engine.advance(limit)
        is_at_end = result.step >= self.total or self._is_over(result.step)
        if is_at_end or result.step >= limit or self.schedule.is_due(result.step):
            result = result.then(self.engine.settle())
        _check_finite(result)
        return result

    def _is_over(self, step: int) -> bool:
        """Whether training stops at `step`, since someone asked."""
        is_asked = self.stop.is_set()
        if is_asked:
            self.stop.answered()
        return self.pod.stops_at(step, is_asked)

    def _stepped(self, step: int) -> None:
        self.recorder.stepped(step)
        self.watchdog.tick()
        self.saver.poll()
        self.periodic.poll()
        self.deps.mark("step", step)

    def _log(self, result: StepResult) -> None:
        """Logs the steps that are due, and the last one of this process."""
        every = self.config.training.log_every_steps
        is_end = result.step >= self.total or self._is_over(result.step)
        for step in sorted(result.metrics):
            if step > self.logged and (step % every == 0 or (is_end and step == result.step)):
                self.recorder.logged(step, dict(result.metrics[step]))
                self.logged = step

    def _evaluate(self, step: int, model: Any) -> None:
        """Evaluates on held-out records; left unfinished where someone asks to stop meanwhile, and
        then made after the restart."""
        results = self.evaluations.evaluate(step, model)
        if results is not None:
            self.recorder.evaluated(step, results)

    # Saving.

    def _save(self, step: int) -> None:
        """Saves in the background."""
        if step == self.saved:
            return
        self.schedule.saved(step)
        self.saved = step
        self.recorder.heartbeat(state="saving")
        self.saver.save(self.recorder.sidecar(), self.engine.snapshot)
        self.recorder.progress.leave_out()
        self.watchdog.tick()

    def _check_may_publish(self) -> None:
        """In the saver's thread: raises where a checkpoint must not become the latest."""
        if self.lease is not None:
            self.lease.check()
        self.guard.check()

    def _on_saved(self, meta: Meta, seconds: float, waited: float) -> None:
        """In the saver's thread, once a checkpoint is the latest."""
        self.recorder.heartbeat(state="training")
        times = {"seconds": round(seconds, 3), "stalled_seconds": round(waited, 3)}
        self.recorder.event("saved", global_step=meta.step, **times)
        self.recorder.sync()

    # What the loop needs.

    def _threads(self) -> contextlib.ExitStack:
        """The watchdog and the periodic tasks; a failure to read names the damaged shard."""
        stack = contextlib.ExitStack()
        stack.enter_context(self.watchdog)
        stack.enter_context(self.periodic)
        stack.enter_context(verify.named_damage(self.job.manifest, self.job.data_dir))
        return stack

    def _tasks(self) -> list[Task]:
        if self.lease is None:
            return []
        lease = self.lease

        def beat() -> None:
            lease.check()  # whoever lost the lock must not write for the process that has it
            self.recorder.heartbeat(write=True)

        return [
            Task("lock", RENEW_SECONDS, lease.renew),
            Task("heartbeat", HEARTBEAT_SECONDS, beat),
            Task("metrics", METRICS_SYNC_SECONDS, self.recorder.sync_metrics),
        ]


def _check_finite(result: StepResult) -> None:
    step = result.first_nonfinite_step
    if step is not None:
        raise Diverged(
            f"step {step}: loss or gradients are NaN or infinite: the last checkpoint"
            " is intact; try a lower training.learning_rate, a longer warm-up, or other data"
        )
