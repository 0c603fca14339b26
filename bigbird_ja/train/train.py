"""Training of a run, from its start to its last checkpoint.

`train` checks the run, locks MODEL_DIR, and finds the checkpoint to continue from. `Trainer.run`
starts the engine. `Trainer._run_loop` is the training loop, which is the same for all engines. Each
iteration runs some steps, checks that their losses and gradients are finite, and logs, saves and
evaluates if due. The loop ends after the last step, or after a request to stop.

Saving, heartbeats and the watchdog run in their own threads. The loop polls the first two for
failures. In a pod, process 0 writes the files, and the other processes only train. The module
`outcome` records how the run ended.
"""

import contextlib
from collections.abc import Mapping

import numpy as np

from bigbird_ja.errors import Diverged
from bigbird_ja.model_dir.folder import ModelDir, Resumption
from bigbird_ja.model_dir.model import TOKENIZER, check_tokenizer
from bigbird_ja.process.console import show_waiting
from bigbird_ja.process.extras import require
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.train.engines.build import check_run, make_engine
from bigbird_ja.train.engines.protocol import Engine, StepResult
from bigbird_ja.train.evaluations import Evaluations
from bigbird_ja.train.exit import ProcessExit
from bigbird_ja.train.job import Job, PretrainResult
from bigbird_ja.train.outcome import Outcome
from bigbird_ja.train.periodic import Periodic
from bigbird_ja.train.profile import Profile
from bigbird_ja.train.run_logger import RunLogger
from bigbird_ja.train.saver import CheckpointSaver
from bigbird_ja.train.warm_start import InitialWeights, load_warm_start
from bigbird_ja.train.watchdog import Watchdog

# Seconds between two writes of heartbeat.json.
HEARTBEAT_SECONDS = 15.0


def train(
    job: Job, model_dir: ModelDir, stop: StopRequest, exit_process: ProcessExit
) -> PretrainResult:
    """Train or resume a run up to its last step, and return the run's totals.

    Args:
        job: the run.
        model_dir: MODEL_DIR, not yet locked.
        stop: request to stop.
        exit_process: callback that ends the process if its main thread is stuck.

    Raises:
        CommandError: The run is not finished. The outcome is recorded in MODEL_DIR, if the run has
            begun there. The error's attribute `results` contains `global_step` and `loss`.
    """
    pod, deps = job.pod, job.deps
    check_run(job.config, job.manifest, job.engine)
    if job.wandb:
        require("wandb")
    warm_start = load_warm_start(job, model_dir)
    pod.barrier("checked")
    with contextlib.ExitStack() as stack:
        if pod.is_writer:
            stack.enter_context(model_dir.lock())
            resumption = model_dir.find_resumption(
                job.config, job.manifest, job.manifest.fingerprint
            )
            if resumption.checkpoint is not None:
                deps.log(f"{model_dir.path}: checkpoint {resumption.step} verified")
            assert model_dir.lease is not None
            owner, interruptions = model_dir.lease.owner.id, resumption.interruptions
            start = owner, interruptions, resumption.next_batch, resumption.step
            pod.share("start", lambda: start)
        else:
            owner, interruptions, next_batch, step = pod.share("start", tuple)
            stack.enter_context(model_dir.follow_writer(owner))
            # Each process verifies the checkpoint.
            checkpoint = model_dir.checkpoints.fetch(step) if step else None
            resumption = Resumption(checkpoint, interruptions, next_batch)
        if TOKENIZER in model_dir.files:
            check_tokenizer(model_dir.path, job.manifest.tokenizer_sha256)
        pod.barrier("ready")
        return Trainer(job, model_dir, stop, exit_process, resumption, warm_start).run()


class Trainer:
    """One process's part of a run, once MODEL_DIR is locked.

    Args:
        job, model_dir, stop, exit_process: arguments of `train`.
        resumption: point at which training continues.
        warm_start: initial weights of a new run from another model, or None.
    """

    def __init__(
        self,
        job: Job,
        model_dir: ModelDir,
        stop: StopRequest,
        exit_process: ProcessExit,
        resumption: Resumption,
        warm_start: InitialWeights | None,
    ) -> None:
        """Construct the objects that the loop uses, without starting them."""
        self.job, self.model_dir, self.stop = job, model_dir, stop
        self.resumption, self.warm_start = resumption, warm_start
        self.config, self.deps, self.pod = job.config, job.deps, job.pod
        self.total = self.config.training.num_train_steps
        self.logged = resumption.step  # The last logged step.
        self.logger = RunLogger(job, model_dir, resumption)
        self.saver = CheckpointSaver(job, model_dir)
        self.watchdog = Watchdog(self.config.training.stall_minutes * 60, exit_process)
        self.evaluations = Evaluations(job, stop, self.watchdog)
        self.periodic = Periodic(self.logger.write_heartbeat, HEARTBEAT_SECONDS, self.deps.log)
        self.profile = Profile(job, model_dir, resumption.step, self.logger)
        self.outcome = Outcome(job, model_dir, stop, self.logger, self.saver)
        exit_process.add_callback(self.outcome.record_exit)

    def run(self) -> PretrainResult:
        """Train, and record the outcome."""
        step = self.resumption.step
        self.evaluations.begin(step, self.model_dir.evaluations)
        if step >= self.total:
            is_past = step > self.total
            past = f", past training.num_train_steps={self.total:,}" if is_past else ""
            self.deps.log(
                f"{self.model_dir.path} is already at step {step:,}{past}: nothing left to do (a"
                " larger `num_train_steps` continues the run)"
            )
            # If a kill came before the last evaluation, the evaluation is due now. If a kill came
            # before the outcome was recorded, the outcome is recorded now. If only the length of
            # the run was reduced, the recorded outcome is kept.
            if is_past or not self.evaluations.is_due(self.total):
                is_new = not is_past and not self.model_dir.is_recorded_as_finished()
                return self.outcome.make_result("finished", is_new)
        with self.outcome.record_failures():
            # A single process can stop before the loop. Several processes must first agree on a
            # step, which they do in the loop.
            stops_now = self.stop.is_set() and self.pod.count == 1
            reason = "interrupted" if stops_now else self._train()
        self.stop.confirm()
        return self.outcome.make_result(reason)

    def _train(self) -> str:
        """Start the engine, run the loop, and return "finished" or "interrupted"."""
        initial: Mapping[str, np.ndarray] = self.warm_start.values if self.warm_start else {}
        engine = make_engine(
            self.config,
            self.job.manifest,
            self.job.data_dir,
            self.job.engine,
            self.model_dir,
            self.resumption,
            initial,
            self.deps.log,
        )
        with contextlib.closing(self.logger):
            # Only this context closes the engine, as closing may wait long for a stuck input.
            with (
                self.watchdog,
                self.periodic,
                contextlib.closing(engine),
                contextlib.closing(self.profile),
            ):
                began = self.deps.monotonic()
                with show_waiting("compiling the step, or loading a compiled one", self.deps.log):
                    engine.begin()
                seconds = self.deps.monotonic() - began
                self.deps.log(f"the engine began in {seconds:.0f} s, compilation included")
                self.logger.update_heartbeat(compile_seconds=round(seconds, 1))
                self.logger.record_start(self.warm_start.record if self.warm_start else None)
                self.watchdog.tick()
                reason = self._run_loop(engine)
                self.logger.update_heartbeat(write=True, state="saving")
                self.logger.note_save(self.saver.wait())
            self.logger.sync()
        return reason

    def _run_loop(self, engine: Engine) -> str:
        """Train from the restored step to the last one, and return "finished" or "interrupted".

        Raises:
            Diverged: A loss or gradient is not finite.
            CommandError: Input, device, saving or the lock failed.
        """
        step = start = self.resumption.step
        self.saver.begin(start)
        self._evaluate_if_due(start, engine)
        self.logger.note_first_step()
        self.profile.update(start)
        while step < self.total and not self._is_stopping(step):
            # Advance by at least one step, but not beyond the step of the next save, evaluation,
            # change of the profile, or stop.
            parts = self.saver, self.evaluations, self.profile
            limit = min(part.find_next_due(step) for part in parts)
            limit = self.pod.choose_limit(step, limit, engine.ahead)
            result = engine.advance(limit)
            # Before a save or an evaluation reads the state, all dispatched steps must be finished.
            if result.step >= limit or self.saver.is_due(result.step):
                result = result.extend(engine.settle())
            step = self._finish(result)
            self.profile.update(step)
            if step >= self.total or self.saver.is_due(step):
                self._save(step, engine)
            self._evaluate_if_due(step, engine)
        if step >= self.total and not self.evaluations.is_due(step):
            return "finished"
        # After a request to stop, the finished steps are saved.
        if step > start:
            step = self._finish(engine.settle())
            self._save(step, engine)
        return "interrupted"

    def _finish(self, result: StepResult) -> int:
        """Check that the finished steps have finite losses and gradients, and log them if due.

        The result is the last finished step.

        Raises:
            Diverged: A loss or gradient is not finite.
            CommandError: A save in the background failed, or the lock was lost.
        """
        if (bad := result.first_nonfinite_step) is not None:
            raise Diverged(
                f"loss or gradients of step {bad} are NaN or infinite (the last checkpoint is"
                " intact): try a lower training.learning_rate, a longer warm-up, or other data"
            )
        last, every = result.step, self.config.training.log_every_steps
        self.logger.note_step(last)
        self.watchdog.tick()
        self.logger.note_save(self.saver.poll())
        self.periodic.poll()
        is_end = last >= self.total or self._is_stopping(last)
        for step in sorted(result.metrics):
            if step > self.logged and (step % every == 0 or (is_end and step == last)):
                self.logger.record_metrics(step, dict(result.metrics[step]))
                self.logged = step
        return last

    def _is_stopping(self, step: int) -> bool:
        """Return whether training stops at `step` because of a request."""
        is_requested = self.stop.is_set()
        if is_requested:
            self.stop.confirm()
        return self.pod.stops_at(step, is_requested)

    def _evaluate_if_due(self, step: int, engine: Engine) -> None:
        """Evaluate on held-out records, if an evaluation is due.

        A request to stop ends the evaluation, which is repeated after the restart.
        """
        if self.evaluations.is_due(step) and not self._is_stopping(step):
            results = self.evaluations.evaluate(step, engine.forward())
            if results is not None:
                self.logger.record_evaluation(step, results)

    def _save(self, step: int, engine: Engine) -> None:
        """Take a snapshot of the state, and save it in the background."""
        if step == self.saver.step:
            return
        self.logger.note_save(self.saver.wait())
        self.logger.update_heartbeat(state="saving")
        self.saver.save(self.logger.make_metadata(), engine.snapshot)
        self.logger.progress.leave_out()
        self.watchdog.tick()
