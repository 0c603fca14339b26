"""Outcome of a run, recorded once, and returned as results or raised as an error."""

import concurrent.futures
import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from bigbird_ja import errors
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.process.classify import classify, convert_refusals
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.train.job import Job, PretrainResult
from bigbird_ja.train.run_logger import RunLogger
from bigbird_ja.train.saver import CheckpointSaver
from bigbird_ja.train.threads import in_thread

# Maximum time for recording an exit, as storage may be the reason for it.
_RECORDING_SECONDS = 8.0
# Maximum wait for a save that is under way at a failure.
_SAVING_SECONDS = 20.0


@dataclass(eq=False)
class Outcome:
    """Outcome of a run, which is finished, interrupted or failed."""

    job: Job
    model_dir: ModelDir
    stop: StopRequest
    logger: RunLogger
    saver: CheckpointSaver

    def done(self, reason: str, is_new: bool = True) -> PretrainResult:
        """Return the results of a run that is finished or interrupted.

        In a pod the writer decides which of the two it is.

        Args:
            reason: "finished" or "interrupted", in this process.
            is_new: whether the outcome is still to be recorded.

        Raises:
            Interrupted: A stop was requested.
        """
        pod, logger = self.job.pod, self.logger
        reason = pod.share("end", lambda: reason)
        if is_new:
            logger.ended(reason, None)
        pod.finish()
        if reason == "interrupted":
            step, model_dir = logger.step, self.model_dir.path
            what = f"saved at step {step} in {model_dir}: rerun the same command to continue"
            if not step:
                what = "no step was made, so there is nothing to continue"
            stopped = errors.Interrupted(f"{self.stop.name or 'asked by process 0'}: {what}")
            stopped.results = asdict(logger.results(reason))
            raise stopped
        loss = "" if logger.loss is None else f", loss {logger.loss:.4f}"
        self.job.deps.log(f"finished: step {logger.step:,}{loss}, in {self.model_dir.path}")
        return logger.results(reason)

    @contextlib.contextmanager
    def failures_recorded(self) -> Iterator[None]:
        """Record an exception of the block, and raise it as a CommandError."""
        pod = self.job.pod
        try:
            with convert_refusals():
                yield
        except BaseException as error:
            known = classify(error) or pod.explain(error)
            if isinstance(known, errors.Diverged):  # A save under way is of an earlier step.
                self._complete_save()
            reason = known.reason if known else "bug"
            pod.fail(reason, str(known or error))
            self.logger.ended(reason, known or error)
            if known is None:
                raise
            known.results = asdict(self.logger.results(reason))
            raise known from error

    def record_exit(self, error: errors.CommandError) -> None:
        """Record an error with which the process is about to end, in any thread."""
        # If another process has failed, a save may still be completed.
        if self.job.pod.count > 1:
            self._complete_save()

        def record() -> None:
            self.logger.ended(error.reason, error)

        concurrent.futures.wait([in_thread("record", record)], _RECORDING_SECONDS)
        error.results = asdict(self.logger.results(error.reason))

    def _complete_save(self) -> None:
        """Wait some seconds for a save under way, record it, and ignore its failure."""
        self.saver.give_time(_SAVING_SECONDS)
        with contextlib.suppress(Exception):
            self.logger.saved(self.saver.poll())
