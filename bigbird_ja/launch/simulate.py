"""Months of preemptions in seconds: the supervisor itself against a model, in virtual time."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bigbird_ja.launch.run_state import Ending, Settings
from bigbird_ja.launch.simulated_cloud import Capacity, Lifetime, SimulatedCloud, TrainerModel
from bigbird_ja.launch.supervise import Services, supervise
from bigbird_ja.launch.tpu_service import TpuSpec

HOUR = 3600.0
MODELS = ("exponential", "bursty")


@dataclass(frozen=True)
class Outcome:
    """One simulated run."""

    useful_share: float  # of rented time: training that ended in a checkpoint
    wall_share: float  # the same of wall time
    preemptions: int
    days: float
    finished: bool
    left_over: int  # TPUs that remained; anything but 0 is a bug


@dataclass(frozen=True)
class Point:
    """Several seeds at one checkpoint interval."""

    interval_minutes: float
    share: float
    lowest: float
    highest: float
    wall_share: float
    preemptions: float


def exponential(mean_hours: float, rng: random.Random) -> tuple[Lifetime, Capacity]:
    """A constant hazard: lifetimes are independent, capacity is always there."""
    return (lambda ready: rng.expovariate(1 / (mean_hours * HOUR))), (lambda zone, now: True)


def bursty(mean_hours: float, rng: random.Random) -> tuple[Lifetime, Capacity]:
    """Calm and crowded hours take turns (means 18 h and 6 h).

    In calm ones preemptions are four times rarer than the mean rate says, in crowded ones 3.25
    times as frequent, which keeps the mean over time; crowded hours have capacity one time in
    three.
    """
    switches = [0.0]
    rate = 1 / (mean_hours * HOUR)

    def is_crowded(now: float) -> bool:
        while switches[-1] <= now:
            mean = 18 * HOUR if len(switches) % 2 else 6 * HOUR
            switches.append(switches[-1] + rng.expovariate(1 / mean))
        return sum(1 for at in switches if at <= now) % 2 == 0

    def lifetime(ready: float) -> float:
        # Thinning (Lewis and Shedler 1979): draw at the highest rate, keep by the rate there.
        highest, now = 3.25 * rate, ready
        while True:
            now += rng.expovariate(highest)
            if rng.random() < (3.25 if is_crowded(now) else 0.25) / 3.25:
                return now - ready

    def capacity(zone: str, now: float) -> bool:
        return not is_crowded(now) or rng.random() < 1 / 3

    return lifetime, capacity


_FACTORIES: dict[str, Callable[[float, random.Random], tuple[Lifetime, Capacity]]] = {
    "exponential": exponential,
    "bursty": bursty,
}


def simulate(
    model: str,
    mean_hours: float,
    trainer: TrainerModel,
    seed: int,
    zones: tuple[str, ...] = ("zone-a", "zone-b"),
    max_days: float = 365.0,
) -> Outcome:
    """Runs one training to its end, or for `max_days` of virtual time.

    Args:
        model: `exponential` or `bursty`.
        mean_hours: mean time between preemptions of a READY TPU.
    """
    lifetime, capacity = _FACTORIES[model](mean_hours, random.Random(f"{model}/{seed}"))
    cloud = SimulatedCloud(trainer, lifetime, capacity, fast=True)
    settings = Settings(zones, trainer.target_step, 0.0, max_seconds=max_days * 24 * HOUR)
    spec = TpuSpec("simulated", "v3-8", "")
    state = supervise(spec, settings, Services(cloud, cloud, cloud, cloud.sleep))
    return Outcome(
        cloud.useful_seconds / cloud.rented_seconds if cloud.rented_seconds else 0.0,
        cloud.useful_seconds / cloud.now if cloud.now else 0.0,
        state.preemptions,
        cloud.now / 24 / HOUR,
        state.ending is Ending.FINISHED,
        len(cloud.nodes),
    )


def sweep(
    model: str,
    mean_hours: float,
    training_days: float,
    intervals_minutes: Sequence[float],
    seeds: Sequence[int],
    save_seconds: float,
    restart_seconds: float,
) -> list[Point]:
    """Useful share against checkpoint interval, over seeds."""
    points = []
    for minutes in intervals_minutes:
        trainer = TrainerModel(
            target_step=int(training_days * 24 * HOUR * 2),
            steps_per_second=2.0,
            checkpoint_interval=minutes * 60,
            save_seconds=save_seconds,
            restart_seconds=restart_seconds,
        )
        runs = [simulate(model, mean_hours, trainer, seed) for seed in seeds]
        shares = [run.useful_share for run in runs]
        points.append(
            Point(
                minutes,
                statistics.fmean(shares),
                min(shares),
                max(shares),
                statistics.fmean(run.wall_share for run in runs),
                statistics.fmean(run.preemptions for run in runs),
            )
        )
    return points


def best(points: Sequence[Point]) -> Point:
    """The interval with the highest mean share."""
    return max(points, key=lambda point: point.share)
