"""One run of `pretrain`, from the first look at MODEL_DIR to the recorded end.

Reads from top to bottom: refuse what can be refused, take the lock, find where to continue, train
(`train.loop`), say how it ended. In a pod the writer does all of it, and the others follow.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from bigbird_ja import config as config_lib
from bigbird_ja import storage
from bigbird_ja.data.verify import DataGuard
from bigbird_ja.errors import (
    STATUS_OF_REASON,
    BadInput,
    CommandError,
    Interrupted,
    OutOfMemory,
    StorageError,
    classify,
    telling_line,
)
from bigbird_ja.lease import RENEW_SECONDS, Lease
from bigbird_ja.run.checkpoints import CheckpointStore, Meta
from bigbird_ja.run.model import CONTINUED, check_tokenizer
from bigbird_ja.run.records import EventRecord
from bigbird_ja.storage import outputs
from bigbird_ja.storage.scratch import scratch_directory
from bigbird_ja.streams import write_results
from bigbird_ja.train import checks, continuation, engines, environment, run_directory
from bigbird_ja.train.engines import choice
from bigbird_ja.train.evaluations import Evaluations
from bigbird_ja.train.housekeeping import Chore, Housekeeping
from bigbird_ja.train.pods import following
from bigbird_ja.train.recorder import Bystander, Recorder
from bigbird_ja.train.request import Request
from bigbird_ja.train.saving import CheckpointSaver, LeftToTheWriter, SaveSchedule
from bigbird_ja.train.signals import StopRequest
from bigbird_ja.train.watchdog import Watchdog, dump_stacks

COMPILED = "compiled"  # programs, kept for the next start
_EARLIER_SCRATCH = re.compile(r"model\.ckpt-|events\.out\.tfevents|plugins$")
HEARTBEAT_SECONDS = 15.0
METRICS_SYNC_SECONDS = 60.0
_LAST_WORDS_SECONDS = 8.0
_SAVE_SECONDS = 20.0


def pretrain(request: Request, stop: StopRequest) -> dict[str, Any]:
    """Trains or resumes to the end.

    Returns:
        The `--json` results.

    Raises:
        CommandError: every other end, recorded in MODEL_DIR once work has begun there; its
            `results` carry `global_step` and `loss`.
    """
    config, around, model_dir = request.config, request.surroundings, request.model_dir
    around.mark("start-up")
    outputs.check_folder_place(model_dir, "--model_dir")
    if not request.overwrite:
        run_directory.check_settings(model_dir, config, request.continue_with)
    guard = checks.check(request)
    warm_start = _load_warm_start(request)
    request.pod.barrier("checked")
    if not request.pod.is_writer:
        return _follow(request, stop, guard, warm_start)
    if request.overwrite:
        _move_aside(request)
    with _directory(model_dir), _held(request) as (lock, notes), _scratch(model_dir) as scratch:

        def report(event: str, step: int, text: str) -> None:
            around.log(text)
            notes.append({"event": event, "global_step": step, "message": text})

        store = CheckpointStore(model_dir, scratch, report, around.mark)
        found = run_directory.find_resumption(
            store, config, request.manifest.fingerprint, around.log, bool(request.continue_with)
        )
        check_tokenizer(model_dir, request.manifest.tokenizer_sha256)
        request.pod.share("start", lambda: following.start_of(found, lock))
        request.pod.barrier("ready")
        recorder = Recorder(request, found, scratch)
        for note in notes:
            recorder.event(**note)
        part = _Part(request, stop, lock, guard, store, scratch, found, recorder, warm_start)
        if found.step >= config.training.num_train_steps:
            around.log(
                f"{model_dir}: already at step {found.step:,}: nothing left to do (a larger"
                " --num_train_steps continues)"
            )
            return part.complete()
        return part.train()


def _follow(
    request: Request, stop: StopRequest, guard: DataGuard, warm_start: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The part of a process that does not write: it goes on where the writer does."""
    around, model_dir = request.surroundings, request.model_dir
    start = request.pod.share("start", dict)
    with scratch_directory() as scratch:
        following.check_same_folder(model_dir, start["lease"], around.clock)
        store = CheckpointStore(model_dir, scratch, mark=around.mark)
        found = following.resumption(store, start)
        check_tokenizer(model_dir, request.manifest.tokenizer_sha256)
        request.pod.barrier("ready")
        recorder = Bystander(request, found, scratch)
        part = _Part(request, stop, None, guard, store, scratch, found, recorder, warm_start)
        if found.step >= request.config.training.num_train_steps:
            request.pod.finish()
            return recorder.totals()
        return part.train()


class _Part:
    """This process's part of a run, once MODEL_DIR is ours: what it is made of, and how it ends.

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
        self._watchdog = Watchdog(self._config.training.stall_minutes * 60, self._stalled)
        self._evaluations = Evaluations(request, stop, self._watchdog.tick)
        self._there_before: set[str] = set()  # files of MODEL_DIR when this process began to write
        self._has_begun = False

    def train(self) -> dict[str, Any]:
        """Trains, and records the end, whichever it is."""
        self._stop.leave = lambda message: self.leave("interrupted", message)
        self._pod.leave = lambda error: self.leave(error.reason, str(error))
        with self._recorded_failure():
            self._write_start()
            reason = "interrupted" if self._stop.is_set() else self._run_loop()
        self._stop.answered()
        return self._end(reason)

    def complete(self) -> dict[str, Any]:
        """Nothing is left to train: makes up for what a kill after the last step has left undone,
        the last evaluation and the record of the end."""
        from bigbird_ja.evaluation.forward import Forward
        from bigbird_ja.run.checkpoints import read_variables
        from bigbird_ja.run.names import parameters_of

        step, checkpoint = self._found.step, self._found.checkpoint
        self._evaluations.begin(step)
        is_due = self._evaluations.is_due(step)
        if checkpoint is not None and is_due:
            with self._recorded_failure():
                params = parameters_of(read_variables(checkpoint.prefix))
                found = self._evaluations.evaluate(step, Forward(self._config, params))
                if found is None:
                    self._stop.answered()
                    self._evaluations.join()
                    return self._end("interrupted")
                self._recorder.evaluated(step, found)
        self._pod.finish()
        if is_due or not run_directory.is_recorded_as_finished(self._request.model_dir):
            self._recorder.ended("finished", None)
        self._say_what_next()
        return self._results("finished")

    def _say_what_next(self) -> None:
        """Where the model is, how good, and the command that comes next."""
        request, loss = self._request, self._recorder.loss
        at = f"step {self._recorder.step:,}" + ("" if loss is None else f", loss {loss:.4f}")
        data, model = shlex.quote(request.data_dir), shlex.quote(request.model_dir)
        if request.evaluates or not request.manifest.eval.sequences:
            command = f"export --model_dir {model} --output_dir NEW_FOLDER"
        else:
            command = f"evaluate --model_dir {model} --data_dir {data}"
        self._around.log(f"finished: {at}, in {request.model_dir}; next: bigbird-ja {command}")

    def _write_start(self) -> None:
        if not self._pod.is_writer:
            return
        request, found = self._request, self._found
        self._there_before = set(storage.list_files(request.model_dir))
        before = run_directory.last_start(request.model_dir)
        tokenizer = storage.join(request.data_dir, run_directory.TOKENIZER)
        self._tell_settings()
        run_directory.write_settings(request.model_dir, self._config, tokenizer)
        self._recorder.event(
            "started" if found.checkpoint is None else "resumed",
            global_step=found.step,
            interruptions=found.interruptions,
            config=config_lib.fingerprint(self._config)[:16],
            data=request.manifest.fingerprint[:16],
            engine=request.engine.name,
            engine_why=request.engine.why,
            replicas=request.engine.replicas,
            processes=request.engine.processes,
            environment=environment.describe(request.engine.device),
        )
        if before is not None:
            self._tell_changes(before)
        self._recorder.heartbeat.write(state="starting")

    def _tell_settings(self) -> None:
        """Says and records with what other settings the run goes on; before they are written."""
        path = run_directory.settings_of(self._request.model_dir)
        if path is None or self._found.checkpoint is None:
            return
        before, step = config_lib.load_resolved(path), self._found.step
        if changed := continuation.changes(before, self._config):
            named = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in changed.items())
            self._around.log(f"from step {step:,} on with {named}")
            self._recorder.event(
                CONTINUED,
                global_step=step,
                settings=changed,
                was=config_lib.fingerprint(before),
                now=config_lib.fingerprint(self._config),
            )
        if words := continuation.schedule_words(before, self._config, step):
            self._around.log(words)
            self._recorder.event("schedule_changed", global_step=step, message=words)

    def _tell_changes(self, before: EventRecord) -> None:
        """Says where another engine, or another number of devices or processes, goes on with the
        run."""
        engine, step = self._request.engine, self._found.step
        name, replicas = before.get("engine", "estimator"), before.get("replicas")
        if name != engine.name:
            text = f"this run was trained by the engine {name} and goes on under {engine.name}"
            self._around.log(f"{text}: equal to rounding")
            self._recorder.event("engine_changed", global_step=step, was=name, now=engine.name)
        if replicas is not None and replicas != engine.replicas:
            text = f"this run was trained on {replicas} replicas and goes on on {engine.replicas}"
            self._around.log(f"{text}: sums are equal to rounding, dropout is drawn per replica")
            self._recorder.event(
                "replicas_changed", global_step=step, was=replicas, now=engine.replicas
            )

        processes = before.get("processes", 1)
        if processes != engine.processes:
            text = f"this run was trained by {processes} processes and goes on by"
            self._around.log(f"{text} {engine.processes}: other sequences meet on each replica")
            self._recorder.event(
                "processes_changed", global_step=step, was=processes, now=engine.processes
            )

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
                self._has_begun = True
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
        return choice.start(
            self._request.engine,
            self._config,
            self._first_state,
            self._batches,
            self._scratch,
            storage.join(self._request.model_dir, COMPILED),
            self._around.log,
        )

    def _first_state(self) -> Mapping[str, Any]:
        from bigbird_ja.train.state import first_state

        return first_state(self._config, self._found.checkpoint, self._warm_start)

    def _batches(self, host: int, count: int) -> Any:
        from bigbird_ja.data import pipeline

        self._around.mark("input")
        return pipeline.batches(
            self._request.manifest,
            self._request.data_dir,
            seed=self._config.data.seed,
            global_batch_size=self._config.training.global_batch_size,
            start_step=self._found.next_batch,
            shuffle_window=self._config.data.shuffle_window,
            mask_unit=self._config.data.mask_unit,
            num_hosts=count,
            host_index=host,
        )

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
        chores = [
            Chore("heartbeat", HEARTBEAT_SECONDS, self._recorder.heartbeat.write),
            Chore("lock", RENEW_SECONDS, self._lock.renew),
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

    # The ends.

    @contextlib.contextmanager
    def _recorded_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            known = _end_of(error)
            if known is None:
                self._pod.await_cause()
            self._pod.fail(known.reason if known else "bug", str(known or error))
            if isinstance(known, (BadInput, OutOfMemory)) and self._is_untouched():
                self._take_back_start()
                raise known from error
            self._recorder.ended(known.reason if known else "bug", known or error)
            if known is None:
                raise
            known.results = self._results(known.reason)
            raise known from error

    def _is_untouched(self) -> bool:
        """Whether this is a new run of which no step was tried."""
        return self._found.checkpoint is None and not self._has_begun

    def _take_back_start(self) -> None:
        """What the engine refuses before the first step of a new run leaves nothing behind."""
        if not self._pod.is_writer:
            return
        model_dir = self._request.model_dir
        for name in set(storage.list_files(model_dir)) - self._there_before:
            storage.delete(storage.join(model_dir, name))
        if not storage.is_remote(model_dir):
            with contextlib.suppress(OSError):  # only an empty one goes
                os.rmdir(storage.join(model_dir, COMPILED))

    def _end(self, reason: str) -> dict[str, Any]:
        """Records the end of a loop that came to one."""
        self._recorder.ended(reason, None)
        self._pod.finish()
        if reason == "interrupted":
            step, model_dir = self._recorder.step, self._request.model_dir
            what = f"saved at step {step} in {model_dir}: run the same command again to continue"
            if not step:
                what = "no step was made, so there is nothing to continue"
            stopped = Interrupted(f"{self._stop.name}: {what}")
            stopped.results = self._results(reason)
            raise stopped
        self._say_what_next()
        return self._results(reason)

    def _results(self, reason: str) -> dict[str, Any]:
        """The `--json` results."""
        stalled = round(self._saver.stalled_seconds, 3)
        return {**self._recorder.totals(), "stalled_by_saving_seconds": stalled, "reason": reason}

    def _stalled(self, silence: float) -> None:
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
            write_results({**self._results(reason), "error": message})
        self._around.leave(STATUS_OF_REASON[reason])


def _end_of(error: BaseException) -> CommandError | None:
    """As `errors.classify`, but what was permitted at the start and is refused or gone in mid run
    is storage failing, not bad input."""
    if isinstance(error, (PermissionError, FileNotFoundError)):
        what = error.strerror or "refused"
        return StorageError(f"{error.filename or error}: {what} in mid run: run again")
    if type(error).__name__ in ("PermissionDeniedError", "NotFoundError"):
        return StorageError(f"refused in mid run: {telling_line(error)}: run again")
    return classify(error)


def _load_warm_start(request: Request) -> Mapping[str, Any] | None:
    """Parameters of `--init_from`, for a fresh start only."""
    if not request.init_from:
        return None
    if not request.overwrite and CheckpointStore(request.model_dir).has_any():
        request.surroundings.log(f"--init_from is left out: {request.model_dir} is resumed")
        return None
    from bigbird_ja.train.init_from import load_initial

    params, table = load_initial(request.init_from, request.config)
    request.surroundings.log(table)
    return params


def _move_aside(request: Request) -> None:
    """`--overwrite`: renames the run that is in MODEL_DIR, with its lock held while it is renamed.

    Raises:
        BadInput: a trainer is at work there, or what is there is no run of ours.
    """
    if not run_directory.check_movable(request.model_dir):
        return
    with _held(request):
        moved = run_directory.move_aside(request.model_dir)
    request.surroundings.log(f"{request.model_dir}: the run that was there is now {moved}")


@contextlib.contextmanager
def _directory(model_dir: str) -> Iterator[None]:
    """MODEL_DIR; removed again where the run was refused before anything was written."""
    storage.make_directory(model_dir)
    try:
        yield
    finally:
        if not storage.is_remote(model_dir):
            with contextlib.suppress(OSError):
                os.rmdir(model_dir)  # only an empty one goes


@contextlib.contextmanager
def _held(request: Request) -> Iterator[tuple[Lease, list[dict[str, Any]]]]:
    """The lock, and what is to be noted in events.jsonl about how it was got."""
    model_dir, around = request.model_dir, request.surroundings
    busy = f"{model_dir}: {{owner}} is training here: stop it first, or use another --model_dir"
    lock = Lease(
        storage.join(model_dir, run_directory.LOCK), busy, around.log, clock=around.monotonic
    )
    found = lock.acquire()
    notes: list[dict[str, Any]] = []
    if found:
        notes = [{"event": "lock_taken_over", "from_pid": found.pid, "from_host": found.host}]
    try:
        yield lock, notes
    finally:
        with contextlib.suppress(Exception):
            lock.release()


@contextlib.contextmanager
def _scratch(model_dir: str) -> Iterator[str]:
    """A local directory for this run, empty, gone at the end; a killed run's goes first.

    On the disk of MODEL_DIR, where that is local: checkpoints are then moved, not copied. Call it
    with the lock held.
    """
    if storage.is_remote(model_dir):
        with scratch_directory() as path:
            yield path
        return
    storage.clean_temporary(model_dir)
    _remove_earlier_scratch(os.path.join(model_dir, ".scratch"))
    with scratch_directory(model_dir, ".scratch-", is_ours_alone=True) as path:
        yield path


def _remove_earlier_scratch(path: str) -> None:
    """Removes what a killed run of an earlier version left, if nothing else is in it."""
    with contextlib.suppress(OSError):
        if not os.path.islink(path) and all(map(_EARLIER_SCRATCH.match, os.listdir(path))):
            shutil.rmtree(path, ignore_errors=True)
