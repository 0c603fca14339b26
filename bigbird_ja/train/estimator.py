"""TPUEstimator, used in a way that avoids three of its faults.

- Its `model_dir` is a local scratch directory without checkpoints: it neither saves nor restores
  (TensorFlow's gs:// client turns an unreadable `checkpoint` file into a restart at step 0).
- MonitoredSession takes AbortedError and UnavailableError (which exhausted retries on a bucket
  raise) for a preemption and builds sessions for ever. There is one session: a second one ends the
  run with the error that the first one met.
- Its graceful-shutdown mode may freeze for good after a lame worker: off.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from bigbird_ja.config import Config
from bigbird_ja.errors import BadInput, CommandError, StorageError, classify
from bigbird_ja.train.checks import resolve_tpu

os.environ.setdefault("TF_TPU_GRACEFUL_SHUTDOWN_MODE", "")


class OneSession:
    """Called when a session is initialised; the second time raises what ended the first."""

    def __init__(self) -> None:
        self._count = 0
        self.causes = _Causes()

    def __call__(self) -> None:
        """Counts a session.

        Raises:
            CommandError: there was one before, and it was lost.
        """
        self._count += 1
        if self._count > 1:
            raise self._lost()

    def _lost(self) -> CommandError:
        cause = self.causes.last
        known = classify(cause) if cause is not None else None
        if known is not None:
            return known
        return StorageError(
            f"TensorFlow lost its session ({cause or 'no cause given'}): run the same command again"
        )


class _Causes(logging.Handler):
    """Remembers the exceptions that TensorFlow only mentions in its log."""

    last: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps an exception among the record's arguments."""
        for value in record.args or ():
            if isinstance(value, tf.errors.OpError):
                self.last = value


def quiet_logging(causes: logging.Handler) -> None:
    """Sends TensorFlow's chatter nowhere and its lost sessions to `causes`."""
    logger = tf.get_logger()
    logger.propagate = False
    logger.setLevel(logging.INFO)
    for handler in logger.handlers:
        handler.setLevel(logging.ERROR)
    logger.addHandler(causes)


def enable_determinism() -> None:
    """Makes CPU and GPU kernels give the same bits every time; a TPU does anyway."""
    tf.config.experimental.enable_op_determinism()


def train(
    model_fn: Callable[..., Any],
    input_fn: Callable[..., Any],
    hooks: Sequence[Any],
    config: Config,
    *,
    scratch: str,
    use_tpu: bool,
) -> None:
    """Runs the steps up to `training.num_train_steps`.

    Raises:
        BadInput: the TPU cannot be reached.
    """
    from tensorflow_estimator.python.estimator.tpu import tpu_config
    from tensorflow_estimator.python.estimator.tpu.tpu_estimator import TPUEstimator

    estimator = TPUEstimator(
        model_fn=model_fn,
        use_tpu=use_tpu,
        train_batch_size=config.training.global_batch_size,
        eval_batch_size=config.training.global_batch_size,
        config=tpu_config.RunConfig(
            cluster=resolve_tpu(config) if use_tpu else None,
            model_dir=scratch,
            tf_random_seed=config.training.seed,
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
            save_summary_steps=0,
            log_step_count_steps=None,
            session_config=session_config(),
            tpu_config=tpu_config.TPUConfig(
                num_shards=config.tpu.num_cores if use_tpu else None,
                # In seconds: the loop grows to this length, so that SIGTERM is answered in time.
                iterations_per_loop=f"{max(1, int(config.training.max_loop_seconds))}s",
                per_host_input_for_training=tpu_config.InputPipelineConfig.PER_HOST_V2,
            ),
        ),
    )
    try:
        estimator.train(input_fn, hooks=list(hooks), max_steps=config.training.num_train_steps)
    except ValueError as error:
        if "num_shards" not in str(error):
            raise
        raise BadInput(f"tpu.num_cores={config.tpu.num_cores}: {error}") from error


def session_config() -> tf.compat.v1.ConfigProto:
    """Threads for this machine's cores; GPU memory as needed; none of the graph rewrites that
    could change results between two versions of a graph."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return tf.compat.v1.ConfigProto(
        allow_soft_placement=True,
        intra_op_parallelism_threads=cores or 1,
        inter_op_parallelism_threads=max(2, (cores or 1) // 2),
        gpu_options=tf.compat.v1.GPUOptions(allow_growth=True),
    )
