"""Show a run to people: the progress line, TensorBoard with profiles, Weights & Biases."""

import glob
import os
import resource
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from bigbird_ja import storage
from bigbird_ja.data import tfrecords
from bigbird_ja.process.console import LiveLine, human_count, human_time

# Seconds between two lines in a log; on a terminal they overwrite each other.
_LOG_INTERVAL = 2.0
_SHORTEST = 1.0  # seconds that a rate is taken over
# Weight of the newest measurement in the smoothed seconds per step, from which the ETA follows.
_NEWEST = 0.2
# Keys of metrics.jsonl that TensorBoard shows under `speed/`, and that it does not show; all others
# are under `train/`.
_SPEED = ("tokens_per_second", "mfu")
_NOT_SHOWN = ("step", "time", "train_seconds")
_PROFILES = "plugins/profile"


@dataclass
class TrainProgress:
    """Measure the rate and print the progress line.

    The engine finishes one or many steps at once, and some that were under way while the host was
    busy follow each other at once then. So a rate is taken over a second at least; steps that are
    logged sooner have the one before.

    Attributes:
        tokens_per_step: without padding (by the data set's density).
        flops_per_core_step: what the model needs on one core, for the MFU.
        peak_flops: of one core; None: no MFU.
        seconds_before: of training before this process, for the total that is shown.
        stream: standard error by default.
        clock: seconds, monotonic.
    """

    num_train_steps: int
    tokens_per_step: float
    flops_per_core_step: float
    peak_flops: float | None
    step: int  # the last finished one
    seconds_before: float
    stream: TextIO | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Begin to count."""
        self._live = LiveLine(self.stream)
        self._last_line = -1e9
        self.begin()

    def train_seconds(self) -> float:
        """Return the seconds spent training so far, over all restarts."""
        return self.seconds_before + self.clock() - self._start

    def begin(self) -> None:
        """Begin to count: what came before (imports, building the graph) is no training."""
        self._start = self._seconds = self.clock()  # `_seconds`: of `step`, as far as they count
        self._left_out = 0.0  # seconds of the clock that are no part of the rate
        self._measured = self.step, self._seconds
        self._each: list[float] = []  # seconds per step, of the first two measurements

    def leave_out(self) -> None:
        """Leave the time since the last finished step (evaluating, saving) out of the rate."""
        self._left_out = self.clock() - self._seconds

    def finished(self, step: int) -> None:
        """Note that the engine has just finished all steps up to `step`."""
        if step > self.step:
            self.step, self._seconds = step, self.clock() - self._left_out

    def measure(self) -> float:
        """Return tokens per second over all cores, at the last finished step."""
        steps, seconds = self.step - self._measured[0], self._seconds - self._measured[1]
        if steps and (seconds >= _SHORTEST or not self._each):
            self._measured = self.step, self._seconds
            each = max(seconds, 1e-9) / steps
            # The first one has the start of the input in it: the second one forgets it.
            before = self._each[-1] if len(self._each) > 1 else each
            self._each = [*self._each[:1], before + _NEWEST * (each - before)]
            self._rate = self.tokens_per_step / each
        return self._rate if self._each else 0.0

    def eta_seconds(self, step: int) -> float | None:
        """Estimate the seconds to the last step; None before the first measurement."""
        if not self._each:
            return None
        return max(self.num_train_steps - step, 0) * self._each[-1]

    def mfu(self, tokens_per_second: float) -> float | None:
        """Compute the model FLOPs utilisation of a core, 0 to 1; None without a known peak."""
        if not self.peak_flops:
            return None
        steps_per_second = tokens_per_second / self.tokens_per_step
        return steps_per_second * self.flops_per_core_step / self.peak_flops

    def line(self, metrics: Mapping[str, float]) -> str:
        """Compose the line for one logged step; what matters most, first: terminals cut its end.

        Args:
            metrics: keys as in `metrics.jsonl`.
        """
        step, total = int(metrics["step"]), self.num_train_steps
        rate, eta = metrics["tokens_per_second"], self.eta_seconds(step)
        mfu = self.mfu(rate)
        parts = [
            f"step {step:,} of {total:,}",
            f"loss {metrics['loss']:.4f}",
            f"{step / total:.1%}",
            f"ETA {human_time(eta)}" if eta is not None else "ETA -",
            f"{human_count(rate)} tokens/s",
            f"accuracy {metrics['masked_lm_accuracy']:.1%}",
            f"MFU {mfu:.1%}" if mfu is not None else "",
            f"trained {human_time(self.train_seconds())}",
        ]
        return "  ".join(filter(None, parts))

    def show(self, metrics: Mapping[str, float], force: bool = False) -> None:
        """Print the line where one is due."""
        now = self.clock()
        if force or self._live.is_terminal or now - self._last_line >= _LOG_INTERVAL:
            self._last_line = now
            self._live.show(self.line(metrics))

    def close(self) -> None:
        """End the line on a terminal."""
        self._live.close()


class EventWriter:
    """Write TensorBoard's event file of one process: local, on a bucket uploaded at each save.

    TensorFlow's own writer uploads the whole file at every flush when it is on gs://.

    Args:
        model_dir: where TensorBoard looks.
        scratch: where the file is written while `model_dir` is on a bucket.
        start_step: the step continued from; TensorBoard drops what an earlier file has after it.
        clock: UNIX seconds.
    """

    def __init__(
        self, model_dir: str, scratch: str, start_step: int, clock: Callable[[], float]
    ) -> None:
        from tensorflow.core.util import event_pb2

        self._clock, self._new = clock, event_pb2.Event
        name = f"events.out.tfevents.{int(clock())}.{socket.gethostname()}.{os.getpid()}"
        self._target = storage.join(model_dir, name)
        self._local = os.path.join(scratch, name) if storage.is_remote(model_dir) else self._target
        self._write(self._new(wall_time=clock(), file_version="brain.Event:2"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(self._new(wall_time=clock(), step=start_step + 1, session_log=start))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of one logged step."""
        event = self._new(wall_time=self._clock(), step=step)
        for key, value in values.items():
            if key not in _NOT_SHOWN:
                tag = f"speed/{key}" if key in _SPEED else f"train/{key}"
                event.summary.value.add(tag=tag, simple_value=float(value))
        self._write(event)

    def sync(self) -> None:
        """Bring a bucket's copy up to date."""
        if self._local != self._target:
            storage.upload(self._local, self._target)

    def _write(self, event: Any) -> None:
        with open(self._local, "ab") as file:
            file.write(tfrecords.frame([event.SerializeToString()]))


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


class WandbLog:
    """Log a run to Weights & Biases (`pretrain --wandb`); continues it after a restart.

    After a failure, which is logged, nothing more is sent: training does not end over a log.

    Args:
        library: the wandb package.
        run_id: of MODEL_DIR, in its place.
        name: for people, the last part of MODEL_DIR.
        settings: shown beside the curves; it holds no credentials.
        log: for failures.
    """

    def __init__(
        self,
        library: Any,
        run_id: str,
        name: str,
        settings: Mapping[str, Any],
        log: Callable[[str], None],
    ) -> None:
        self._log, self._failed = log, False
        about = {"project": "bigbird-ja", "id": run_id, "name": name, "resume": "allow"}
        # Neither what the program prints nor its files and their remote address are sent.
        private = {"console": "off", "disable_git": True, "disable_code": True}
        self._run = self._try(lambda: library.init(**about, config=settings, settings=private))

    def write(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """Send the numbers among `values`, as `prefix/key`."""
        numbers = {f"{prefix}/{k}": v for k, v in values.items() if isinstance(v, (int, float))}
        self._try(lambda: self._run.log(numbers, step=step))

    def close(self) -> None:
        """End the run there."""
        self._try(lambda: self._run.finish())

    def _try(self, act: Callable[[], Any]) -> Any:
        if self._failed:
            return None
        try:
            return act()
        except Exception as failure:
            self._failed = True
            self._log(f"Weights & Biases gets no more of this run: {failure}")
