"""One process's training between two ends: what the hook's instants lead to."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import config as config_lib
from bigbird_ja.data.verify import DataGuard
from bigbird_ja.errors import STATUS_OF_REASON, Interrupted, StorageError
from bigbird_ja.lease import RENEW_SECONDS, Lease
from bigbird_ja.run.checkpoints import ADAM_SLOTS, CheckpointStore, Meta
from bigbird_ja.streams import write_results
from bigbird_ja.train.housekeeping import Chore, Housekeeping
from bigbird_ja.train.recorder import Recorder
from bigbird_ja.train.request import Request
from bigbird_ja.train.run_directory import Resumption
from bigbird_ja.train.saving import CheckpointSaver, SaveSchedule
from bigbird_ja.train.signals import StopRequest
from bigbird_ja.train.watchdog import Watchdog, dump_stacks

HEARTBEAT_SECONDS = 15.0
METRICS_SYNC_SECONDS = 60.0
_LAST_WORDS_SECONDS = 8.0


class Session:
    """Trains from where `found` says; implements `hooks.Listener`.

    Args:
        request, stop, lock, guard, store, scratch, found: of the run.
        recorder: told everything.
        initial: parameters that replace the initial ones at a fresh start, or None.
    """

    def __init__(
        self,
        request: Request,
        stop: StopRequest,
        lock: Lease,
        guard: DataGuard,
        store: CheckpointStore,
        scratch: str,
        found: Resumption,
        recorder: Recorder,
        initial: Mapping[str, Any] | None,
    ) -> None:
        self._request, self._config, self._effects = request, request.config, request.effects
        self._stop, self._lock, self._guard, self._scratch = stop, lock, guard, scratch
        self._found, self._recorder, self._initial = found, recorder, initial
        monotonic = self._effects.monotonic
        self._schedule = SaveSchedule(self._config.checkpoints, found.step, monotonic)
        self._saver = CheckpointSaver(
            store,
            scratch,
            self._config.checkpoints,
            self._may_publish,
            self._saved,
            self._effects.mark,
            monotonic,
        )
        self._watchdog = Watchdog(self._config.training.stall_minutes * 60, self._stalled)
        self._chores = self._housekeeping()
        self._saved_step = found.step
        self._next_evaluation = self._evaluation_after(found.step)

    def train(self) -> str:
        """Runs the steps; "finished" or "interrupted"."""
        if self._stop.is_set():
            self._stop.answered()
            return "interrupted"
        from bigbird_ja.data import verify
        from bigbird_ja.train import estimator
        from bigbird_ja.train.graph import TrainGraph, make_input_fn
        from bigbird_ja.train.hooks import ReinstallSignals, TrainHook

        request, training = self._request, self._config.training
        one_session = estimator.OneSession()
        estimator.quiet_logging(one_session.causes)
        if not request.use_tpu:
            estimator.enable_determinism()
        graph = TrainGraph(
            self._config, self._initial_values, one_session, (ReinstallSignals(self._stop),)
        )
        hooks = [
            TrainHook(graph, self, self._stop, training.num_train_steps, training.log_every_steps),
            *self._profile_hooks(graph),
        ]
        self._recorder.open_board()
        with self._watchdog, self._chores, verify.named_damage(request.manifest, request.data_dir):
            try:
                estimator.train(
                    graph.model_fn,
                    make_input_fn(self._batches, request.cores, request.use_tpu),
                    hooks,
                    self._config,
                    scratch=self._scratch,
                    use_tpu=request.use_tpu,
                )
                self._recorder.heartbeat.write(state="saving")
                self._saver.wait()
                self._recorder.sync()
            finally:
                self._recorder.close()
        if self._recorder.step >= training.num_train_steps:
            return "finished"
        if not self._stop.is_set():  # a session ends silently when its input does
            raise StorageError(
                f"the input ended at step {self._recorder.step}, before"
                f" {training.num_train_steps}: check the data with `bigbird-ja check-data`"
            )
        return "interrupted"

    def results(self, reason: str) -> dict[str, Any]:
        """The `--json` results."""
        stalled = round(self._saver.stalled_seconds, 3)
        return {**self._recorder.totals(), "stalled_by_saving_seconds": stalled, "reason": reason}

    # What the hook tells us (hooks.Listener).

    def session_created(self) -> None:
        """The graph is built and the variables have their values."""
        self._effects.mark("session")
        self._watchdog.tick()
        if self._stop.is_set():
            self._stop.answered()
            raise Interrupted("stopped before the first step: run the same command again")

    def first_step_next(self) -> None:
        """From here on time counts as training."""
        self._recorder.began()
        self._effects.mark("step")

    def stepped(self, step: int) -> None:
        """Steps up to `step` are finished and finite."""
        self._recorder.stepped(step)
        self._watchdog.tick()
        self._saver.poll()
        self._chores.poll()
        self._effects.mark("step")

    def logged(self, metrics: dict[str, float]) -> None:
        """The metrics of one logged step, in order."""
        self._recorder.logged(metrics)

    def is_save_due(self, step: int) -> bool:
        """Whether to save now."""
        return self._schedule.is_due(step)

    def save(self, step: int, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Saves in the background."""
        if step == self._saved_step:
            return
        self._schedule.saved(step)
        self._saved_step = step
        self._recorder.heartbeat.update(state="saving")
        totals = self._recorder.totals()
        meta = Meta(
            step=step,
            config_fingerprint=config_lib.fingerprint(self._config),
            data_fingerprint=self._request.manifest.fingerprint,
            train_seconds=totals["train_seconds"],
            tokens_seen=totals["tokens_seen"],
            interruptions=totals["interruptions"],
            time=round(self._effects.clock(), 3),
            tokenizer_sha256=self._request.manifest.tokenizer_sha256,
        )
        self._saver.save(meta, snapshot)
        self._watchdog.tick()

    def is_evaluation_due(self, step: int) -> bool:
        """Whether to evaluate now."""
        is_last = step >= self._config.training.num_train_steps
        return self._request.evaluates and (step >= self._next_evaluation or is_last)

    def evaluate(self, step: int, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Evaluates the parameters on held-out records."""
        self._next_evaluation = self._evaluation_after(step)
        params = {
            name: value
            for name, value in snapshot().items()
            if name != "global_step" and not name.endswith(ADAM_SLOTS)
        }
        found = in_thread(lambda: _evaluate(self._request, step, params, self._watchdog.tick))
        self._recorder.evaluated(step, found)

    # Beside the steps.

    def _may_publish(self) -> None:
        """In the saver's thread: raises where a checkpoint must not become the latest."""
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

    def _housekeeping(self) -> Housekeeping:
        chores = [
            Chore("heartbeat", HEARTBEAT_SECONDS, self._recorder.heartbeat.write),
            Chore("lock", RENEW_SECONDS, self._lock.renew),
            Chore("metrics", METRICS_SYNC_SECONDS, self._recorder.sync_metrics),
        ]
        return Housekeeping(chores, self._effects.log, self._effects.monotonic)

    def _batches(self, host: int, count: int) -> Any:
        from bigbird_ja.data import pipeline

        self._effects.mark("input")
        return pipeline.batches(
            self._request.manifest,
            self._request.data_dir,
            seed=self._config.data.seed,
            global_batch_size=self._config.training.global_batch_size,
            start_step=self._found.step,
            shuffle_window=self._config.data.shuffle_window,
            mask_unit=self._config.data.mask_unit,
            num_hosts=count,
            host_index=host,
        )

    def _initial_values(self) -> Mapping[str, Any]:
        """Every variable: from the checkpoint, or fresh, or from `--init_from`."""
        import numpy as np

        from bigbird_ja.model.params import initial_parameters
        from bigbird_ja.run.checkpoints import read_variables

        if self._found.checkpoint is not None:
            return read_variables(self._found.checkpoint.prefix)
        params: dict[str, Any] = initial_parameters(self._config, self._config.training.seed)
        params.update(self._initial or {})
        slots = {
            f"{name}/{slot}": np.zeros_like(value)
            for slot in ADAM_SLOTS
            for name, value in params.items()
        }
        return {**params, **slots, "global_step": np.int64(0)}

    def _profile_hooks(self, graph: Any) -> list[Any]:
        if not self._request.profile_steps:
            return []
        from bigbird_ja.train.profiling import ProfileHook

        return [
            ProfileHook(
                *self._request.profile_steps,
                read_step=lambda session: graph.read_notes(session)[0],
                model_dir=self._request.model_dir,
                scratch=self._scratch,
                log=self._effects.log,
            )
        ]

    def _evaluation_after(self, step: int) -> int:
        every = self._config.training.eval_every_steps
        return (step // every + 1) * every

    # Ends that no exception can bring about.

    def _stalled(self, silence: float) -> None:
        """In the watchdog's thread: last words, then out."""
        dump_stacks(sys.stderr)
        self.leave(
            "stalled",
            f"no step finished for {silence / 60:.1f} minutes (training.stall_minutes): stopped;"
            " the stacks of all threads are above; run the same command again",
        )

    def leave(self, reason: str, message: str) -> None:
        """Ends the process from any thread, at once, saving nothing."""
        words = threading.Thread(
            target=self._recorder.ended, args=(reason, StorageError(message)), daemon=True
        )
        words.start()
        words.join(_LAST_WORDS_SECONDS)
        with contextlib.suppress(OSError, ValueError):
            print(f"bigbird-ja: {message}", file=sys.stderr, flush=True)
        if self._request.json:
            write_results({**self.results(reason), "error": message})
        self._effects.leave(STATUS_OF_REASON[reason])


def in_thread(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Runs `work` outside the session's graph, where TensorFlow is eager."""
    outcome: dict[str, Any] = {}

    def body() -> None:
        try:
            outcome["value"] = work()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=body, name="evaluation", daemon=True)
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return dict(outcome["value"])


def _evaluate(
    request: Request, step: int, params: dict[str, Any], tick: Callable[[], None]
) -> dict[str, Any]:
    from bigbird_ja.evaluation import masked_lm, tensorboard

    found = masked_lm.evaluate_parameters(
        request.config, params, request.data_dir, request.manifest, tick=tick
    )
    tensorboard.write_evaluation(request.model_dir, step, found)
    return found
