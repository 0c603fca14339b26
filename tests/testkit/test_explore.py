"""The supervisor satisfies its invariants in every state within bounds and on long random walks.

The exploration also finds faults that a test adds to the supervisor's code on purpose.
"""

import os
from dataclasses import replace

import pytest

from bigbird_ja.launch import account, decide, idle, supervise
from bigbird_ja.launch.service import Tpu
from bigbird_ja.launch.state import MAX_LIFETIME, Decision, Phase
from testkit import simulated_cloud
from testkit.explore import Bounds, explore, walk
from testkit.explored import INVARIANTS

FOREIGN, LEASE, BUDGET, FINISHED, TWO, LEFT = INVARIANTS
ENDLESS = 10**6  # With so many steps, the budget ends the run.
SINGLE = Bounds(processes=1)
UNENDING = replace(SINGLE, target_step=ENDLESS)
CHANGES = Bounds(changes=True, target_step=ENDLESS)
QUEUE = replace(UNENDING, queued=4, hours=6.0)
BOUNDS = {
    "finishes": Bounds(ticks=7),
    "compute": Bounds(ticks=5, service="compute"),
    "queue": Bounds(ticks=5, queued=1),
    "budget ends it": Bounds(ticks=6, target_step=ENDLESS),
    "long": replace(UNENDING, ticks=14),
    "long queue": replace(UNENDING, ticks=14, queued=1),
    "another record": replace(CHANGES, ticks=6),
}
NIGHTLY = {
    "finishes, longer": Bounds(ticks=9),
    "budget, longer": Bounds(ticks=9, target_step=ENDLESS),
    "queue, longer": Bounds(ticks=9, queued=1),
    "compute, longer": Bounds(ticks=9, service="compute"),
    "another record, longer": replace(CHANGES, ticks=9),
    "two faults": Bounds(faults=2, ticks=3),
}


def check(bounds):
    found = explore(bounds)
    print(f"{found.states:,} states, {found.edges:,} edges, {found.seconds:.0f} s")
    assert found.traces == {}
    return found


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_every_invariant_holds_in_every_state(bounds):
    assert check(bounds).states > 3_000


@pytest.mark.slow
@pytest.mark.parametrize("bounds", NIGHTLY.values(), ids=NIGHTLY)
def test_every_invariant_holds_in_every_state_of_larger_bounds(bounds):
    assert check(bounds).states > 20_000


WALKS = {
    "finishes": Bounds(ticks=300, target_step=50_000),
    "compute": Bounds(ticks=300, target_step=ENDLESS, service="compute"),
    "queue": Bounds(ticks=300, target_step=ENDLESS, queued=3),
    "another record": replace(CHANGES, ticks=300),
}
NUMBER = int(os.environ.get("BIGBIRD_JA_WALKS", "12"))  # `make bench-leaks` runs more walks.


@pytest.mark.parametrize("bounds", WALKS.values(), ids=WALKS)
@pytest.mark.parametrize("number", [NUMBER, pytest.param(150, marks=pytest.mark.slow)])
def test_no_walk_of_a_day_breaks_an_invariant(bounds, number):
    for seed in range(number):
        polls, hours = ((6.0, 200.0), (25.0, 60.0), (120.0, 200.0))[seed % 3]
        assert walk(replace(bounds, polls=polls, hours=hours), seed)[0] == [], seed


def _rents_for_longer_than_it_stored(self):
    state, io = self._state, self._io
    return io.tpus.create(self._run, state.zone, state.attempt, {}, MAX_LIFETIME)


def _counts_at_the_price_of_today(state, seen, run):
    counted = account.accrue(replace(state, machine=None), seen, run)
    return replace(counted, machine=state.machine)


def _trusts_the_answer(state, tpu, answer):
    return Decision(state.enter(Phase.ENDED if state.ending else Phase.IDLE))


# For each fault: the invariant that it violates, the object and the name that it replaces, the
# faulty function, and the bounds of the exploration.
FAULTS = {
    FOREIGN: (FOREIGN, Tpu, "belongs_to", lambda self, run: True, SINGLE),
    LEASE: (LEASE, supervise._Supervisor, "_create", _rents_for_longer_than_it_stored, UNENDING),
    BUDGET: (BUDGET, idle, "compute_remaining_lifetime", lambda state, run: MAX_LIFETIME, UNENDING),
    FINISHED: (FINISHED, decide, "check_endings", lambda state, seen, run: None, SINGLE),
    TWO: (TWO, supervise._Supervisor, "_find", lambda self: ([], {}, []), SINGLE),
    LEFT: (LEFT, supervise, "record_deletion", _trusts_the_answer, SINGLE),
    # Earlier versions contained these faults.
    "price": (
        BUDGET,
        supervise,
        "accrue",
        _counts_at_the_price_of_today,
        replace(CHANGES, ticks=13, polls=3.0, hours=24.0),
    ),
    "project": (
        TWO,
        supervise._Supervisor,
        "_get_client",
        lambda self, machine: self._io.tpus,
        CHANGES,
    ),
    "hours in a queue": (
        BUDGET,
        simulated_cloud,
        "compute_age_at_boot",
        lambda terms, wall: 0.0,
        QUEUE,
    ),
}


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=pytest.mark.slow if name == "price" else ()) for name in FAULTS],
)
def test_a_fault_is_found_with_its_shortest_trace(fault, monkeypatch):
    invariant, place, name, broken, bounds = FAULTS[fault]
    monkeypatch.setattr(place, name, broken)
    found = explore(bounds, stop_at_first=True)
    print("\n".join(found.traces.get(invariant, [])))
    assert [*found.traces] == [invariant]
