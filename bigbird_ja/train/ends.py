"""The ends of a run: recorded, logged, and turned into the command's results or error."""

from __future__ import annotations

import contextlib
import faulthandler
import shlex
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bigbird_ja.process.errors import (
    BadInput,
    Diverged,
    Interrupted,
    OutOfMemory,
    StorageError,
    classify,
    mid_run,
    of_reason,
)
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.process.streams import leave
from bigbird_ja.train.job import Job
from bigbird_ja.train.record import Recorder
from bigbird_ja.train.run_dir import RunDir
from bigbird_ja.train.saving import CheckpointSaver

_RECORDING_SECONDS = 8.0
_SAVING_SECONDS = 20.0


@dataclass
class Ends:
    """How this process's part of a run may end, from any of its threads."""

    job: Job
    run_dir: RunDir
    stop: StopRequest
    recorder: Recorder
    saver: CheckpointSaver
    has_stepped: bool = False  # whether a step was tried

    @contextlib.contextmanager
    def recorded_failure(self, is_new: bool = False) -> Iterator[None]:
        """Records whatever goes wrong within, and raises it as the end that it is. What the engine
        refuses before the first step of a new run leaves nothing behind instead."""
        try:
            with mid_run():
                yield
        except BaseException as error:
            known = classify(error) or self.job.pod.explain(error)
            if isinstance(known, Diverged):  # a save under way is of a step before
                self.saver.give_time(_SAVING_SECONDS)
            reason = known.reason if known else "bug"
            self.job.pod.fail(reason, str(known or error))
            is_untouched = is_new and not self.has_stepped
            if isinstance(known, (BadInput, OutOfMemory)) and is_untouched:
                if self.job.pod.is_writer:
                    self.run_dir.remove_new_files()
                raise known from error
            self.recorder.ended(reason, known or error)
            if known is None:
                raise
            known.results = self.results(reason)
            raise known from error

    def reached(self, reason: str, is_new: bool = True) -> dict[str, Any]:
        """Records that a run is finished or interrupted, unless it is recorded already; returns its
        results, or raises Interrupted. In a pod the writer decides which of the two it is."""
        reason = self.job.pod.share("end", lambda: reason)
        if is_new:
            self.recorder.ended(reason, None)
        self.job.pod.finish()
        if reason == "interrupted":
            step, model_dir = self.recorder.step, self.job.model_dir
            what = f"saved at step {step} in {model_dir}: run the same command again to continue"
            if not step:
                what = "no step was made, so there is nothing to continue"
            stopped = Interrupted(f"{self.stop.name or 'asked by process 0'}: {what}")
            stopped.results = self.results(reason)
            raise stopped
        self._log_next_command()
        return self.results(reason)

    def results(self, reason: str) -> dict[str, Any]:
        """The `--json` results."""
        stalled = round(self.saver.stalled_seconds, 3)
        return {**self.recorder.totals(), "stalled_by_saving_seconds": stalled, "reason": reason}

    def stalled(self, silence: float) -> None:
        """In the watchdog's thread: prints the stacks of all threads and ends the process."""
        sys.stderr.flush()
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self.leave(
            "stalled",
            f"no step finished for {silence / 60:.1f} minutes (training.stall_minutes): stopped;"
            " the stacks of all threads are above; run the same command again",
        )

    def leave(self, reason: str, message: str) -> None:
        """Ends the process from any thread, at once. Where another process of a pod has failed, a
        save that is under way gets some seconds."""
        self.job.pod.fail(reason, message)
        if self.job.pod.count > 1:
            self.saver.give_time(_SAVING_SECONDS)
        recording = threading.Thread(
            target=self.recorder.ended, args=(reason, StorageError(message)), daemon=True
        )
        recording.start()
        recording.join(_RECORDING_SECONDS)
        error = of_reason(reason, message)
        error.results = self.results(reason)
        leave(error, self.job.deps.leave)

    def _log_next_command(self) -> None:
        """Where the model is, its loss, and the command that comes next."""
        job, loss = self.job, self.recorder.loss
        at = f"step {self.recorder.step:,}" + ("" if loss is None else f", loss {loss:.4f}")
        data, model = shlex.quote(job.data_dir), shlex.quote(job.model_dir)
        if job.evaluates or not job.manifest.eval.sequences:
            command = f"export --model_dir {model} --output_dir NEW_FOLDER"
        else:
            command = f"evaluate --model_dir {model} --data_dir {data}"
        job.deps.log(f"finished: {at}, in {job.model_dir}; next: bigbird-ja {command}")
