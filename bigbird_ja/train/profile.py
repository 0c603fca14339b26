"""Profiles of some steps (`profile_steps`), for TensorBoard and xprof."""

import glob
import os
import re
import resource
from collections.abc import Callable
from typing import Any

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.train.job import Job
from bigbird_ja.train.run_logger import RunLogger

_PROFILES = "plugins/profile"
# Maximum number of profiled steps, as the profile of a TPU contains some megabytes per step.
_MAX_PROFILED = 1000


def read_profile_steps(text: str, total: int) -> range:
    """Read the value of `profile_steps`, such as "100-110", both steps included.

    Raises:
        BadInput: The text has another form, a step is not part of the run, or there are too many
            steps.
    """
    match = re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last <= total or last - first >= _MAX_PROFILED:
        raise BadInput(
            f"`profile_steps` {text}: give the first and the last step, such as 100-110, from 1 to"
            f" {total} (training.num_train_steps), and {_MAX_PROFILED:,} steps at most"
        )
    return range(first, last + 1)


class Profile:
    """Profile of some steps (`profile_steps`) in MODEL_DIR/plugins/profile/RUN/HOST.xplane.pb.

    TensorBoard and xprof search this folder for profiles. The profilers write to a local folder.
    The files are then copied to MODEL_DIR, which may be on a bucket. A failure is logged and does
    not end the run.

    Args:
        job: the run.
        model_dir: MODEL_DIR. Only the process that has locked this folder records a profile.
        step: last finished step.
        logger: logger that records the profile as an event.
    """

    def __init__(self, job: Job, model_dir: ModelDir, step: int, logger: RunLogger) -> None:
        steps, self._step = job.profiled, step
        self._steps = range(max(steps.start, step + 1), steps.stop)
        self._model_dir, self._logger, self._log = model_dir, logger, job.deps.log
        self._local = os.path.join(model_dir.scratch, "profile")
        self._is_exact = job.engine.name == "pjrt"  # Whether the engine can stop at any step.
        self._stop: Callable[[], Any] | None = None
        self._is_over = model_dir.lease is None or not self._steps
        self._begun = 0  # The first step of the profile.
        if steps and not self._steps:
            self._log(f"no step is profiled, as step {steps[-1]} (`profile_steps`) is finished")

    def find_next_due(self, step: int) -> int:
        """Return the next step after which the profile begins or ends, or 1 << 62 if none."""
        ends = (self._steps.start - 1, self._steps.stop - 1) if self._steps else ()
        return next((end for end in ends if end > step), 1 << 62)

    def update(self, step: int) -> None:
        """Begin or end the profile, if that is due after `step`.

        The caller makes sure that no step is running.

        TPUEstimator stops only between device loops, so whole loops are profiled. The next loop is
        assumed to be as long as the last one. The profile begins before the loop that contains the
        first step to profile under this assumption.
        """
        ahead = 1 if self._is_exact else max(step - self._step, 1)
        self._step = step
        if self._stop is not None and step >= self._steps[-1]:
            self.close()
        elif not self._is_over and self._stop is None and step + ahead >= self._steps.start:
            self._try(self._begin)

    def close(self) -> None:
        """End the profile, if there is one, and write it, without raising."""
        if self._stop is not None:
            self._is_over = True
            self._try(self._write)
            self._stop = None

    def _begin(self) -> None:
        self._begun = self._step + 1
        self._stop = (_start_jax_profiler if self._is_exact else _start_tensorflow_profiler)(
            self._local
        )

    def _write(self) -> None:
        assert self._stop is not None
        self._stop()
        for path in glob.glob(f"{glob.escape(self._local)}/{_PROFILES}/*/*"):
            name = os.path.relpath(path, self._local)
            target = self._model_dir.join(name)
            self._model_dir.owned.note({name: None})
            storage.make_directory(storage.get_directory(target))
            storage.upload(path, target)
            if name.endswith(".xplane.pb"):
                steps, run = f"{self._begun}-{self._step}", os.path.dirname(name)
                memory = _measure_peak_memory(self._is_exact)
                self._logger.record_event("profiled", steps=steps, folder=run, memory_bytes=memory)
                self._log(f"profile of steps {steps}: {self._model_dir.join(run)}")

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as failure:
            self._is_over, self._stop = True, None
            self._log(f"no profile: {failure}")


def _start_jax_profiler(folder: str) -> Callable[[], Any]:
    """Start JAX's profiler, without tracing Python calls, and return the function that stops it."""
    import jax

    options: dict[str, Any] = {}
    # The last version of jax that works with TensorFlow 2.15 has no `ProfileOptions`.
    if hasattr(jax.profiler, "ProfileOptions"):
        options["profiler_options"] = jax.profiler.ProfileOptions()
        options["profiler_options"].python_tracer_level = 0
    jax.profiler.start_trace(folder, **options)
    return jax.profiler.stop_trace


def _start_tensorflow_profiler(folder: str) -> Callable[[], Any]:
    """Start TensorFlow's profiler, and return the function that stops it."""
    import tensorflow as tf

    tf.profiler.experimental.start(folder, tf.profiler.experimental.ProfilerOptions())
    return tf.profiler.experimental.stop


def _measure_peak_memory(on_jax: bool) -> int:
    """Return the peak memory of the first device, in bytes.

    If JAX does not report it, as on a CPU, the peak memory of this process on the host is returned.
    The same applies under TPUEstimator, as JAX would try to open the TPU that TensorFlow uses.
    """
    if on_jax:
        import jax

        if stats := jax.local_devices()[0].memory_stats():
            return int(stats["peak_bytes_in_use"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
