"""The ends of a run: recorded, said, and turned into what the caller is given."""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
from collections.abc import Iterator
from typing import Any

from bigbird_ja.process.errors import (
    STATUS_OF_REASON,
    BadInput,
    CommandError,
    Interrupted,
    OutOfMemory,
    StorageError,
    classify,
    telling_line,
)
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.process.streams import write_results
from bigbird_ja.train.beginning import Beginning
from bigbird_ja.train.recorder import Recorder
from bigbird_ja.train.request import Request
from bigbird_ja.train.saving import CheckpointSaver
from bigbird_ja.train.watchdog import dump_stacks

_LAST_WORDS_SECONDS = 8.0
_SAVE_SECONDS = 20.0


class Ends:
    """How this process's part of a run may end, from any of its threads."""

    def __init__(
        self, request: Request, stop: StopRequest, recorder: Recorder, saver: CheckpointSaver
    ) -> None:
        self._request, self._around, self._pod = request, request.surroundings, request.pod
        self._stop, self._recorder, self._saver = stop, recorder, saver

    @contextlib.contextmanager
    def recorded_failure(self, beginning: Beginning) -> Iterator[None]:
        """Whatever goes wrong within is recorded, and raised as the end that it is."""
        try:
            yield
        except BaseException as error:
            known = _end_of(error) or self._pod.explain(error)
            self._pod.fail(known.reason if known else "bug", str(known or error))
            if isinstance(known, (BadInput, OutOfMemory)) and beginning.is_untouched():
                beginning.take_back()
                raise known from error
            self._recorder.ended(known.reason if known else "bug", known or error)
            if known is None:
                raise
            known.results = self.results(known.reason)
            raise known from error

    def reached(self, reason: str, is_new: bool = True) -> dict[str, Any]:
        """Records the end of a run that came to one; not again where it is not `is_new`. Of
        processes that hear of a request to stop at different instants the writer decides."""
        reason = self._pod.share("end", lambda: reason)
        if is_new:
            self._recorder.ended(reason, None)
        self._pod.finish()
        if reason == "interrupted":
            step, model_dir = self._recorder.step, self._request.model_dir
            what = f"saved at step {step} in {model_dir}: run the same command again to continue"
            if not step:
                what = "no step was made, so there is nothing to continue"
            stopped = Interrupted(f"{self._stop.name or 'asked by process 0'}: {what}")
            stopped.results = self.results(reason)
            raise stopped
        self.say_what_next()
        return self.results(reason)

    def results(self, reason: str) -> dict[str, Any]:
        """The `--json` results."""
        stalled = round(self._saver.stalled_seconds, 3)
        return {**self._recorder.totals(), "stalled_by_saving_seconds": stalled, "reason": reason}

    def stalled(self, silence: float) -> None:
        """In the watchdog's thread: last words, then out."""
        dump_stacks(sys.stderr)
        self.leave(
            "stalled",
            f"no step finished for {silence / 60:.1f} minutes (training.stall_minutes): stopped;"
            " the stacks of all threads are above; run the same command again",
        )

    def leave(self, reason: str, message: str) -> None:
        """Ends the process from any thread, at once; only a save that is under way is given some
        time, where another process of a pod has failed."""
        self._pod.fail(reason, message)
        if self._pod.count > 1:
            self._saver.give_time(_SAVE_SECONDS)
        words = threading.Thread(
            target=self._recorder.ended, args=(reason, StorageError(message)), daemon=True
        )
        words.start()
        words.join(_LAST_WORDS_SECONDS)
        with contextlib.suppress(OSError, ValueError):
            print(f"bigbird-ja: {message}", file=sys.stderr, flush=True)
        if self._request.json:
            write_results({**self.results(reason), "error": message})
        self._around.leave(STATUS_OF_REASON[reason])

    def say_what_next(self) -> None:
        """Where the model is, how good, and the command that comes next."""
        request, loss = self._request, self._recorder.loss
        at = f"step {self._recorder.step:,}" + ("" if loss is None else f", loss {loss:.4f}")
        data, model = shlex.quote(request.data_dir), shlex.quote(request.model_dir)
        if request.evaluates or not request.manifest.eval.sequences:
            command = f"export --model_dir {model} --output_dir NEW_FOLDER"
        else:
            command = f"evaluate --model_dir {model} --data_dir {data}"
        self._around.log(f"finished: {at}, in {request.model_dir}; next: bigbird-ja {command}")


def _end_of(error: BaseException) -> CommandError | None:
    """As `errors.classify`, but what was permitted at the start and is refused or gone in mid run
    is storage failing, not bad input."""
    if isinstance(error, (PermissionError, FileNotFoundError)):
        what = error.strerror or "refused"
        return StorageError(f"{error.filename or error}: {what} in mid run: run again")
    if type(error).__name__ in ("PermissionDeniedError", "NotFoundError"):
        return StorageError(f"refused in mid run: {telling_line(error)}: run again")
    return classify(error)
