"""Training, from this process's first step to its last: one order of things for every engine.

    advance -> finite? -> log -> save -> evaluate -> stop?

What goes on beside it (saving, heartbeats, the watchdog) has threads of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bigbird_ja.process.errors import Diverged
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.run.checkpoints import Meta
from bigbird_ja.settings.values import config_fingerprint
from bigbird_ja.train.engines import Engine, Finished
from bigbird_ja.train.evaluations import Evaluations
from bigbird_ja.train.housekeeping import Housekeeping
from bigbird_ja.train.profiling import Profiler
from bigbird_ja.train.recorder import Recorder
from bigbird_ja.train.request import Request
from bigbird_ja.train.saving import CheckpointSaver, SaveSchedule
from bigbird_ja.train.watchdog import Watchdog


@dataclass
class Loop:
    """Trains; see the module."""

    request: Request
    engine: Engine
    stop: StopRequest
    recorder: Recorder
    schedule: SaveSchedule
    saver: CheckpointSaver
    evaluations: Evaluations
    profiler: Profiler | None
    watchdog: Watchdog
    chores: Housekeeping

    _start: int = field(init=False, default=0)
    _saved: int = field(init=False, default=0)  # the last step that was
    _logged: int = field(init=False, default=0)

    def run(self, start: int) -> str:
        """Trains from step `start` to `training.num_train_steps`.

        Returns:
            "finished", or "interrupted" where someone asked to stop.

        Raises:
            Diverged: a loss or gradient is not finite.
            CommandError: input, device, saving or the lock failed.
        """
        step = self._start = self._saved = self._logged = start
        self.evaluations.begin(start)
        if self.evaluations.is_due(start) and not self._is_over(start):
            self._evaluate(start)
        self.recorder.began()
        self._mark("step")
        while not self._is_over(step):
            done = self._advance(step)
            step = done.step
            self._stepped(step)
            self._log(done)
            if self._is_save_due(step):
                self._save(step)
            if self.evaluations.is_due(step) and not self._is_over(step):
                self._evaluate(step)
            if self._is_last(step):
                if self.evaluations.is_due(step):  # someone asked to stop before it was made
                    break
                return "finished"
        self._leave()
        return "interrupted"

    def _advance(self, step: int) -> Finished:
        """One turn of the engine; all of it where something is to be done with the state."""
        limit = min(self.schedule.next_due(step), self.evaluations.next_due(step))
        if self.profiler is not None:
            limit = min(limit, self.profiler.next_edge(step))
            self.profiler.before(step)
        limit = self.request.pod.turn(step, limit, self.engine.ahead)
        done = self.engine.advance(limit)
        if self._is_over(done.step) or done.step >= limit or self._is_save_due(done.step):
            done = done.then(self.engine.settle())
        if self.profiler is not None:
            self.profiler.after(done.step)
        _check_finite(done)
        return done

    def _is_over(self, step: int) -> bool:
        """Whether training stops at `step`, since someone asked; says that it was heard."""
        is_asked = self.stop.is_set()
        if is_asked:
            self.stop.answered()
        return self.request.pod.stops_at(step, is_asked)

    def _stepped(self, step: int) -> None:
        self.recorder.stepped(step)
        self.watchdog.tick()
        self.saver.poll()
        self.chores.poll()
        self._mark("step")

    def _log(self, done: Finished) -> None:
        """Logs the steps that are due, and the last one of this process."""
        every = self.request.config.training.log_every_steps
        is_end = self._is_over(done.step) or self._is_last(done.step)
        for number in sorted(done.metrics):
            is_due = number % every == 0 or (is_end and number == done.step)
            if number > self._logged and is_due:
                self.recorder.logged({"step": number, **done.metrics[number]})
                self._logged = number

    def _is_save_due(self, step: int) -> bool:
        return self._is_last(step) or self.schedule.is_due(step)

    def _save(self, step: int) -> None:
        """Saves in the background."""
        if step == self._saved:
            return
        self.schedule.saved(step)
        self._saved = step
        self.recorder.heartbeat.update(state="saving")
        totals = self.recorder.totals()
        meta = Meta(
            step=step,
            config_fingerprint=config_fingerprint(self.request.config),
            data_fingerprint=self.request.manifest.fingerprint,
            train_seconds=totals["train_seconds"],
            tokens_seen=totals["tokens_seen"],
            interruptions=totals["interruptions"],
            time=round(self.request.surroundings.clock(), 3),
            tokenizer_sha256=self.request.manifest.tokenizer_sha256,
            next_batch=self.recorder.next_batch(),
            global_batch_size=self.request.config.training.global_batch_size,
        )
        self.saver.save(meta, self.engine.snapshot)
        self.watchdog.tick()

    def _evaluate(self, step: int) -> None:
        """Evaluates on held-out records; left unfinished where someone asks to stop meanwhile, and
        then made after the restart."""
        found = self.evaluations.evaluate(step, self.engine.forward())
        if found is not None:
            self.recorder.evaluated(step, found)

    def _leave(self) -> None:
        """Someone asked to stop: brings what is finished to safety."""
        if self.recorder.step > self._start:
            done = self.engine.settle()
            _check_finite(done)
            self._stepped(done.step)
            self._log(done)
            self._save(done.step)
        self.saver.wait()
        self.evaluations.join()

    def _is_last(self, step: int) -> bool:
        return step >= self.request.config.training.num_train_steps

    def _mark(self, phase: str) -> None:
        self.request.surroundings.mark(phase)


def _check_finite(done: Finished) -> None:
    if done.first_bad is not None:
        raise Diverged(
            f"step {done.first_bad}: loss or gradients are NaN or infinite: the last checkpoint is"
            " intact; try a lower training.learning_rate, a longer warm-up, or other data"
        )
