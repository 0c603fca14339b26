"""The supervisor adds up the time and the cost of a run in each poll."""

from dataclasses import replace

import pytest

from bigbird_ja.launch.account import accrue
from bigbird_ja.launch.state import Observation, Phase, RunState, TrainerBeat
from tests.launch.support import RECORD


@pytest.mark.parametrize(
    ("beat_at", "limit", "reads", "billed"),
    # beat_at: time of the last heartbeat. limit: maximum lifetime of the machine in seconds, 0 for
    # no limit. reads: whether the bucket can be read. billed: expected billed seconds.
    [
        # Without a heartbeat, the machine is billed until its watcher would delete it as stalled.
        (None, 0.0, True, 5400.0),
        (None, 0.0, False, 360_000.0),  # If the bucket cannot be read, the whole time is billed.
        (None, 100_000.0, False, 96_400.0),
        (11_800.0, 0.0, True, 1800.0 + 5400.0),
        (11_800.0, 4600.0, True, 1000.0),  # The machine had used 3,600 of its 4,600 seconds.
    ],
)
def test_a_machine_that_disappeared_unobserved_is_billed_for_its_maximum_lifetime(
    beat_at, limit, reads, billed
):
    state = RunState(Phase.RUNNING, zone="zone-a", billing=True, saved_at=10_000.0)
    state = replace(state, machine_seconds=3600.0, machine_limit=limit)
    heartbeat = None if beat_at is None else TrainerBeat(5, beat_at, "training")
    seen = Observation(360_000.0, 60.0, 370_000.0, heartbeat=heartbeat, resumed=True)
    seen = replace(seen, bucket_seen=reads)
    after = accrue(state, seen, RECORD)
    assert after.billed_seconds == billed and after.cost_usd == billed / 3600 * 2.4
    assert (after.elapsed_seconds, after.billing, after.absences) == (360_000.0, False, 1)
