"""A sample of `make bench-leaks`: months of failures, after which nothing may be left."""

import math
import os
import random
from dataclasses import replace

import pytest

from bigbird_ja.launch.launched_run import LaunchedRun
from testkit import histories
from testkit.histories import DAY, HOUR, POLL, History, broken
from testkit.simulated_cloud import SimulatedCloud, TrainerModel

# `make bench-leaks` runs more.
SEEDS = int(os.environ.get("BIGBIRD_JA_HISTORIES", "10"))


@pytest.mark.parametrize("service", ["tpu", "compute", "queue"])
@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(1_000, marks=pytest.mark.slow)])
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


class Changing(History):
    """History in which each supervisor has other flags: price, zones, project and type."""

    def __init__(self, seed, service):
        super().__init__(seed, service)
        self._changes = random.Random(f"{service}/{seed}/changes")
        self.prices = {}
        create, cloud = self.cloud.create, self.cloud

        def noting(run, zone, attempt, metadata, limit):
            self.prices[attempt] = run.usd_per_hour
            return create(run, zone, attempt, metadata, limit)

        cloud.create = noting

    def _session(self):
        rng = self._changes
        zones = (*rng.sample(histories.ZONES, 3),)
        self.record = replace(
            self.record,
            usd_per_hour=rng.choice([0.3, 2.4, 9.6]),
            zones=zones,
            project=rng.choice(["p", "q"]),
            accelerator_type=rng.choice(["v2-8", "v3-8"]),
        )
        return super()._session()

    def broken(self, unending):
        nodes = [*self.cloud.past_nodes, *self.cloud.nodes]
        spent = late = 0.0
        for node in nodes:
            begin, end = node.billed(self.cloud.now)
            if end <= begin:  # never READY
                continue
            spent += (end - begin) / HOUR * self.prices[node.attempt]
            late += (2 * POLL + 91.0) / HOUR * self.prices[node.attempt]
        self.excess = spent - late - (self.record.max_usd or spent)
        limit, self.record = self.record, replace(self.record, max_usd=None)
        broken = super().broken(unending)  # The check counts costs at one price.
        self.record = limit
        return broken


@pytest.mark.parametrize("service", ["tpu", "queue"])
@pytest.mark.parametrize("seeds", [8, pytest.param(250, marks=pytest.mark.slow)])
def test_no_limit_is_passed_whatever_the_flags_of_later_launches(service, seeds):
    for seed in range(seeds):
        history = Changing(seed, service)
        assert history.run() == [], seed
        assert history.excess <= 1e-6, (seed, history.excess)
