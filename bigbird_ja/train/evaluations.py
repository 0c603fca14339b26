"""Evaluate while a run trains: decide when, and leave off where someone asks to stop."""

import threading
from collections.abc import Callable
from typing import Any

from bigbird_ja.evaluation.forward import Model
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.run import log as run_log
from bigbird_ja.train.start import Job

_POLL_SECONDS = 0.1


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
        self._thread: threading.Thread | None = None

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

        That is at the first step reached since a multiple of the interval, and at the last step,
        where it is not evaluated yet; at step 0 only where the weights come from another model.
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
        """Evaluate, and return the results as `masked_lm.evaluate_model` has them.

        None where someone asked to stop before they were complete (the last batch may still be
        computed: see `join`), and in a process that does not write. In a pod each process evaluates
        its part.
        """
        outcome: dict[str, Any] = {}
        self._job.deps.mark("evaluate")
        self._thread = threading.Thread(
            target=self._run, args=(step, forward, outcome), name="evaluation", daemon=True
        )
        self._thread.start()
        while self._thread.is_alive():
            self._thread.join(_POLL_SECONDS)
            if self._stop.is_set():
                return None
        if "error" in outcome:
            raise outcome["error"]
        if "result" not in outcome:
            return None
        self._evaluated = step
        result: dict[str, Any] | None = outcome["result"]
        return result

    def join(self) -> None:
        """Wait for a batch that is still being computed."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, step: int, forward: Model, outcome: dict[str, Any]) -> None:
        from bigbird_ja.evaluation import masked_lm

        def poll() -> None:
            if self._stop.is_set():
                raise _Abandoned

        def tick() -> None:
            self._tick()
            poll()

        job, pod = self._job, self._job.pod
        part = masked_lm.BatchShare(
            pod.index, pod.count, lambda own: pod.collect(f"evaluation {step}", own, poll)
        )
        most = job.config.training.eval_max_batches
        try:
            result = masked_lm.evaluate_model(
                forward, job.data_dir, job.manifest, max_batches=most, tick=tick, part=part
            )
            if result is not None:
                masked_lm.write_tensorboard(job.model_dir, step, result, job.deps.clock())
            outcome["result"] = result
        except _Abandoned:
            pass
        except BaseException as error:
            outcome["error"] = error


class _Abandoned(Exception):
    """Someone asked to stop."""
