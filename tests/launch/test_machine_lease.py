"""What a machine may cost and whose it is, whatever happens to those who watch it: in virtual time.

Each of these cost money once; the numbers are those of docs/design/launch.md.
"""

import contextlib
import itertools
import math
from dataclasses import replace

import pytest

from bigbird_ja.launch import ATTEMPT_LABEL, ID_LABEL, RUN_LABEL
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.state import Ending
from bigbird_ja.launch.supervise import Detached, Stop
from bigbird_ja.process.errors import StorageError
from testkit.simulated_cloud import START, SimulatedCloud
from tests.launch.test_supervisor import RECORD, TRAINER, names, run, times

HOUR = 3600.0
DAYS = replace(TRAINER, target_step=100 * 24 * 3600)
LONG = replace(RECORD, target_step=DAYS.target_step)


def breaking(cloud, act, start, end, error):
    """An act fails between two times of day."""

    def interfere(done, where):
        if done == act and start <= cloud.now < end:
            raise error

    cloud.interfere, cloud.wake = interfere, (start, end)


def stopped_at(cloud, moment, stop=Stop.DELETE):
    """A person who presses Ctrl-C at a time of day."""
    return lambda: stop if cloud.now >= moment else Stop.NO


# --- a bucket that fails --------------------------------------------------------------------------


@pytest.mark.parametrize(("act", "start"), [("beat", HOUR), ("write", HOUR), ("write", 0.0)])
def test_nothing_is_rented_unless_the_lock_is_held_and_the_decision_stored(act, start):
    cloud = SimulatedCloud(TRAINER, lambda ready: 2 * HOUR)
    breaking(cloud, act, start, 5 * HOUR, StorageError("the bucket fails"))
    fails = cloud.interfere

    def interfere(done, zone):
        fails(done, zone)
        if done == "create":
            assert cloud.state is not None and cloud.state["phase"] == "creating"

    cloud.interfere = interfere
    assert run(cloud).ending is Ending.FINISHED
    created = [moment - START for moment in times(cloud, "creating")]
    assert created and not [moment for moment in created if start <= moment < 5 * HOUR]


# --- limits and leases ----------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-9.0, 12.0])
@pytest.mark.parametrize("limits", [{"max_usd": 40.0}, {"max_seconds": 30 * HOUR}])
def test_clocks_that_differ_change_neither_hours_nor_money(limits, hours):
    """Two supervisors, the second ten hours later on another machine with a wrong clock."""
    cloud = SimulatedCloud(DAYS)
    record = replace(LONG, **limits)  # type: ignore[arg-type]
    with pytest.raises(Detached):
        run(cloud, record, stop=stopped_at(cloud, 5 * HOUR, Stop.DETACH))
    cloud.advance(cloud.now + 10 * HOUR)
    cloud.wall_offset = hours * HOUR
    state = run(cloud, record)
    assert (state.ending, state.ending_reason) == (Ending.BUDGET, "interrupted")
    assert (cloud.creations, cloud.nodes) == (1, [])
    spent, most_usd = 2.4 * cloud.rented_seconds / HOUR, limits.get("max_usd", math.inf)
    assert spent <= most_usd + 0.5
    assert cloud.now <= limits.get("max_seconds", math.inf) + 0.2 * HOUR
    assert state.cost_usd == pytest.approx(spent, rel=0.05)
    most = min(most_usd / 2.4, limits.get("max_seconds", math.inf) / HOUR)
    assert cloud.rented_seconds / HOUR > 0.9 * most  # and ends no run before


def test_what_could_not_be_deleted_is_counted_when_somebody_comes_back():
    cloud = SimulatedCloud(DAYS)
    breaking(cloud, "delete", HOUR, 3 * HOUR, ServiceFault(Kind.UNAVAILABLE, "no answer"))
    record = replace(LONG, max_usd=2.4 * 20)
    state = run(cloud, record, stop=stopped_at(cloud, HOUR))
    assert state.ending_reason == "io_error" and len(cloud.nodes) == 1
    cloud.advance(cloud.now + 100 * HOUR)  # its lease has deleted it meanwhile
    cloud.fast = True
    state = run(cloud, record)
    assert state.cost_usd >= 2.4 * cloud.rented_seconds / HOUR * 0.99
    assert cloud.rented_seconds < 20.2 * HOUR


@pytest.mark.parametrize("act", ["beat", "list"])
def test_what_comes_and_goes_while_its_supervisor_sleeps_within_a_look_is_counted(act):
    cloud = SimulatedCloud(DAYS, lambda ready: 5 * HOUR)
    naps = iter([20 * HOUR])

    def interfere(done, zone):
        if done == act and cloud.creations:
            cloud.advance(cloud.now + next(naps, 0.0))

    cloud.interfere = interfere
    state = run(cloud, LONG, stop=stopped_at(cloud, 21 * HOUR))
    assert cloud.rented_seconds > 4 * HOUR
    assert state.cost_usd >= 2.4 * cloud.rented_seconds / HOUR * 0.99


# --- whose machine it is --------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["zone-a", "zone-c"])
def test_a_name_taken_by_another_ends_the_run_and_is_left_alone(zone):
    labels = {RUN_LABEL: "run", ID_LABEL: "id-of-a-colleague", ATTEMPT_LABEL: "1"}
    cloud = SimulatedCloud(TRAINER, foreign={zone: labels})
    state = run(cloud)
    assert (state.ending, state.ending_reason) == (Ending.GAVE_UP, "bad_input")
    assert all(value in state.ending_message for value in labels.values())
    assert f"zones/{zone}/run" in state.ending_message
    assert (cloud.creations, cloud.foreign_touched) == (0, 0)


@pytest.mark.parametrize(
    ("seconds", "hides_names"), [(20.0, False), (600.0, False), (2 * HOUR, False), (20.0, True)]
)
def test_a_listing_that_blinks_is_no_preemption_and_makes_no_second_machine(seconds, hides_names):
    cloud = SimulatedCloud(TRAINER)
    cloud.blinks = lambda zone, now: HOUR <= now % (4 * HOUR) < HOUR + seconds
    real = cloud.find
    cloud.find = lambda zone, name: (  # type: ignore[method-assign]
        None if hides_names and cloud.blinks(zone, cloud.now) else real(zone, name)
    )
    state = run(cloud)
    assert (state.ending, state.preemptions) == (Ending.FINISHED, 0)
    assert (cloud.creations, cloud.most_at_once) == (1, 1)


def test_of_two_machines_of_a_run_one_is_adopted_and_the_other_deleted():
    cloud = SimulatedCloud(TRAINER)
    for zone in ("zone-b", "zone-c"):
        cloud.create(RECORD, zone, 4, {}, math.inf)
    state = run(cloud, stop=stopped_at(cloud, HOUR))
    assert (state.ending, state.attempt) == (Ending.INTERRUPTED, 4)
    assert "adopted" in names(cloud)
    assert sorted(node.ends_at > HOUR for node in cloud.past_nodes) == [False, True]


# --- killed between any two acts ------------------------------------------------------------------


class Killed(Exception):
    """SIGKILL of the supervisor, before one of its acts: that is, after the one before."""


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.nightly)])
def test_killed_between_any_two_acts_the_run_finishes_on_one_machine_at_a_time(stride):
    record = replace(RECORD, target_step=3_000, poll=120.0)
    for at in itertools.chain(range(3), itertools.count(3, stride)):
        cloud = SimulatedCloud(replace(TRAINER, target_step=3_000), lambda ready: 1200.0)
        cloud.script = ["stockout", "ok", "exit:1", "lost"]
        cloud.delete_script = ["unavailable", "internal", "permission", "unavailable"]
        left = iter(range(at + 1))

        def interfere(done, zone):
            if next(left, None) == at:  # noqa: B023
                raise Killed

        cloud.interfere = interfere
        with contextlib.suppress(Killed):
            run(cloud, record)
            assert at > 100  # there are no more acts
            return
        cloud.sleep(37.0)
        state = run(cloud, record)
        assert (state.ending, state.failures) == (Ending.FINISHED, 1), at
        assert (cloud.most_at_once, cloud.nodes) == (1, []), at
