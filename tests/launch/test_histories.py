"""A sample of `make bench-leaks`: months in which anything fails, and nothing may be left."""

from __future__ import annotations

import math

import pytest

from testkit.histories import History, Verdict, total

SERVICES = pytest.mark.parametrize("service", ["tpu", "compute", "slice"])


@SERVICES
def test_nothing_is_left_and_no_limit_is_passed(service: str) -> None:
    for seed in range(15):
        assert History(seed, service).run() == Verdict(), seed


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@SERVICES
def test_nothing_is_left_in_a_thousand_histories(service: str) -> None:
    verdicts = [History(seed, service).run() for seed in range(1_000)]
    row = total(verdicts)
    assert row.pop("histories") == 1_000
    assert set(row.values()) == {0}


def test_seeds_decide() -> None:
    first, again = History(7, "tpu"), History(7, "tpu")
    assert first.run() == again.run()
    assert first.cloud.events == again.cloud.events


def test_a_machine_without_a_watcher_is_noticed() -> None:
    """The old service without the lease: what the table must show."""
    found = 0
    for seed in range(6):
        history = History(seed, "tpu")
        history.cloud.watch_poll, history._foreign_at = math.inf, math.inf
        found += not _judged(history).is_clean
    assert found > 0


def _judged(history: History) -> Verdict:
    verdict = history.run()
    history.cloud.watch_poll = 60.0
    return history.verdict(verdict.unending)
