"""Show a run to people: the progress line, TensorBoard, Weights & Biases."""

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from bigbird_ja import storage
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
    cores: int
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
            f"{human_count(rate / self.cores)} tokens/s/core" if self.cores > 1 else "",
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
        import tensorflow as tf
        from tensorflow.core.util import event_pb2

        self._clock, self._new = clock, event_pb2.Event
        name = f"events.out.tfevents.{int(clock())}.{socket.gethostname()}.{os.getpid()}"
        self._target = storage.join(model_dir, name)
        self._local = os.path.join(scratch, name) if storage.is_remote(model_dir) else self._target
        self._writer = tf.io.TFRecordWriter(self._local)
        self._lock = threading.Lock()  # synced from the thread that saves
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
        """Make what was written visible to readers."""
        with self._lock:
            self._writer.flush()
        if self._local != self._target:
            storage.upload(self._local, self._target)

    def close(self) -> None:
        """End the file."""
        self.sync()
        self._writer.close()

    def _write(self, event: Any) -> None:
        with self._lock:
            self._writer.write(event.SerializeToString())


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
