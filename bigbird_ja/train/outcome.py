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
from bigbird_ja.train.threads import run_in_thread

# Maximum seconds for recording an exit. If the storage has failed, the recording may hang.
_RECORDING_SECONDS = 8.0
# Maximum seconds to wait for a save that is in progress when the run fails.
_SAVING_SECONDS = 20.0


@dataclass(eq=False)
class Outcome:
    """Outcome of a run (finished, interrupted or failed)."""

    job: Job
    model_dir: ModelDir
    stop: StopRequest
    logger: RunLogger
    saver: CheckpointSaver

    def make_result(self, reason: str, is_new: bool = True) -> PretrainResult:
        """Return the results of a finished run, or raise for an interrupted one.

        In a pod the writer decides whether the run is finished or interrupted.

        Args:
            reason: "finished" or "interrupted", in this process.
            is_new: whether to record the outcome.

        Raises:
            Interrupted: A stop was requested.
        """
        pod, logger = self.job.pod, self.logger
        reason = pod.share("end", lambda: reason)
        if is_new:
            logger.record_end(reason, None)
        pod.finish()
        if reason == "interrupted":
            step, model_dir = logger.step, self.model_dir.path
            what = f"saved at step {step} in {model_dir}: rerun the same command to continue"
            if not step:
                what = "no step was finished, so there is nothing to continue"
            stopped = errors.Interrupted(f"{self.stop.name or 'asked by process 0'}: {what}")
            stopped.results = asdict(logger.make_results(reason))
            raise stopped
        loss = "" if logger.loss is None else f", loss {logger.loss:.4f}"
        self.job.deps.log(f"finished: step {logger.step:,}{loss}, in {self.model_dir.path}")
        return logger.make_results(reason)

    @contextlib.contextmanager
    def record_failures(self) -> Iterator[None]:
        """Context manager: record an exception, and convert a known one to a CommandError."""
        pod = self.job.pod
        try:
            with convert_refusals():
                yield
        except BaseException as error:
            known = classify(error) or pod.explain(error)
            # A save in progress is from a step before the divergence, so it is completed.
            if isinstance(known, errors.Diverged):
                self._complete_save()
            reason = known.reason if known else "bug"
            pod.fail(reason, str(known or error))
            self.logger.record_end(reason, known or error)
            if known is None:
                raise
            known.results = asdict(self.logger.make_results(reason))
            raise known from error

    def record_exit(self, error: errors.CommandError) -> None:
        """Record the error that ends the process, from any thread."""
        # If another process of the pod has failed, this process can still complete its save.
        if self.job.pod.count > 1:
            self._complete_save()

        def record() -> None:
            self.logger.record_end(error.reason, error)

        concurrent.futures.wait([run_in_thread("record", record)], _RECORDING_SECONDS)
        error.results = asdict(self.logger.make_results(error.reason))

    def _complete_save(self) -> None:
        """Wait some seconds for a save in progress, record it, and ignore its failure."""
        self.saver.give_time(_SAVING_SECONDS)
        with contextlib.suppress(Exception):
            self.logger.note_save(self.saver.poll())
