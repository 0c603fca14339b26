"""Rate of training, and its progress line."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bigbird_ja.process.console import LiveLine, format_count, format_time

# Minimum number of seconds between two lines in a log. On a terminal they overwrite each other.
_LOG_INTERVAL = 2.0
# Minimum number of seconds for the measurement of a rate.
_SHORTEST = 1.0
# Weight of the newest measurement in the smoothed seconds per step, from which the ETA follows.
_NEWEST = 0.2


@dataclass
class TrainProgress:
    """Rate of training, and the progress line.

    The engine finishes one or many steps at once, and steps that were under way while the host was
    busy finish almost together. So a rate is measured over at least a second; steps that are logged
    sooner get the previous rate.

    Attributes:
        num_train_steps: total number of steps.
        tokens_per_step: tokens without padding (by the data set's density).
        flops_per_core_step: FLOPs that the model needs on one core, for the MFU.
        peak_flops: peak FLOP/s of one core, or None if unknown (no MFU).
        step: the last finished step.
        seconds_before: seconds of training before this process.
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
        """Start the measurement, without the time before (imports, building the graph)."""
        # `_seconds` is the time when `step` finished.
        self._start = self._seconds = self.clock()
        self._left_out = 0.0  # Seconds of the clock that are no part of the rate.
        self._measured = self.step, self._seconds
        self._each: list[float] = []  # Seconds per step in the first two measurements.

    def leave_out(self) -> None:
        """Exclude the time since the last finished step (evaluating, saving) from the rate."""
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
            # The first measurement includes the start of the input, so the second one drops it.
            before = self._each[-1] if len(self._each) > 1 else each
            self._each = [*self._each[:1], before + _NEWEST * (each - before)]
            self._rate = self.tokens_per_step / each
        return self._rate if self._each else 0.0

    def eta_seconds(self, step: int) -> float | None:
        """Estimate the seconds to the last step, or return None before the first measurement."""
        if not self._each:
            return None
        return max(self.num_train_steps - step, 0) * self._each[-1]

    def mfu(self, tokens_per_second: float) -> float | None:
        """Compute the model FLOPs utilization of a core, 0 to 1.

        It is None without a known peak.
        """
        if not self.peak_flops:
            return None
        steps_per_second = tokens_per_second / self.tokens_per_step
        return steps_per_second * self.flops_per_core_step / self.peak_flops

    def line(self, metrics: Mapping[str, float]) -> str:
        """Return the line for one logged step, most important figures first, as terminals cut it.

        Args:
            metrics: metrics with the keys of `metrics.jsonl`.
        """
        step, total = int(metrics["step"]), self.num_train_steps
        rate, eta = metrics["tokens_per_second"], self.eta_seconds(step)
        mfu = self.mfu(rate)
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
        """Print the line if one is due."""
        now = self.clock()
        if force or self._live.is_live or now - self._last_line >= _LOG_INTERVAL:
            self._last_line = now
            self._live.show(self.line(metrics))

    def close(self) -> None:
        """End the line on a terminal."""
        self._live.close()
