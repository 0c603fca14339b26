"""One run of `pretrain`, from the first look at MODEL_DIR to the recorded end.

Reads from top to bottom: refuse what can be refused, take the lock, find where to continue, train,
save, say how it ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bigbird_ja import config as config_lib
from bigbird_ja import console, storage
from bigbird_ja.config import Config
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.errors import (
    STATUS_OF_REASON,
    BadInput,
    Interrupted,
    StorageError,
    classify,
)
from bigbird_ja.train import hosts, run_directory, run_log
from bigbird_ja.train.checkpoints import Checkpoint, CheckpointStore, Meta
from bigbird_ja.train.housekeeping import Chore, Housekeeping
from bigbird_ja.train.lock import RENEW_SECONDS, RunLock
from bigbird_ja.train.progress import TrainProgress, pace_of
from bigbird_ja.train.saving import CheckpointSaver, SaveSchedule
from bigbird_ja.train.signals import StopRequest
from bigbird_ja.train.watchdog import Watchdog, dump_stacks

HEARTBEAT_SECONDS = 15.0
METRICS_SYNC_SECONDS = 60.0
SCRATCH = ".scratch"  # in a MODEL_DIR on disk; wiped at each start
_LAST_WORDS_SECONDS = 8.0


@dataclass(frozen=True)
class Effects:
    """What a run does to the world besides its files; tests pass their own.

    `mark` is called with the phase at the instants where a kill is interesting: "start-up",
    "input", "session", "step", "save", "between-files".
    """

    log: Callable[[str], None] = console.log
    clock: Callable[[], float] = time.time  # UNIX seconds
    monotonic: Callable[[], float] = time.monotonic
    mark: Callable[[str], None] = lambda phase: None
    leave: Callable[[int], Any] = os._exit


@dataclass(frozen=True)
class Request:
    """What the user asked for, checked as far as flags go."""

    config: Config
    manifest: Manifest
    data_dir: str
    model_dir: str
    use_tpu: bool = False
    init_from: str | None = None
    evaluates: bool = False  # --mode=train_and_eval
    profile_steps: tuple[int, int] | None = None
    overwrite: bool = False
    json: bool = False  # an end that bypasses the command line prints its own JSON
    effects: Effects = field(default_factory=Effects)


def pretrain(request: Request, stop: StopRequest) -> dict[str, Any]:
    """Trains or resumes to the end.

    Returns:
        The `--json` results.

    Raises:
        CommandError: every other end, recorded in MODEL_DIR once work has begun there; its
            `results` carry `global_step` and `loss`.
    """
    config, effects, model_dir = request.config, request.effects, request.model_dir
    effects.mark("start-up")
    cores = config.tpu.num_cores if request.use_tpu else 1
    training = config.training
    hosts.check_divides(training.global_batch_size, cores, training.gradient_accumulation_steps)
    if not request.overwrite:
        run_directory.check_settings(model_dir, config)
    initial = _load_initial(request)
    if request.overwrite and (moved := run_directory.move_aside(model_dir)):
        effects.log(f"{model_dir}: the run that was there is now {moved}")
    storage.make_directory(model_dir)
    lock = RunLock(model_dir, effects.log, effects.clock)
    with _held(lock) as taken_from, _scratch(model_dir) as scratch:
        notes: list[dict[str, Any]] = []

        def report(event: str, step: int, text: str) -> None:
            effects.log(text)
            notes.append({"event": event, "step": step, "text": text})

        store = CheckpointStore(model_dir, scratch, report, effects.mark)
        found = run_directory.find_resumption(
            store, config, request.manifest.fingerprint, effects.log
        )
        run = _Run(request, stop, lock, store, scratch, found, initial)
        if taken_from:
            notes.append({"event": "lock_taken_over", "from_pid": taken_from.get("pid")})
        for note in notes:
            run.event(**note)
        if found.step >= training.num_train_steps:
            effects.log(f"{model_dir}: already at step {found.step:,}: nothing left to do")
            return run.results("finished")
        stop.leave = lambda message: run.leave("interrupted", message)
        return run.run()


class _Run:
    """The state of one process's run; methods in the order of use."""

    def __init__(
        self,
        request: Request,
        stop: StopRequest,
        lock: RunLock,
        store: CheckpointStore,
        scratch: str,
        found: run_directory.Resumption,
        initial: Mapping[str, Any] | None,
    ) -> None:
        self.request, self.config, self.effects = request, request.config, request.effects
        self._stop, self._lock, self._store, self._scratch = stop, lock, store, scratch
        self._found, self._initial = found, initial
        model_dir = request.model_dir
        self.step = found.step
        self._metrics = run_log.MetricsLog(storage.join(model_dir, run_log.METRICS), found.step)
        self._loss = (self._metrics.last or {}).get("loss")
        cores = self.config.tpu.num_cores if request.use_tpu else 1
        accelerator = os.environ.get("TPU_ACCELERATOR_TYPE") or os.environ.get("ACCELERATOR_TYPE")
        self._pace = pace_of(
            self.config, request.manifest.density, cores, accelerator if request.use_tpu else None
        )
        self._progress = TrainProgress(
            self._pace, found.step, found.train_seconds, clock=self.effects.monotonic
        )
        self._heartbeat = run_log.Heartbeat(
            model_dir,
            storage.base_name(model_dir),
            self.effects.clock,
            global_step=found.step,
            num_train_steps=self.config.training.num_train_steps,
        )
        self._schedule = SaveSchedule(self.config.checkpoints, found.step, self.effects.monotonic)
        self._saver = CheckpointSaver(
            store,
            scratch,
            self.config.checkpoints,
            lock.check,
            self._saved,
            self.effects.mark,
            self.effects.monotonic,
        )
        self._saved_step = found.step
        self._next_evaluation = self._evaluation_after(found.step)

    def event(self, event: str, **fields: Any) -> None:
        """Adds a line to events.jsonl."""
        run_log.append_event(self.request.model_dir, event, self.effects.clock, **fields)

    def results(self, reason: str) -> dict[str, Any]:
        """The `--json` results."""
        return {
            "global_step": self.step,
            "loss": self._loss,
            "reason": reason,
            "train_seconds": round(self._progress.train_seconds(), 3),
            "tokens_seen": self._tokens(self.step),
            "interruptions": self._found.interruptions,
            "stalled_by_saving_seconds": round(self._saver.stalled_seconds, 3),
            "model_dir": self.request.model_dir,
        }

    def run(self) -> dict[str, Any]:
        """Trains; records the end, whichever it is."""
        is_resumed = self._found.checkpoint is not None
        try:
            run_directory.write_settings(
                self.request.model_dir,
                self.config,
                storage.join(self.request.data_dir, run_directory.TOKENIZER),
            )
            self.event(
                "resumed" if is_resumed else "started",
                global_step=self.step,
                interruptions=self._found.interruptions,
                config=config_lib.fingerprint(self.config)[:16],
                data=self.request.manifest.fingerprint[:16],
            )
            self._heartbeat.write(state="starting")
            reason = self._train()
            self._record_end(reason)
        except BaseException as error:
            error = _after_the_start(error)
            known = classify(error)
            self._record_end(known.reason if known else "bug", known or error)
            if known is None:
                raise
            known.results = self.results(known.reason)  # type: ignore[attr-defined]
            raise known from error
        if reason == "interrupted":
            stopped = Interrupted(
                f"{self._stop.name}: saved at step {self.step:,}: run the same command again to"
                " continue"
            )
            stopped.results = self.results(reason)  # type: ignore[attr-defined]
            raise stopped
        return self.results(reason)

    def _train(self) -> str:
        """Runs the steps; "finished" or "interrupted"."""
        from bigbird_ja.train import estimator
        from bigbird_ja.train.graph import TrainGraph, make_input_fn
        from bigbird_ja.train.hooks import ReinstallSignals, TrainHook
        from bigbird_ja.train.profiling import ProfileHook
        from bigbird_ja.train.tensorboard import EventWriter

        request, training = self.request, self.config.training
        if self._stop.is_set():
            self._stop.answered()
            return "interrupted"
        init = estimator.OnlyOnce(self._initial_values)
        estimator.quiet_logging(init.causes)
        if not request.use_tpu:
            estimator.enable_determinism()
        graph = TrainGraph(self.config, init, (ReinstallSignals(self._stop),))
        cores = self.config.tpu.num_cores if request.use_tpu else 1
        input_fn = make_input_fn(self._batches, cores, request.use_tpu)
        self._events = EventWriter(request.model_dir, self._scratch, self.step, self.effects.clock)
        hook = TrainHook(
            graph, self, self._stop, training.num_train_steps, training.log_every_steps
        )
        hooks: list[Any] = [hook]
        if request.profile_steps:
            hooks.append(
                ProfileHook(
                    *request.profile_steps,
                    read_step=lambda session: graph.read_notes(session)[0],
                    model_dir=request.model_dir,
                    scratch=self._scratch,
                    log=self.effects.log,
                )
            )
        self._watchdog = Watchdog(training.stall_minutes * 60, self._stalled)
        with self._watchdog, self._housekeeping() as self._chores:
            try:
                estimator.train(
                    graph.model_fn,
                    input_fn,
                    hooks,
                    self.config,
                    scratch=self._scratch,
                    use_tpu=request.use_tpu,
                )
                if self._stop.is_set() and self.step < training.num_train_steps:
                    self._stop.answered()
                self._heartbeat.write(state="saving")
                self._saver.wait()
                self._metrics.sync()
            finally:
                self._progress.close()
                self._events.close()
        return "finished" if self.step >= training.num_train_steps else "interrupted"

    # What the hook tells us (hooks.Listener).

    def session_created(self) -> None:
        """The graph is built and the variables have their values."""
        self.effects.mark("session")
        self._watchdog.tick()
        if self._stop.is_set():
            self._stop.answered()
            raise Interrupted("stopped before the first step: run the same command again")

    def first_step_next(self) -> None:
        """From here on time counts as training."""
        self._heartbeat.update(state="training")
        self._progress.begin()
        self.effects.mark("step")

    def stepped(self, step: int) -> None:
        """Steps up to `step` are finished and finite."""
        if self.step == self._found.step:  # the first loop traces and compiles: no measure
            self._progress.restart_clock(step)
        self.step = step
        self._watchdog.tick()
        self._heartbeat.update(global_step=step, step_time=round(self.effects.clock(), 3))
        self._saver.poll()
        self._chores.poll()
        self.effects.mark("step")

    def logged(self, metrics: dict[str, float]) -> None:
        """The metrics of one logged step, in order."""
        step = int(metrics["step"])
        rate = self._progress.measure(step)
        record = {
            "step": step,
            "loss": metrics["loss"],
            "masked_lm_accuracy": metrics["masked_lm_accuracy"],
            "learning_rate": metrics["learning_rate"],
            "tokens_per_second": round(rate, 1),
            "time": round(self.effects.clock(), 3),
            **{key: value for key, value in metrics.items() if key != "step"},
        }
        if (mfu := self._progress.mfu(rate)) is not None:
            record["mfu"] = round(mfu, 4)
        record["train_seconds"] = round(self._progress.train_seconds(), 3)
        self._loss = record["loss"]
        self._metrics.append(record)
        self._events.scalars(step, record)
        self._heartbeat.update(tokens_per_second=record["tokens_per_second"], loss=self._loss)
        is_last = step >= self.config.training.num_train_steps
        self._progress.show(record, force=is_last)

    def is_save_due(self, step: int) -> bool:
        """Whether to save now."""
        return self._schedule.is_due(step)

    def save(self, step: int, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Saves in the background."""
        if step == self._saved_step:
            return
        self._schedule.saved(step)
        self._saved_step = step
        self._heartbeat.update(state="saving")
        meta = Meta(
            step=step,
            config_fingerprint=config_lib.fingerprint(self.config),
            data_fingerprint=self.request.manifest.fingerprint,
            train_seconds=round(self._progress.train_seconds(), 3),
            tokens_seen=self._tokens(step),
            interruptions=self._found.interruptions,
            time=round(self.effects.clock(), 3),
        )
        self._events.sync() if not storage.is_remote(self.request.model_dir) else None
        self._saver.save(meta, snapshot)
        self._watchdog.tick()

    def is_evaluation_due(self, step: int) -> bool:
        """Whether to evaluate now."""
        is_last = step >= self.config.training.num_train_steps
        return self.request.evaluates and (step >= self._next_evaluation or is_last)

    def evaluate(self, step: int, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Evaluates the parameters on held-out records."""
        self._next_evaluation = self._evaluation_after(step)
        params = {
            name: value
            for name, value in snapshot().items()
            if name != "global_step" and not name.endswith(("/adam_m", "/adam_v"))
        }
        found = _in_thread(lambda: _evaluate(self.request, params), self._watchdog.tick)
        record = {"step": step, "time": round(self.effects.clock(), 3), **found}
        run_log.append_eval(self.request.model_dir, record)
        scalars = {f"eval/{k}": v for k, v in found.items() if isinstance(v, (int, float))}
        self._events.tagged(step, scalars)
        self.effects.log(
            f"evaluation at step {step:,}: loss {found['masked_lm_loss']:.4f},"
            f" accuracy {found['masked_lm_accuracy']:.1%}"
        )
        self._progress.restart_clock(step)

    # Beside the steps.

    def _saved(self, meta: Meta, seconds: float, waited: float) -> None:
        """In the saver's thread, once a checkpoint is the latest."""
        self._heartbeat.update(state="training")
        self.event(
            "saved",
            global_step=meta.step,
            seconds=round(seconds, 3),
            stalled_seconds=round(waited, 3),
        )
        self._metrics.sync()
        if storage.is_remote(self.request.model_dir):
            self._events.sync()

    def _housekeeping(self) -> Housekeeping:
        chores = [
            Chore("heartbeat", HEARTBEAT_SECONDS, self._heartbeat.write),
            Chore("lock", RENEW_SECONDS, self._lock.renew),
            Chore("metrics", METRICS_SYNC_SECONDS, self._metrics.sync),
        ]
        return Housekeeping(chores, self.effects.log, self.effects.monotonic)

    def _batches(self, host: int, count: int) -> Any:
        from bigbird_ja.data import pipeline

        self.effects.mark("input")
        return pipeline.batches(
            self.request.manifest,
            self.request.data_dir,
            seed=self.config.data.seed,
            global_batch_size=self.config.training.global_batch_size,
            start_step=self._found.step,
            shuffle_window=self.config.data.shuffle_window,
            mask_unit=self.config.data.mask_unit,
            num_hosts=count,
            host_index=host,
        )

    def _initial_values(self) -> Mapping[str, Any]:
        """Every variable: from the checkpoint, or fresh, or from `--init_from`."""
        import numpy as np

        from bigbird_ja.model.params import initial_parameters
        from bigbird_ja.train.checkpoints import read_variables

        if self._found.checkpoint is not None:
            return read_variables(self._found.checkpoint.prefix)
        params: dict[str, Any] = initial_parameters(self.config, self.config.training.seed)
        params.update(self._initial or {})
        slots = {
            f"{name}/adam_{slot}": np.zeros_like(value)
            for slot in "mv"
            for name, value in params.items()
        }
        return {**params, **slots, "global_step": np.int64(0)}

    # Ends.

    def _record_end(self, reason: str, error: BaseException | None = None) -> None:
        fields = {"message": " ".join(str(error).split())} if error else {}
        name = reason if reason in ("finished", "interrupted") else "failed"
        for what in (
            self._metrics.sync,
            lambda: self.event(name, reason=reason, global_step=self.step, **fields),
            lambda: self._heartbeat.write(state="stopped", reason=reason),
        ):
            try:
                what()
            except Exception as failure:
                self.effects.log(f"the end could not be recorded: {failure}")

    def _stalled(self, silence: float) -> None:
        """In the watchdog's thread: last words, then out."""
        message = (
            f"no step finished for {silence / 60:.1f} minutes (training.stall_minutes): stopped;"
            " the stacks of all threads are above; run the same command again"
        )
        dump_stacks(sys.stderr)
        self.leave("stalled", message)

    def leave(self, reason: str, message: str) -> None:
        """Ends the process from any thread, at once, saving nothing."""
        words = threading.Thread(
            target=self._record_end, args=(reason, StorageError(message)), daemon=True
        )
        words.start()
        words.join(_LAST_WORDS_SECONDS)
        print(f"bigbird-ja: {message}", file=sys.stderr, flush=True)
        if self.request.json:
            print(json.dumps({**self.results(reason), "error": message}), flush=True)
        self.effects.leave(STATUS_OF_REASON[reason])

    def _tokens(self, step: int) -> int:
        return round(step * self._pace.tokens_per_step)

    def _evaluation_after(self, step: int) -> int:
        every = self.config.training.eval_every_steps
        return (step // every + 1) * every


def _load_initial(request: Request) -> Mapping[str, Any] | None:
    """Parameters of `--init_from`, for a fresh start only."""
    if not request.init_from:
        return None
    if not request.overwrite and CheckpointStore(request.model_dir).has_any():
        request.effects.log(f"--init_from is left out: {request.model_dir} is resumed")
        return None
    from bigbird_ja.train.init_from import load_initial

    params, table = load_initial(request.init_from, request.config)
    request.effects.log(table)
    return params


def _evaluate(request: Request, params: dict[str, Any]) -> dict[str, Any]:
    from bigbird_ja.evaluation import masked_lm

    return masked_lm.evaluate_parameters(request.config, params, request.data_dir, request.manifest)


def _in_thread(work: Callable[[], dict[str, Any]], tick: Callable[[], None]) -> dict[str, Any]:
    """Runs `work` outside the session's graph, where TensorFlow is eager; ticks while it runs."""
    outcome: dict[str, Any] = {}

    def body() -> None:
        try:
            outcome["value"] = work()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=body, name="evaluation", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(10.0)
        tick()
    if "error" in outcome:
        raise outcome["error"]
    return dict(outcome["value"])


def _after_the_start(error: BaseException) -> BaseException:
    """What was permitted at the start and is refused in mid run is storage failing, not input."""
    if isinstance(error, (PermissionError, FileNotFoundError)):
        return StorageError(f"{error.filename or error}: {error.strerror or 'refused'} in mid run")
    if type(error).__name__ in ("PermissionDeniedError", "NotFoundError"):
        return StorageError(f"refused in mid run: {str(error).splitlines()[0]}")
    return error


@contextlib.contextmanager
def _held(lock: RunLock) -> Iterator[dict[str, Any] | None]:
    taken_from = lock.acquire()
    try:
        yield taken_from
    finally:
        with contextlib.suppress(Exception):
            lock.release()


@contextlib.contextmanager
def _scratch(model_dir: str) -> Iterator[str]:
    """A local directory for this run, empty, gone at the end; a killed run's is wiped first.

    On the disk of MODEL_DIR, where that is local: checkpoints are then moved, not copied.
    """
    if storage.is_remote(model_dir):
        name = hashlib.sha256(model_dir.rstrip("/").encode()).hexdigest()[:16]
        path = os.path.join(tempfile.gettempdir(), f"bigbird-ja-{os.getuid()}-{name}")
    else:
        path = os.path.join(model_dir, SCRATCH)
        storage.clean_temporary(model_dir)
    if os.path.islink(path):
        raise BadInput(f"{path}: a link where a scratch directory belongs: remove it")
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


__all__ = ["Checkpoint", "Effects", "Request", "pretrain"]
