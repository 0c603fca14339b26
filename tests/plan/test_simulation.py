"""The expected hours of `plan` against the supervisor of `launch` in virtual time."""

import random

import pytest

from bigbird_ja.launch import LaunchedRun
from bigbird_ja.launch.state import Ending
from bigbird_ja.launch.supervise import World, supervise
from bigbird_ja.plan import RESTART_SECONDS, SAVE_SECONDS, run_time
from testkit.simulated_cloud import SimulatedCloud, TrainerModel

DAYS = 60
INTERVAL, RATE = 600.0, 0.25  # of checkpoints, and of preemptions an hour


def useful_share(seed):
    """Of the rented time of 60 days of training with one preemption in four hours."""
    trainer = TrainerModel(DAYS * 86_400 * 2, 2.0, INTERVAL, SAVE_SECONDS, RESTART_SECONDS)
    lifetimes = random.Random(seed)
    cloud = SimulatedCloud(trainer, lambda _: lifetimes.expovariate(RATE / 3600), fast=True)
    record = LaunchedRun(
        "gs://b",
        "simulated",
        "id-1",
        target_step=trainer.target_step,
        zones=("zone-a", "zone-b"),
        max_seconds=365 * 86_400,
    )
    state = supervise(record, World(cloud, cloud, cloud.steady, cloud.wall, cloud.sleep))
    assert state.ending is Ending.FINISHED and not cloud.nodes
    assert 250 < state.preemptions < 500
    return cloud.useful_seconds / cloud.rented_seconds


def test_the_simulated_supervisor_agrees_with_the_plan():
    time = run_time(DAYS * 24.0, INTERVAL, RATE)
    share = sum(map(useful_share, (1, 2, 3))) / 3
    assert share == pytest.approx(DAYS * 24.0 / time.rented_hours, abs=0.01)
