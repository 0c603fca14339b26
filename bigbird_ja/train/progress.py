"""Rate of training, and its progress line."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bigbird_ja.process.console import LiveLine, format_count, format_time

# Minimum number of seconds between two lines in a log. On a terminal a line replaces the last one.
_LOG_INTERVAL = 2.0
# Minimum duration of the measurement of a rate, in seconds.
_SHORTEST = 1.0
# Weight of the newest measurement in the running mean of seconds per step, which the ETA uses.
_NEWEST = 0.2


@dataclass
class TrainProgress:
    """Rate of training, and the progress line.

    The engine may finish several steps at once, such as the steps that ran while the host was busy.
    So a rate is measured over at least a second. Steps that are logged sooner get the previous
    rate.

    Attributes:
        num_train_steps: total number of steps.
        tokens_per_step: tokens per step without padding, estimated from the data set's average.
        flops_per_core_step: FLOPs of the model per step on one core, for the MFU.
        peak_flops: peak FLOP/s of one core, or None if unknown (no MFU).
        step: last finished step.
        seconds_before: seconds of training before the checkpoint from which the run continues.
        clock: monotonic clock, seconds.
    """

    num_train_steps: int
    tokens_per_step: float
    flops_per_core_step: float
    peak_flops: float | None
    step: int
    seconds_before: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Start the measurement."""
        self._live = LiveLine()
        self._last_line = -1e9
        self.begin()

    def train_seconds(self) -> float:
        """Return the seconds spent training so far, over all restarts."""
        return self.seconds_before + self.clock() - self._start

    def begin(self) -> None:
        """Start the measurement. Earlier time (imports, compilation) does not count."""
        # `_seconds` is the time when `step` finished.
        self._start = self._seconds = self.clock()
        self._left_out = 0.0  # Seconds that are excluded from the rate.
        self._measured = self.step, self._seconds
        # Seconds per step: in the first measurement, and the running mean of all later ones.
        self._each: list[float] = []

    def leave_out(self) -> None:
        """Exclude the time since the last finished step (evaluation, save) from the rate."""
        self._left_out = self.clock() - self._seconds

    def note_finished(self, step: int) -> None:
        """Record that the engine has just finished all steps up to `step`."""
        if step > self.step:
            self.step, self._seconds = step, self.clock() - self._left_out

    def measure(self) -> float:
        """Return tokens per second over all cores, at the last finished step."""
        steps, seconds = self.step - self._measured[0], self._seconds - self._measured[1]
        if steps and (seconds >= _SHORTEST or not self._each):
            self._measured = self.step, self._seconds
            each = max(seconds, 1e-9) / steps
            # The running mean begins at the second measurement, as the first one includes the start
            # of the input.
            before = self._each[-1] if len(self._each) > 1 else each
            self._each = [*self._each[:1], before + _NEWEST * (each - before)]
            self._rate = self.tokens_per_step / each
        return self._rate if self._each else 0.0

    def estimate_eta_seconds(self, step: int) -> float | None:
        """Estimate the seconds to the last step, or return None before the first measurement."""
        if not self._each:
            return None
        return max(self.num_train_steps - step, 0) * self._each[-1]

    def compute_mfu(self, tokens_per_second: float) -> float | None:
        """Compute the model FLOPs utilization of a core, 0 to 1.

        The result is None if the peak is unknown.
        """
        if not self.peak_flops:
            return None
        steps_per_second = tokens_per_second / self.tokens_per_step
        return steps_per_second * self.flops_per_core_step / self.peak_flops

    def format_line(self, metrics: Mapping[str, float]) -> str:
        """Format the progress line for one logged step.

        The most important figures are first, as a narrow terminal cuts the end of the line.

        Args:
            metrics: metrics with the keys of `metrics.jsonl`.
        """
        step, total = int(metrics["step"]), self.num_train_steps
        rate, eta = metrics["tokens_per_second"], self.estimate_eta_seconds(step)
        mfu = self.compute_mfu(rate)
        parts = [
            f"step {step:,} of {total:,}",
            f"loss {metrics['loss']:.4f}",
            f"{step / total:.1%}",
            f"ETA {format_time(eta)}" if eta is not None else "ETA -",
            f"{format_count(rate)} tokens/s",
            f"accuracy {metrics['masked_lm_accuracy']:.1%}",
            f"MFU {mfu:.1%}" if mfu is not None else "",
            f"trained {format_time(self.train_seconds())}",
        ]
        return "  ".join(filter(None, parts))

    def show(self, metrics: Mapping[str, float], force: bool = False) -> None:
        """Print the progress line for one logged step, if a line is due or `force` is set."""
        now = self.clock()
        if force or self._live.is_live or now - self._last_line >= _LOG_INTERVAL:
            self._last_line = now
            self._live.show(self.format_line(metrics))

    def close(self) -> None:
        """End the progress line on a terminal."""
        self._live.close()
