"""Every state within small bounds, and what is found when the code is broken on purpose."""

from dataclasses import replace

import pytest

from bigbird_ja.launch import decide, idle, supervise
from bigbird_ja.launch.service import Tpu
from bigbird_ja.launch.state import MAX_LIFETIME
from testkit.explore import Bounds, explore
from testkit.explored import INVARIANTS

FOREIGN, LEASE, BUDGET, FINISHED, TWO = INVARIANTS
ENDLESS = 10**6  # steps: the budget ends the run
ALONE = Bounds(processes=1)
UNENDING = replace(ALONE, target_step=ENDLESS)


def _rents_for_longer_than_it_stored(self):
    state, world = self._state, self._world
    return world.tpus.create(self._run, state.zone, state.attempt, {}, MAX_LIFETIME)


@pytest.mark.parametrize(
    ("bounds", "states"),
    [
        (Bounds(ticks=7), 5_000),
        (Bounds(ticks=5, service="compute"), 3_000),
        (Bounds(ticks=5, queued=True), 3_000),
        (Bounds(ticks=6, target_step=ENDLESS), 3_000),
        (replace(UNENDING, ticks=14), 3_000),
        (replace(UNENDING, ticks=14, queued=True), 3_000),
        pytest.param(Bounds(ticks=9), 20_000, marks=pytest.mark.nightly),
        pytest.param(Bounds(ticks=9, target_step=ENDLESS), 20_000, marks=pytest.mark.nightly),
        pytest.param(Bounds(ticks=9, queued=True), 20_000, marks=pytest.mark.nightly),
        pytest.param(Bounds(ticks=9, service="compute"), 20_000, marks=pytest.mark.nightly),
        pytest.param(Bounds(faults=2, ticks=3), 100_000, marks=pytest.mark.nightly),
    ],
    ids=[
        *("finishes", "compute", "queue", "budget ends it", "long", "long queue"),
        *("finishes, longer", "budget, longer", "queue, longer", "compute, longer", "two faults"),
    ],
)
def test_every_invariant_holds_in_every_state(bounds, states):
    found = explore(bounds)
    print(f"{found.states:,} states, {found.edges:,} edges, {found.seconds:.0f} s")
    assert found.traces == {}
    assert found.states > states


@pytest.mark.parametrize(
    ("invariant", "place", "name", "broken", "bounds"),
    [
        (FOREIGN, Tpu, "belongs_to", lambda self, run: True, ALONE),
        (LEASE, supervise._Supervisor, "_create", _rents_for_longer_than_it_stored, UNENDING),
        (BUDGET, idle, "remaining_lifetime", lambda state, run: MAX_LIFETIME, UNENDING),
        (FINISHED, decide, "check_endings", lambda state, seen, run: None, ALONE),
        (TWO, supervise._Supervisor, "_list", lambda self: ([], {}, []), ALONE),
    ],
    ids=INVARIANTS,
)
def test_what_is_broken_is_found_with_its_shortest_trace(
    invariant, place, name, broken, bounds, monkeypatch
):
    monkeypatch.setattr(place, name, broken)
    found = explore(bounds, stop_at_first=True)
    print("\n".join(found.traces.get(invariant, [])))
    assert [*found.traces] == [invariant]
