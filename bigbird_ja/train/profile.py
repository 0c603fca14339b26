"""Profiles of some steps (`--profile_steps`), for TensorBoard and xprof."""

import glob
import os
import re
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput

_PROFILES = "plugins/profile"
_MOST_PROFILED = 1000  # maximum number of steps: a TPU's profile has some megabytes for each


def read_profile_steps(text: str, total: int) -> range:
    """Read the value of `--profile_steps`, such as "100-110", both steps included.

    Raises:
        BadInput: another form, or steps that the run does not have.
    """
    match = re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last <= total or last - first >= _MOST_PROFILED:
        raise BadInput(
            f"--profile_steps {text}: give the first and the last step, such as 100-110, from 1 to"
            f" {total} (training.num_train_steps), and {_MOST_PROFILED:,} steps at most"
        )
    return range(first, last + 1)


@dataclass(eq=False)
class Profile:
    """Record a profile of some steps (`--profile_steps`) where TensorBoard and xprof look for it.

    That is MODEL_DIR/plugins/profile/RUN/HOST.xplane.pb. The profilers write into a local folder;
    the files are copied from there, so that MODEL_DIR may be on a bucket. What fails here is logged
    and ends no run.
    """

    steps: range  # to profile; none: does nothing
    step: int  # the last that is finished
    engine: str  # its name, which decides whose profiler it is
    model_dir: str
    scratch: str | None  # an empty local folder; None: this process does not profile
    log: Callable[[str], None]  # for what was written, and for failures
    record: Callable[..., None]  # called with fields for events.jsonl

    def __post_init__(self) -> None:
        """Leave out the steps that are made already."""
        self._steps = range(max(self.steps.start, self.step + 1), self.steps.stop)
        self._local = os.path.join(self.scratch or "", "profile")
        self._is_exact = self.engine == "pjrt"  # stops at any step
        self._stop: Callable[[], Any] | None = None
        self._is_over = self.scratch is None or not self._steps
        self._begun = 0  # the first step of the profile
        if self.steps and not self._steps:
            self.log(f"--profile_steps: step {self.steps[-1]} is made already: nothing is profiled")

    def next_due(self, step: int) -> int:
        """Return the step after which the profile begins or ends; one that is far, if none is."""
        ends = (self._steps.start - 1, self._steps.stop - 1) if self._steps else ()
        return next((end for end in ends if end > step), 1 << 62)

    def at(self, step: int) -> None:
        """Begin or end the profile, where it is time after `step`; nothing else is under way.

        TPUEstimator stops between device loops only: those that have such a step are profiled, if
        the next one is as long as the last.
        """
        ahead = 1 if self._is_exact else max(step - self.step, 1)
        self.step = step
        if self._stop is not None and step >= self._steps[-1]:
            self.close()
        elif not self._is_over and self._stop is None and step + ahead >= self._steps.start:
            self._try(self._begin)

    def close(self) -> None:
        """End the profile, if there is one, and write it. Never raises."""
        if self._stop is not None:
            self._is_over = True
            self._try(self._write)
            self._stop = None

    def _begin(self) -> None:
        self._begun = self.step + 1
        self._stop = (_jax_profiler if self._is_exact else _tensorflow_profiler)(self._local)

    def _write(self) -> None:
        assert self._stop is not None
        self._stop()
        for path in glob.glob(f"{glob.escape(self._local)}/{_PROFILES}/*/*"):
            name = os.path.relpath(path, self._local)
            target = storage.join(self.model_dir, name)
            storage.make_directory(storage.directory_of(target))
            storage.upload(path, target)
            if name.endswith(".xplane.pb"):
                steps, run = f"{self._begun}-{self.step}", os.path.dirname(name)
                self.record(steps=steps, folder=run, memory_bytes=_peak_memory(self._is_exact))
                self.log(f"profile of steps {steps}: {storage.join(self.model_dir, run)}")

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as failure:
            self._is_over, self._stop = True, None
            self.log(f"no profile: {failure}")


def _jax_profiler(folder: str) -> Callable[[], Any]:
    """Begin; returns what ends it. Calls of Python functions are left out: they would be most."""
    import jax

    options: dict[str, Any] = {}
    if hasattr(jax.profiler, "ProfileOptions"):  # from jax 0.5 or so on
        options["profiler_options"] = jax.profiler.ProfileOptions()
        options["profiler_options"].python_tracer_level = 0
    jax.profiler.start_trace(folder, **options)
    return jax.profiler.stop_trace


def _tensorflow_profiler(folder: str) -> Callable[[], Any]:
    """Begin; returns what ends it."""
    import tensorflow as tf

    tf.profiler.experimental.start(folder, tf.profiler.experimental.ProfilerOptions())
    return tf.profiler.experimental.stop


def _peak_memory(on_jax: bool) -> int:
    """Return the most bytes in use so far: of JAX's first device, or of this process on a host.

    Under TPUEstimator JAX is not used: it would look for devices of its own, and take or await a
    TPU that TensorFlow holds.
    """
    if on_jax:
        import jax

        if stats := jax.local_devices()[0].memory_stats():
            return int(stats["peak_bytes_in_use"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
