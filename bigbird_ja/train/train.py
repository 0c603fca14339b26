"""Train a run, from its start to its last checkpoint; read this file from top to bottom.

`train` refuses what can be refused, locks MODEL_DIR, and finds the checkpoint to continue from.
`Trainer.run` starts the engine; `Trainer._loop` is the loop, the same for every engine:

    advance -> finite? -> log -> save -> evaluate -> stop?

Saving, heartbeats and the watchdog have threads of their own. In a pod, process 0 writes; the
others follow it. How each end of a run is recorded stands below the loop.
"""

import concurrent.futures
import contextlib
import faulthandler
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bigbird_ja.data.check import named_damage
from bigbird_ja.process import errors
from bigbird_ja.process.classify import classify, mid_run
from bigbird_ja.process.console import waiting
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.process.streams import leave
from bigbird_ja.run.checkpoints import CheckpointStore
from bigbird_ja.run.model import TOKENIZER, check_tokenizer
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.storage.lease import Lease
from bigbird_ja.train.engine import check, make_engine
from bigbird_ja.train.engines.protocol import Engine, StepResult
from bigbird_ja.train.evaluations import Evaluations
from bigbird_ja.train.job import Job, Resumption
from bigbird_ja.train.periodic import Periodic
from bigbird_ja.train.profile import Profile
from bigbird_ja.train.record import Recorder
from bigbird_ja.train.run_dir import RunDir
from bigbird_ja.train.saver import CheckpointSaver
from bigbird_ja.train.threads import in_thread
from bigbird_ja.train.warm_start import FirstValues, load_warm_start
from bigbird_ja.train.watchdog import Watchdog

HEARTBEAT_SECONDS = 15.0
METRICS_SYNC_SECONDS = 60.0
_RECORDING_SECONDS = 8.0  # for the record of an end, where storage may be what hangs
_SAVING_SECONDS = 20.0  # for a save that is under way at a bad end


def train(job: Job, run_dir: RunDir, stop: StopRequest) -> dict[str, Any]:
    """Train or resume to the end; returns the `--json` results.

    Args:
        job: what to train.
        run_dir: MODEL_DIR, opened.
        stop: tells whether a stop was requested.

    Raises:
        CommandError: every other end, recorded in MODEL_DIR once work has begun there; its
            `results` carry `global_step` and `loss`.
    """
    config, pod, deps = job.config, job.pod, job.deps

    def report(event: str, step: int, text: str) -> None:  # of checkpoints that are not used
        deps.log(text)
        run_dir.events.append(event, deps.clock, global_step=step, message=text)

    deps.mark("start-up")
    check(job)
    warm_start = load_warm_start(job, run_dir.is_continued)
    pod.barrier("checked")

    with contextlib.ExitStack() as stack:
        if pod.is_writer:
            lease, scratch = stack.enter_context(run_dir.locked(deps))
            store = CheckpointStore(job.model_dir, scratch, report, deps.mark, run_dir.owned)
            resumption = run_dir.find_resumption(store, config, job.manifest)
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
        if TOKENIZER in run_dir.files:
            check_tokenizer(job.model_dir, job.manifest.tokenizer_sha256)
        pod.barrier("ready")
        trainer = Trainer(job, run_dir, stop, store, scratch, resumption, lease, warm_start)
        return trainer.run()


@dataclass
class Trainer:
    """One process's part of a run, once MODEL_DIR is locked; `job` to `stop` are as of `train`."""

    job: Job
    run_dir: RunDir
    stop: StopRequest
    store: CheckpointStore  # of MODEL_DIR
    scratch: str  # an empty local folder
    resumption: Resumption  # the point at which training continues
    lease: Lease | None  # the lock; None in a process that does not write
    warm_start: FirstValues | None  # replaces the random parameters of a new run

    def __post_init__(self) -> None:
        """Make what the loop needs; nothing is started."""
        job = self.job
        self.config, self.deps, self.pod = job.config, job.deps, job.pod
        self.total = self.config.training.num_train_steps
        self.recorder = Recorder(job, self.run_dir, self.resumption, self.scratch)
        self.saver = CheckpointSaver(
            job, self.store, self.scratch, self._check_may_publish, self._on_saved
        )
        self.watchdog = Watchdog(self.config.training.stall_minutes * 60, self._stalled)
        self.evaluations = Evaluations(job, self.stop, self.watchdog.tick)
        self.periodic = Periodic(self._tasks(), self.deps.log, self.deps.monotonic)
        self.profile = Profile(
            job.profiled,
            self.resumption.step,
            job.engine.name,
            job.model_dir,
            self.scratch if self.pod.is_writer else None,
            self.deps.log,
            lambda **fields: self.recorder.event("profiled", **fields),
        )
        self.logged = self.resumption.step  # the last step that was
        self.is_new = self.resumption.checkpoint is None
        self.has_begun = False  # the engine has accepted the run: its files stay

    def run(self) -> dict[str, Any]:
        """Train, and record the end, whichever it is."""
        # Ends that come from other threads are recorded as this run's from here on.
        self.stop.leave = lambda message: self._leave("interrupted", message)
        self.pod.leave = lambda error: self._leave(error.reason, str(error))
        self.evaluations.begin(self.resumption.step)
        if self.resumption.step >= self.total:
            is_past = self.resumption.step > self.total
            past = f", past training.num_train_steps={self.total:,}" if is_past else ""
            self.deps.log(
                f"{self.job.model_dir}: already at step {self.resumption.step:,}{past}: nothing"
                " left to do (a larger --num_train_steps continues)"
            )
            # A kill may have come before the last evaluation, which is made up for, or before the
            # record of the end. A run of another length keeps its record.
            if is_past or not self.evaluations.is_due(self.total):
                is_new = not is_past and not self.run_dir.is_recorded_as_finished()
                return self._ended("finished", is_new)
        with self._recorded_failure():
            # Several processes stop at a step that they agree on, in the loop.
            stops_now = self.stop.is_set() and self.pod.count == 1
            # The files of a run that continues stay as they are until the engine has accepted it.
            if self.is_new or stops_now:
                self.recorder.started(self.warm_start.record if self.warm_start else None)
            reason = "interrupted" if stops_now else self._train()
        self.stop.answered()
        return self._ended(reason)

    def _train(self) -> str:
        """Start the engine and run the loop; "finished" or "interrupted"."""
        engine = make_engine(self.job, self.resumption, self.warm_start, self.scratch)
        # The damage of a shard that cannot be read is named.
        named = named_damage(self.job.manifest, self.job.data_dir)
        with contextlib.closing(self.recorder):
            # Closed once: each time may wait half a minute for an input that does not end.
            with (
                self.watchdog,
                self.periodic,
                named,
                contextlib.closing(engine),
                contextlib.closing(self.profile),
            ):
                self.deps.mark("compile")
                with waiting("compiling the step, or loading it where it is kept", self.deps.log):
                    engine.begin()
                self.has_begun = True
                if not self.is_new:
                    self.recorder.started(None)
                self.recorder.open_board()
                self.deps.mark("session")
                self.watchdog.tick()
                reason = self._loop(engine)
                self.recorder.heartbeat(write=True, state="saving")
                self.saver.wait()
            self.recorder.sync()
        return reason

    # The loop.

    def _loop(self, engine: Engine) -> str:
        """Train from the step that is restored to the last one; "finished" or "interrupted".

        Raises:
            Diverged: a loss or gradient is not finite.
            CommandError: input, device, saving or the lock failed.
        """
        step = start = self.resumption.step
        self.saver.begin(start)
        self._evaluate_if_due(start, engine)
        self.recorder.began()
        self.profile.at(start)
        self.deps.mark("step", start)
        while step < self.total and not self._stops(step):
            # Advance: by one step at least, and not beyond the next save, evaluation or stop.
            parts = self.saver, self.evaluations, self.profile
            limit = min(part.next_due(step) for part in parts)
            limit = self.pod.next_limit(step, limit, engine.ahead)
            result = engine.advance(limit)
            if result.step >= limit or self.saver.is_due(result.step):
                result = result.then(engine.settle())  # the state is needed
            # Finite? Then log it.
            step = self._finish(result)
            self.profile.at(step)
            # Save, in the background.
            if step >= self.total or self.saver.is_due(step):
                self._save(step, engine)
            # Evaluate.
            self._evaluate_if_due(step, engine)
        if step >= self.total and not self.evaluations.is_due(step):
            return "finished"
        # A stop was requested: save the finished steps.
        if step > start:
            step = self._finish(engine.settle())
            self._save(step, engine)
        self.saver.wait()
        self.evaluations.join()
        return "interrupted"

    def _finish(self, result: StepResult) -> int:
        """Check that finished steps are finite, and log those that are due; the last of them."""
        if (bad := result.first_nonfinite_step) is not None:
            raise errors.Diverged(
                f"step {bad}: loss or gradients are NaN or infinite: the last checkpoint is intact;"
                " try a lower training.learning_rate, a longer warm-up, or other data"
            )
        last, every = result.step, self.config.training.log_every_steps
        self.recorder.stepped(last)
        self.watchdog.tick()
        self.saver.poll()  # raises what a save in the background failed with
        self.periodic.poll()  # raises where the lock was lost
        self.deps.mark("step", last)
        is_end = last >= self.total or self._stops(last)
        for step in sorted(result.metrics):
            if step > self.logged and (step % every == 0 or (is_end and step == last)):
                self.recorder.logged(step, dict(result.metrics[step]))
                self.logged = step
        return last

    def _stops(self, step: int) -> bool:
        """Tell whether training stops at `step`, if that was requested."""
        is_requested = self.stop.is_set()
        if is_requested:
            self.stop.answered()
        return self.pod.stops_at(step, is_requested)

    def _evaluate_if_due(self, step: int, engine: Engine) -> None:
        """Evaluate on held-out records.

        If a stop is requested meanwhile, it is left unfinished and made after the restart.
        """
        if self.evaluations.is_due(step) and not self._stops(step):
            results = self.evaluations.evaluate(step, engine.forward())
            if results is not None:
                self.recorder.evaluated(step, results)

    def _save(self, step: int, engine: Engine) -> None:
        """Take a snapshot of the state, and save it in the background."""
        if step == self.saver.step:
            return
        self.recorder.heartbeat(state="saving")
        self.saver.save(self.recorder.sidecar(), engine.snapshot)
        self.recorder.progress.leave_out()
        self.watchdog.tick()

    def _check_may_publish(self) -> None:
        """In the saver's thread: raise where a checkpoint must not become the latest."""
        if self.lease is not None:
            self.lease.check()
        self.job.guard.check()

    def _on_saved(self, step: int, seconds: float) -> None:
        """In the saver's thread: record that a checkpoint is the latest."""
        self.recorder.heartbeat(state="training")
        self.recorder.event("saved", global_step=step, seconds=round(seconds, 3))
        self.recorder.sync()

    # Beside the loop.

    def _tasks(self) -> dict[str, tuple[float, Callable[[], None]]]:
        """List what the writer does every few seconds."""
        if self.lease is None:
            return {}
        lease = self.lease

        def beat() -> None:
            lease.check()  # whoever lost the lock must not write for the process that has it
            self.recorder.heartbeat(write=True)

        return {
            "heartbeat": (HEARTBEAT_SECONDS, beat),
            "metrics": (METRICS_SYNC_SECONDS, self.recorder.sync_metrics),
        }

    # The ends of a run: each is recorded once, and becomes the command's results or its error.

    def _ended(self, reason: str, is_new: bool = True) -> dict[str, Any]:
        """Record that the run is finished or interrupted, unless it is recorded already.

        In a pod the writer decides which of the two it is.

        Raises:
            Interrupted: a stop was requested.
        """
        reason = self.pod.share("end", lambda: reason)
        if is_new:
            self.recorder.ended(reason, None)
        self.pod.finish()
        if reason == "interrupted":
            step, model_dir = self.recorder.step, self.job.model_dir
            what = f"saved at step {step} in {model_dir}: run the same command again to continue"
            if not step:
                what = "no step was made, so there is nothing to continue"
            stopped = errors.Interrupted(f"{self.stop.name or 'asked by process 0'}: {what}")
            stopped.results = self.recorder.results(reason)
            raise stopped
        self._log_next_command()
        return self.recorder.results(reason)

    @contextlib.contextmanager
    def _recorded_failure(self) -> Iterator[None]:
        """Record an exception and re-raise it as CommandError.

        If the engine refuses a run before its first step, nothing is recorded, and the files of a
        new run are removed.
        """
        try:
            with mid_run():
                yield
        except BaseException as error:
            known = classify(error) or self.pod.explain(error)
            if isinstance(known, errors.Diverged):  # a save under way is of a step before
                self.saver.give_time(_SAVING_SECONDS)
            reason = known.reason if known else "bug"
            self.pod.fail(reason, str(known or error))
            refusals = (errors.BadInput, *([errors.OutOfMemory] if self.is_new else []))
            if isinstance(known, refusals) and not self.has_begun:
                if self.is_new and self.pod.is_writer:
                    self.run_dir.remove_new_files()
                raise known from error
            self.recorder.ended(reason, known or error)
            if known is None:
                raise
            known.results = self.recorder.results(reason)
            raise known from error

    def _stalled(self, silence: float) -> None:
        """In the watchdog's thread: print the stacks of all threads and end the process."""
        sys.stderr.flush()
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self._leave(
            "stalled",
            f"no step finished for {silence / 60:.1f} minutes (training.stall_minutes): stopped;"
            " the stacks of all threads are above; run the same command again",
        )

    def _leave(self, reason: str, message: str) -> None:
        """End the process at once, from any thread, with a bad end recorded."""
        self.pod.fail(reason, message)
        if self.pod.count > 1:  # another process has failed: a save may still be completed
            self.saver.give_time(_SAVING_SECONDS)
        error = errors.of_reason(reason, message)
        recording = in_thread("record", lambda: self.recorder.ended(reason, error))
        concurrent.futures.wait([recording], _RECORDING_SECONDS)
        error.results = self.recorder.results(reason)
        leave(error)

    def _log_next_command(self) -> None:
        """Log where the model is, its loss, and the command that comes next."""
        job, loss = self.job, self.recorder.loss
        at = f"step {self.recorder.step:,}" + ("" if loss is None else f", loss {loss:.4f}")
        data, model = shlex.quote(job.data_dir), shlex.quote(job.model_dir)
        if job.evaluates or not job.manifest.eval.sequences:
            command = f"export --model_dir {model} --output_dir NEW_FOLDER"
        else:
            command = f"evaluate --model_dir {model} --data_dir {data}"
        self.deps.log(f"finished: {at}, in {job.model_dir}; next: bigbird-ja {command}")
