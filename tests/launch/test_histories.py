"""A sample of `make bench-leaks`: months in which anything fails, and nothing may be left."""

import math
import os

import pytest

from bigbird_ja.launch import LaunchedRun
from testkit.histories import DAY, History, broken
from testkit.simulated_cloud import SimulatedCloud, TrainerModel

SEEDS = int(os.environ.get("BIGBIRD_JA_HISTORIES", "10"))  # `make bench-leaks` has more


@pytest.mark.parametrize("service", ["tpu", "compute", "queue"])
@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_nothing_is_left_and_no_limit_is_passed(service, seeds):
    for seed in range(seeds):
        assert History(seed, service).run() == [], seed


def test_a_machine_without_a_watcher_is_noticed():
    record = LaunchedRun("gs://b", "run", "id-1", "p", target_step=10**9, usd_per_hour=2.4)
    for watch_poll, is_noticed in ((60.0, False), (math.inf, True)):
        cloud = SimulatedCloud(TrainerModel(10**9, 1.0), watch_poll=watch_poll, run=record)
        cloud.create(record, "zone-a", 1, {}, 3600.0)
        cloud.advance(DAY)
        assert ("a machine outlives its lease or limit" in broken(cloud, record)) == is_noticed
