"""Tokens, FLOPs, hours and money: arithmetic only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bigbird_ja.model.params import count_parameters
from bigbird_ja.settings.schema import Config

SECONDS_PER_HOUR = 3600.0
HOURS_PER_MONTH = 730.0

# Wiki40b Japanese (TFDS wiki40b/ja, train split) as our background states it, and what the 2021
# tokenizer makes of it. Used only where there is no data set, and printed as an assumption.
WIKI40B_JA_BYTES = 1.9e9
BYTES_PER_TOKEN = 6.0  # Japanese UTF-8 text in a vocabulary of 32,000 pieces: two characters


@dataclass(frozen=True)
class Overheads:
    """What preemptions cost, apart from the TPU's price. Seconds, and events per rented hour."""

    preemptions_per_hour: float = 0.25  # one in four hours; see docs/launch for what it rests on
    checkpoint_interval: float = 600.0  # seconds of training between two checkpoints
    save_seconds: float = 15.0  # training stands still this long for a checkpoint
    restart_seconds: float = 360.0  # READY until the first step: boot, install, compile, restore
    absent_seconds: float = 300.0  # unbilled: noticed, deleted, created again


@dataclass(frozen=True)
class RunTime:
    """Expected hours of one run; None where it would never end."""

    training_hours: float
    rented_hours: float | None
    wall_hours: float | None
    preemptions: float | None

    @property
    def useful_share(self) -> float | None:
        """Share of the rented time that is training and is not lost again."""
        return self.training_hours / self.rented_hours if self.rented_hours else None


def tokens_per_step(config: Config) -> int:
    """Positions per optimiser step; with full sequences (99 %) they are tokens."""
    return config.training.global_batch_size * config.make_data.seq_length


def checkpoint_bytes(config: Config) -> int:
    """One checkpoint: float32 weights and two optimiser slots each."""
    return 12 * count_parameters(config)


def run_time(training_hours: float, overheads: Overheads, preemptible: bool) -> RunTime:
    """Expected hours with preemptions as a Poisson process over rented time.

    Each preemption repeats half a checkpoint interval on average and waits for the restart. With
    T the interval, s the save, R the restart and r the rate, rented hours H solve
    H = U (1 + s/T) + r H (T/2 + s/2 + R).
    """
    rate = overheads.preemptions_per_hour if preemptible else 0.0
    interval = overheads.checkpoint_interval
    busy = training_hours * (1 + (overheads.save_seconds / interval if interval else 0))
    restart = overheads.restart_seconds / SECONDS_PER_HOUR
    lost = (interval + overheads.save_seconds) / 2 / SECONDS_PER_HOUR + restart
    share = 1 - rate * lost
    if share <= 0:
        return RunTime(training_hours, None, None, None)
    rented = (busy + restart) / share
    preemptions = rate * rented
    wall = rented + (preemptions + 1) * overheads.absent_seconds / SECONDS_PER_HOUR
    return RunTime(training_hours, rented, wall, preemptions)


def best_interval(overheads: Overheads) -> float:
    """Young's first-order optimum, seconds: sqrt(2 * save * mean time between preemptions)."""
    if not overheads.preemptions_per_hour:
        return math.inf
    return math.sqrt(2 * overheads.save_seconds * SECONDS_PER_HOUR / overheads.preemptions_per_hour)
