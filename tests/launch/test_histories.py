"""A sample of `make bench-leaks`: months in which anything fails, and nothing may be left."""

import math
import os

import pytest

from testkit.histories import History, Verdict

SEEDS = int(os.environ.get("BIGBIRD_JA_HISTORIES", "10"))  # `make bench-leaks` has more


@pytest.mark.parametrize("service", ["tpu", "compute", "queue"])
@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_nothing_is_left_and_no_limit_is_passed(service, seeds):
    for seed in range(seeds):
        assert History(seed, service).run() == Verdict(), seed


def test_machines_without_a_watcher_are_noticed():
    """The old service without the lease: what the table must show."""
    verdicts = []
    for seed in range(6):
        history = History(seed, "tpu")
        history.cloud.watch_poll, history._foreign_at = math.inf, math.inf
        verdict = history.run()
        history.cloud.watch_poll = 60.0
        verdicts.append(history.verdict(verdict.unending))
    assert any(verdict != Verdict() for verdict in verdicts)
