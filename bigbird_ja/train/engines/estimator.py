"""TensorFlow's TPUEstimator as an engine, with workarounds for its faults.

- If TPUEstimator restored from a bucket, an unreadable file `checkpoint` would restart training at
  step 0. So it neither saves nor restores, and its `model_dir` is a local directory without
  checkpoints.
- If a bucket fails in spite of all retries, TensorFlow raises AbortedError or UnavailableError, and
  MonitoredSession would build new sessions forever. The workaround lets these errors end the run.
- The graceful-shutdown mode is disabled, as it may hang.
- TPUEstimator's `train` returns only at the end, so it runs in a separate thread. A hook pauses the
  thread between two device loops until the next `advance`. The main thread raises the errors that
  end this thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from bigbird_ja import compat
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.model.forward import Forward
from bigbird_ja.model_dir.variables import select_parameters
from bigbird_ja.process import workers
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.train.engines.devices import resolve_tpu
from bigbird_ja.train.engines.estimator_graph import TrainGraph, make_input_fn
from bigbird_ja.train.engines.protocol import MakeBatches, Snapshot, StepResult

os.environ.setdefault("TF_TPU_GRACEFUL_SHUTDOWN_MODE", "")

_CLOSE_SECONDS = 60.0
# Duration of a device loop. It is short, as SIGTERM is handled only between loops.
_LOOP_SECONDS = 15


@dataclass(eq=False)
class EstimatorEngine:
    """Engine that trains in TPUEstimator's session, on CPU, GPU or TPU v2 and v3."""

    config: Config
    data: Data
    first_state: Callable[[], Mapping[str, Any]]  # Returns all variables by name. Called once.
    batches: MakeBatches
    replicas: int  # Number of TPU cores, or 1 on CPU and GPU.
    scratch: str  # Local directory for TPUEstimator's own files.
    use_tpu: bool

    ahead = 0  # All dispatched steps are finished when `advance` returns.

    def __post_init__(self) -> None:
        """Prepare graph, input and thread, without starting anything."""
        self._graph = TrainGraph(self.config, self.data, self.first_state)
        self._input_fn = make_input_fn(self.batches, self.replicas, self.use_tpu)
        self._hook = _Handover()
        self._thread = threading.Thread(target=self._train, name="estimator", daemon=True)
        self._error: BaseException | None = None
        self._step = 0
        self._every = self.config.training.log_every_steps
        self._last = self.config.training.num_train_steps

    def begin(self) -> None:
        """Build the graph and the session, and give the variables their values."""
        if not self.use_tpu:  # A TPU is always deterministic.
            tf.config.experimental.enable_op_determinism()
        self._thread.start()
        self._wait()
        self._step, _ = self._graph.read_notes(self._hook.session)

    def advance(self, limit: int) -> StepResult:
        """Implement `Engine.advance`, ignoring `limit`.

        TPUEstimator chooses the length of a device loop. On a CPU it is one step.
        """
        before = self._step
        self._hook.resume()
        self._wait()
        self._step, bad = self._graph.read_notes(self._hook.session)
        metrics: dict[int, dict[str, float]] = {}
        if self._step // self._every > before // self._every:
            rows = self._graph.read_metrics(self._hook.session)
            metrics = {n: rows[n] for n in rows if n > before and n % self._every == 0}
        return StepResult(self._step, metrics, bad if bad >= 0 else None)

    def settle(self) -> StepResult:
        """Implement `Engine.settle`, by reading the last step's metrics."""
        rows = self._graph.read_metrics(self._hook.session)
        return StepResult(self._step, {self._step: rows[self._step]} if self._step in rows else {})

    def snapshot(self) -> Snapshot:
        """Implement `Engine.snapshot`, by copying all variables to the host now."""
        values = self._graph.snapshot(self._hook.session)
        return lambda: values

    def forward(self) -> Forward:
        """Implement `Engine.forward`.

        The model runs on this machine's CPU or GPU, outside TPUEstimator's session.
        """
        parameters = select_parameters(self._graph.snapshot(self._hook.session))
        return Forward(self.config, self.data, parameters)

    def close(self) -> None:
        """Let TPUEstimator end its session."""
        self._hook.stop()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _wait(self) -> None:
        """Wait until a device loop has ended, or raise the error that ended TPUEstimator."""
        self._hook.wait()
        if self._hook.has_ended:
            if self._error is not None:
                raise self._error
            # At the end of the input a session ends without an error.
            raise StorageError(
                f"the input ended at step {self._step}, before {self._last}: check the data with"
                " `bigbird-ja check-data`"
            )

    def _train(self) -> None:
        try:
            self._run_estimator()
        except BaseException as error:
            self._error = error
        finally:
            self._hook.note_end()

    def _run_estimator(self) -> None:
        """Train with TPUEstimator up to the last step.

        Raises:
            BadInput: The TPU cannot be reached.
        """
        from tensorflow_estimator.python.estimator.tpu import tpu_config, tpu_estimator

        _silence_logging()
        compat.patch_estimator(_LeaveSignals)
        config, use_tpu = self.config, self.use_tpu
        estimator = tpu_estimator.TPUEstimator(
            model_fn=self._graph.model_fn,
            use_tpu=use_tpu,
            train_batch_size=config.training.global_batch_size,
            eval_batch_size=config.training.global_batch_size,
            config=tpu_config.RunConfig(
                cluster=resolve_tpu(config) if use_tpu else None,
                model_dir=self.scratch,
                tf_random_seed=config.training.seed,
                save_checkpoints_steps=None,
                save_checkpoints_secs=None,
                save_summary_steps=0,
                log_step_count_steps=None,
                session_config=_make_session_config(),
                tpu_config=tpu_config.TPUConfig(
                    num_shards=config.tpu.num_cores if use_tpu else None,
                    # TPUEstimator adapts the number of steps in a loop to this duration.
                    iterations_per_loop=f"{_LOOP_SECONDS}s",
                    per_host_input_for_training=tpu_config.InputPipelineConfig.PER_HOST_V2,
                ),
            ),
        )
        try:
            estimator.train(self._input_fn, hooks=[self._hook], max_steps=self._last)
        except ValueError as error:
            if "num_shards" not in str(error):
                raise
            raise BadInput(f"tpu.num_cores={config.tpu.num_cores}: {error}") from error


class _Handover(tf.estimator.SessionRunHook):
    """Hook that pauses TPUEstimator's thread between two device loops, until `resume` or `stop`."""

    def __init__(self) -> None:
        self.session: Any = None
        self.has_ended = self._is_stopped = False
        self._may_run, self._has_run = threading.Semaphore(0), threading.Semaphore(0)

    # TPUEstimator's thread calls these methods.

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Pause once the variables have their initial values."""
        self.session = session
        if not self._hand_over():
            raise _Closed

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Pause after a device loop."""
        if not self._hand_over():
            run_context.request_stop()

    def note_end(self) -> None:
        """Record that TPUEstimator has returned or raised."""
        self.has_ended = True
        self._has_run.release()

    def _hand_over(self) -> bool:
        """Pause until the main thread calls `resume` or `stop`, and return False for `stop`."""
        self._has_run.release()
        self._may_run.acquire()
        return not self._is_stopped

    # The main thread calls these methods.

    def resume(self) -> None:
        """Let TPUEstimator run one device loop."""
        self._may_run.release()

    def stop(self) -> None:
        """End TPUEstimator's session after the current device loop."""
        self._is_stopped = True
        self._may_run.release()

    def wait(self) -> None:
        """Wait until the current device loop, or TPUEstimator itself, has ended."""
        if not self.has_ended:
            self._has_run.acquire()


class _Closed(Exception):
    """Exception that ends TPUEstimator if the engine is closed before the first device loop."""


def _silence_logging() -> None:
    """Disable TensorFlow's messages below the level ERROR."""
    logger = tf.get_logger()
    logger.propagate = False
    logger.setLevel(logging.ERROR)


class _LeaveSignals(tf.estimator.SessionRunHook):
    """Hook that does nothing, in place of TPUEstimator's InstallSignalHandlerHook."""


def _make_session_config() -> tf.compat.v1.ConfigProto:
    """Return session options with threads for all cores and with GPU memory on demand."""
    cores = workers.count_cores()
    return tf.compat.v1.ConfigProto(
        allow_soft_placement=True,
        intra_op_parallelism_threads=cores,
        inter_op_parallelism_threads=max(2, cores // 2),
        gpu_options=tf.compat.v1.GPUOptions(allow_growth=True),
    )
