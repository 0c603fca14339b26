"""Evaluations on held-out records during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bigbird_ja.model_dir.log_schema import Evaluation
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.train.job import Job
from bigbird_ja.train.watchdog import Watchdog

if TYPE_CHECKING:
    from bigbird_ja.model.forward import Model


class Evaluations:
    """Evaluations on held-out records, every `training.eval_every_steps` steps and at the end.

    Args:
        job: run to evaluate.
        stop: request to stop, which ends an evaluation early.
        watchdog: watchdog to notify after each batch.
    """

    def __init__(self, job: Job, stop: StopRequest, watchdog: Watchdog) -> None:
        self._job, self._stop, self._watchdog = job, stop, watchdog
        self._every = job.config.training.eval_every_steps
        self._total = job.config.training.num_train_steps
        self._evaluated = -1  # The last evaluated step.

    def begin(self, step: int, lines: Sequence[Evaluation]) -> None:
        """Look up the last evaluation on this data set, at or before `step`.

        Args:
            step: step from which training continues.
            lines: records of `eval.jsonl`, or none in a process that does not write the file.
        """
        ours = self._job.manifest.fingerprint
        same = [line["step"] for line in lines if line.get("data_fingerprint") == ours]
        last = max((number for number in same if number <= step), default=-1)
        if self._job.evaluates:
            self._evaluated = self._job.pod.share("evaluated", lambda: last)

    def is_due(self, step: int) -> bool:
        """Return whether an evaluation is due at `step`.

        An evaluation is due at the first finished step at or after each multiple of the interval,
        and at the last step. At step 0 it is due only if the weights come from another model. An
        evaluation that a kill has prevented is due after the restart.
        """
        if not self._job.evaluates or (step == 0 and not self._job.init_from):
            return False
        due = self._total if step >= self._total else step // self._every * self._every
        return (due > 0 or step == 0) and self._evaluated < due

    def find_next_due(self, step: int) -> int:
        """Return the next step after `step` at which an evaluation will be due."""
        if not self._job.evaluates:
            return self._total
        return min((step // self._every + 1) * self._every, self._total)

    def evaluate(self, step: int, forward: Model) -> dict[str, Any] | None:
        """Evaluate, and return the results of `masked_lm.evaluate_model`.

        In a pod each process evaluates its part of the records, and all processes except the writer
        return None. If a stop is requested before the evaluation ends, the result is None, too.
        """
        from bigbird_ja.evaluation import masked_lm

        def poll() -> None:
            if self._stop.is_set():
                self._stop.confirm()
                raise _Abandoned

        def tick() -> None:
            self._watchdog.tick()
            poll()

        job, pod = self._job, self._job.pod
        part = masked_lm.BatchShare(
            pod.index, pod.count, lambda own: pod.collect(f"evaluation {step}", own, poll)
        )
        batches = job.config.training.eval_max_batches
        try:
            result = masked_lm.evaluate_model(
                forward, job.data_dir, job.manifest, max_batches=batches, tick=tick, part=part
            )
        except _Abandoned:
            return None
        self._evaluated = step
        return result


class _Abandoned(Exception):
    """Exception that ends an evaluation after a request to stop."""
