"""One process's part of a run: the pieces that the loop is made of, put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data.verify import DataGuard
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.run.checkpoints import Checkpoint, CheckpointStore, Meta
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import first_phase
from bigbird_ja.storage.lease import RENEW_SECONDS, Lease
from bigbird_ja.train import engines, lengths, run_directory
from bigbird_ja.train.beginning import COMPILED, Beginning
from bigbird_ja.train.ends import Ends
from bigbird_ja.train.engines import choice
from bigbird_ja.train.evaluations import Evaluations
from bigbird_ja.train.housekeeping import Chore, Housekeeping
from bigbird_ja.train.recorder import Recorder
from bigbird_ja.train.request import Request
from bigbird_ja.train.saving import CheckpointSaver, LeftToTheWriter, SaveSchedule
from bigbird_ja.train.watchdog import Watchdog

HEARTBEAT_SECONDS = 15.0
METRICS_SYNC_SECONDS = 60.0


class Part:
    """This process's part of a run, once MODEL_DIR is ours.

    Args:
        request, stop, lock, guard, store, scratch, found: of the run; the lock is the writer's.
        recorder: told everything.
        warm_start: parameters that replace the random ones of a new run, or None.
    """

    def __init__(
        self,
        request: Request,
        stop: StopRequest,
        lock: Lease | None,
        guard: DataGuard,
        store: CheckpointStore,
        scratch: str,
        found: run_directory.Resumption,
        recorder: Recorder,
        warm_start: Mapping[str, Any] | None,
    ) -> None:
        self._request, self._config, self._around = request, request.config, request.surroundings
        self._stop, self._lock, self._guard, self._scratch = stop, lock, guard, scratch
        self._found, self._recorder, self._warm_start = found, recorder, warm_start
        self._pod = request.pod
        saver = CheckpointSaver if self._pod.is_writer else LeftToTheWriter
        self._saver = saver(
            store,
            scratch,
            self._config.checkpoints,
            self._check_may_publish,
            self._saved,
            self._around.mark,
            self._around.monotonic,
        )
        self._beginning = Beginning(request, found, recorder)
        self._ends = Ends(request, stop, recorder, self._saver)
        self._watchdog = Watchdog(self._config.training.stall_minutes * 60, self._ends.stalled)
        self._evaluations = Evaluations(request, stop, self._watchdog.tick)

    def train(self) -> dict[str, Any]:
        """Trains, and records the end, whichever it is."""
        self._listen_for_ends()
        with self._ends.recorded_failure(self._beginning):
            self._beginning.write()
            reason = "interrupted" if self._stop.is_set() else self._run_loop()
        self._stop.answered()
        return self._ends.reached(reason)

    def complete(self) -> dict[str, Any]:
        """Nothing is left to train: makes up for what a kill after the last step has left undone,
        the last evaluation and the record of the end."""
        self._listen_for_ends()
        step, checkpoint = self._found.step, self._found.checkpoint
        self._evaluations.begin(step)
        reason, is_new = "finished", False
        if checkpoint is not None and self._evaluations.is_due(step):
            is_new = True
            with self._ends.recorded_failure(self._beginning):
                self._evaluate(checkpoint)
            if self._evaluations.is_due(step):  # someone asked to stop before it was made
                self._stop.answered()
                self._evaluations.join()
                reason = "interrupted"
        if not is_new:
            is_new = not run_directory.is_recorded_as_finished(self._request.model_dir)
        return self._ends.reached(reason, is_new)

    def _listen_for_ends(self) -> None:
        """From here on, ends that come from other threads are recorded as this run's."""
        self._stop.leave = lambda message: self._ends.leave("interrupted", message)
        self._pod.leave = lambda error: self._ends.leave(error.reason, str(error))

    def _evaluate(self, checkpoint: Checkpoint) -> None:
        """The evaluation of a finished run, on the devices that trained it."""
        from bigbird_ja.data import verify
        from bigbird_ja.run.checkpoints import read_variables
        from bigbird_ja.run.file_names import parameters_of

        step, request = self._found.step, self._request
        damage = verify.named_damage(request.manifest, request.data_dir)
        with self._watchdog, self._chores(), damage:
            parameters = parameters_of(read_variables(checkpoint.prefix))
            model = choice.model(request.engine, self._config, parameters)
            found = self._evaluations.evaluate(step, model)
            if found is not None:
                self._recorder.evaluated(step, found)

    def _run_loop(self) -> str:
        from bigbird_ja.data import verify
        from bigbird_ja.train.loop import Loop

        request, monotonic = self._request, self._around.monotonic
        engine = self._engine()
        loop = Loop(
            self._request,
            engine,
            self._stop,
            self._recorder,
            SaveSchedule(self._config.checkpoints, self._found.step, monotonic, self._pod),
            self._saver,
            self._evaluations,
            self._profiler(engine),
            self._watchdog,
            self._chores(),
        )
        self._recorder.open_board()
        try:
            damage = verify.named_damage(request.manifest, request.data_dir)
            with self._watchdog, loop.chores, damage:
                self._around.mark("compile")
                engine.begin()
                self._beginning.has_stepped = True
                self._around.mark("session")
                self._watchdog.tick()
                reason = loop.run(self._found.step)
                self._recorder.heartbeat.write(state="saving")
                self._saver.wait()
                if loop.profiler is not None:
                    loop.profiler.close()
                engine.close()
                self._recorder.sync()
        finally:
            engine.close()
            self._recorder.close()
        return reason

    def _engine(self) -> engines.Engine:
        step, change = self._found.step, self._config.training.first_seq_length_steps
        if change is None or not lengths.is_in_first_phase(self._config, step):
            if step == change:
                self._tell_length()
            return self._start_engine(self._first_state, step)
        from bigbird_ja.train.engines.phased import PhasedEngine

        self._around.log(lengths.words(self._config, step) or "")
        phase = first_phase(self._config)
        last = min(change, self._config.training.num_train_steps)
        return PhasedEngine(
            self._start_engine(self._first_state, step, phase, last),
            lambda state: self._start_engine(state, change, place="whole"),
            change,
            lambda state: lengths.lengthened(self._config, state),
            self._tell_length,
        )

    def _start_engine(
        self,
        first_state: Callable[[], Mapping[str, Any]],
        first_step: int,
        phase: Config | None = None,
        last_step: int | None = None,
        place: str = "",
    ) -> engines.Engine:
        """An engine, not yet begun, from `first_step` on; `place` is a folder of its own."""

        def batches(host: int, count: int) -> Any:
            from bigbird_ja.train import reading

            self._around.mark("input")
            return reading.batches(
                self._config,
                self._request.manifest,
                self._request.data_dir,
                start_step=self._found.next_batch + first_step - self._found.step,
                first_step=first_step,
                num_hosts=count,
                host_index=host,
                in_first_phase=phase is not None,
            )

        return choice.start(
            self._request.engine,
            self._config,
            first_state,
            batches,
            os.path.join(self._scratch, place) if place else self._scratch,
            storage.join(self._request.model_dir, COMPILED),
            self._around.log,
            phase,
            last_step,
        )

    def _first_state(self) -> Mapping[str, Any]:
        from bigbird_ja.train.state import first_state

        state = first_state(self._config, self._found.checkpoint, self._warm_start)
        if self._found.step == self._config.training.first_seq_length_steps:
            return lengths.lengthened(self._config, state)  # a checkpoint is of before the change
        return state

    def _tell_length(self) -> None:
        """Sequences are whole from here on."""
        self._recorder.lengthened()
        self._watchdog.tick()

    def _profiler(self, engine: engines.Engine) -> Any:
        if not self._request.profile_steps or not self._pod.is_writer:
            return None
        from bigbird_ja.train.profiling import Profiler

        return Profiler(
            *self._request.profile_steps,
            engine=engine,
            model_dir=self._request.model_dir,
            scratch=self._scratch,
            log=self._around.log,
        )

    def _chores(self) -> Housekeeping:
        if self._lock is None:
            return Housekeeping([], self._around.log, self._around.monotonic)
        lock, heartbeat = self._lock, self._recorder.heartbeat

        def beat() -> None:
            lock.check()  # a heartbeat of one who lost the lock would speak for the other
            heartbeat.write()

        chores = [
            Chore("lock", RENEW_SECONDS, lock.renew),
            Chore("heartbeat", HEARTBEAT_SECONDS, beat),
            Chore("metrics", METRICS_SYNC_SECONDS, self._recorder.sync_metrics),
        ]
        return Housekeeping(chores, self._around.log, self._around.monotonic)

    def _check_may_publish(self) -> None:
        """In the saver's thread: raises where a checkpoint must not become the latest."""
        if self._lock is not None:
            self._lock.check()
        self._guard.check()

    def _saved(self, meta: Meta, seconds: float, waited: float) -> None:
        """In the saver's thread, once a checkpoint is the latest."""
        self._recorder.heartbeat.update(state="training")
        self._recorder.event(
            "saved",
            global_step=meta.step,
            seconds=round(seconds, 3),
            stalled_seconds=round(waited, 3),
        )
        self._recorder.sync()
