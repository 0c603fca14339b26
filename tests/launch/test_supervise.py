"""The state machine against the model of the service, in virtual time."""

import contextlib
import itertools
import math
from dataclasses import replace

import pytest

from bigbird_ja.errors import StorageError
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import ATTEMPT_LABEL, ID_LABEL, RUN_LABEL
from bigbird_ja.launch.state import Ending, Phase
from bigbird_ja.launch.supervise import Detached, Stop
from bigbird_ja.storage.lease import LeaseLost
from testkit.histories import HOUR
from testkit.simulated_cloud import START, SimulatedCloud
from tests.launch.support import RECORD, TRAINER, lifetimes, supervised


def test_neither_clocks_that_jump_nor_a_laptop_that_sleeps_count_as_a_stall():
    cloud = SimulatedCloud(TRAINER)
    jumps = iter([86_400.0, -2 * 86_400.0, 1e7])
    naps = iter([5 * 3600.0])  # far beyond the stall limit

    def sleep(seconds):
        cloud.sleep(next(naps, seconds) if cloud.now > 3600 else seconds)
        if cloud.now % 3600 < 30:
            cloud.wall_offset = next(jumps, 0.0)

    state = supervised(cloud, sleep=sleep)
    assert (state.ending, state.failures, cloud.creations) == (Ending.FINISHED, 0, 1)
    assert next(jumps, None) is None
    assert state.cost_usd == pytest.approx(2.4 * cloud.rented_seconds / 3600, rel=0.01)


@pytest.mark.parametrize(("minutes", "machines"), [(19, 1), (25, 2)])
def test_a_machine_in_repair_is_waited_for_and_then_was_preempted(minutes, machines):
    """Give it the time of a new machine to become READY, after hours of training."""
    cloud = SimulatedCloud(TRAINER)

    def sleep(seconds):
        cloud.sleep(seconds)
        if 5 * 3600 < cloud.now < 5 * 3600 + 300:
            cloud.nodes[0].ready_at = 5 * 3600 + minutes * 60.0

    state = supervised(cloud, sleep=sleep)
    assert (state.ending, state.preemptions) == (Ending.FINISHED, machines - 1)
    assert cloud.creations == machines


def test_an_ended_run_continues_without_what_ended_it():
    cloud = SimulatedCloud(TRAINER, script=["quota"] * 3)
    assert supervised(cloud).ending is Ending.GAVE_UP
    state = supervised(cloud)
    assert (state.ending, state.attempt, state.excluded_zones) == (Ending.FINISHED, 4, {})


@pytest.mark.parametrize("hours", [0.5, 5.0])
def test_waiting_in_line_uses_up_no_life_of_the_machine(hours):
    """Train ten hours on a budget of eleven, after waiting."""
    record = replace(RECORD, queued=True, max_usd=11 * 2.4, poll=300.0)
    cloud = SimulatedCloud(TRAINER, run=record, queue_seconds=hours * 3600)
    naps = iter([hours / 2 * 3600])  # an interval without a supervisor

    def sleep(seconds):
        cloud.sleep(next(naps, seconds) if cloud.now > 600 else seconds)

    state = supervised(cloud, record, sleep=sleep)
    assert (state.ending, cloud.creations, state.leases_over) == (Ending.FINISHED, 1, 0)
    assert state.billed_seconds == pytest.approx(cloud.rented_seconds, abs=300)


def test_a_queue_that_fails_or_never_moves_gives_its_place_to_the_next_zone():
    record = replace(RECORD, queued=True, poll=300.0)
    script = ["queue_failed", "stuck"]
    lives = lifetimes(math.inf, math.inf, 9.0)
    cloud = SimulatedCloud(TRAINER, lives, run=record, script=script)
    state = supervised(cloud, record)
    assert (state.ending, cloud.creations) == (Ending.FINISHED, 4)
    events = [one["event"] for one in cloud.events]
    assert events.count("no_quota") == events.count("create_timeout") == 1
    (preempted,) = [one for one in cloud.events if one["event"] == "preempted"]
    assert preempted["state"].startswith("SUSPEND") and cloud.nodes == []


DAYS = replace(TRAINER, target_step=100 * 24 * 3600)
LONG = replace(RECORD, target_step=DAYS.target_step)


def breaking(cloud, act, start, end, error):
    """Let an act fail between two times."""

    def interfere(done, where):
        if done == act and start <= cloud.now < end:
            raise error

    cloud.interfere, cloud.wake = interfere, (start, end)


def stopped_at(cloud, moment, stop=Stop.DELETE):
    """Press Ctrl-C at a time."""
    return lambda: stop if cloud.now >= moment else Stop.NO


@pytest.mark.parametrize(
    "changed", [{"project": "q"}, {"accelerator_type": "v2-8", "project": "q", "usd_per_hour": 1.0}]
)
def test_a_machine_of_another_project_trains_on_and_is_deleted_there(changed):
    cloud, said = SimulatedCloud(TRAINER), []
    with pytest.raises(Detached):
        supervised(cloud, project="p", stop=stopped_at(cloud, HOUR, Stop.DETACH))
    how = {"project": "q", "stop": stopped_at(cloud, 2 * HOUR), "log": said.append}
    state = supervised(cloud, replace(RECORD, **changed), **how)
    assert said[0].startswith("v3-8 (spot, tpu service, project p, 2.40 USD/h) trains on: next v")
    assert (state.phase, cloud.nodes, cloud.creations) == (Phase.ENDED, [], 1)
    assert state.machine.usd_per_hour == 2.4


def test_the_next_machine_is_as_the_record_says_once_the_last_one_is_gone():
    cloud = SimulatedCloud(TRAINER, lifetimes(2.0))
    with pytest.raises(Detached):
        supervised(cloud, project="p", stop=stopped_at(cloud, HOUR, Stop.DETACH))
    changed = replace(RECORD, project="q", accelerator_type="v2-8", usd_per_hour=1.0)
    state = supervised(cloud, changed, project="q")
    assert [node.project for node in cloud.past_nodes] == ["p", "q"]
    assert (state.machine.project, state.machine.usd_per_hour, state.attempt) == ("q", 1.0, 2)


@pytest.mark.parametrize(("act", "start"), [("renew_lock", HOUR), ("write", HOUR), ("write", 0.0)])
def test_nothing_is_rented_unless_the_lock_is_held_and_the_decision_stored(act, start):
    cloud = SimulatedCloud(TRAINER, lambda ready: 2 * HOUR)
    breaking(cloud, act, start, 5 * HOUR, StorageError("the bucket fails"))
    fails = cloud.interfere

    def interfere(done, zone):
        fails(done, zone)
        if done == "create":
            assert cloud.state is not None and cloud.state["phase"] == "creating"

    cloud.interfere = interfere
    assert supervised(cloud).ending is Ending.FINISHED
    created = [one["time"] - START for one in cloud.events if one["event"] == "creating"]
    assert created and not [moment for moment in created if start <= moment < 5 * HOUR]


@pytest.mark.parametrize("hours", [-9.0, 12.0])
@pytest.mark.parametrize("limits", [{"max_usd": 40.0}, {"max_seconds": 30 * HOUR}])
def test_clocks_that_differ_change_neither_hours_nor_money(limits, hours):
    """Resume ten hours later on another machine with a wrong clock."""
    cloud = SimulatedCloud(DAYS)
    record = replace(LONG, **limits)  # type: ignore[arg-type]
    with pytest.raises(Detached):
        supervised(cloud, record, stop=stopped_at(cloud, 5 * HOUR, Stop.DETACH))
    cloud.advance(cloud.now + 10 * HOUR)
    cloud.wall_offset = hours * HOUR
    state = supervised(cloud, record)
    assert (state.ending, state.ending_reason) == (Ending.BUDGET, "interrupted")
    assert (cloud.creations, cloud.nodes) == (1, [])
    spent, most_usd = 2.4 * cloud.rented_seconds / HOUR, limits.get("max_usd", math.inf)
    assert spent <= most_usd + 0.5
    assert cloud.now <= limits.get("max_seconds", math.inf) + 0.2 * HOUR
    assert state.cost_usd == pytest.approx(spent, rel=0.05)
    most = min(most_usd / 2.4, limits.get("max_seconds", math.inf) / HOUR)
    assert cloud.rented_seconds / HOUR > 0.9 * most  # No run ends before its limit.


def test_what_could_not_be_deleted_is_counted_when_somebody_comes_back():
    cloud = SimulatedCloud(DAYS)
    breaking(cloud, "delete", HOUR, 3 * HOUR, ServiceFault(Kind.UNAVAILABLE, "no answer"))
    record = replace(LONG, max_usd=2.4 * 20)
    state = supervised(cloud, record, stop=stopped_at(cloud, HOUR))
    assert state.ending_reason == "io_error" and len(cloud.nodes) == 1
    cloud.advance(cloud.now + 100 * HOUR)  # Its lease has deleted the machine meanwhile.
    cloud.fast = True
    state = supervised(cloud, record)
    assert state.cost_usd >= 2.4 * cloud.rented_seconds / HOUR * 0.99
    assert cloud.rented_seconds < 20.2 * HOUR


@pytest.mark.parametrize("act", ["renew_lock", "find"])
def test_what_comes_and_goes_while_its_supervisor_sleeps_within_a_look_is_counted(act):
    cloud = SimulatedCloud(DAYS, lambda ready: 5 * HOUR)
    naps = iter([20 * HOUR])

    def interfere(done, zone):
        if done == act and cloud.creations:
            cloud.advance(cloud.now + next(naps, 0.0))

    cloud.interfere = interfere
    state = supervised(cloud, LONG, stop=stopped_at(cloud, 21 * HOUR))
    assert cloud.rented_seconds > 4 * HOUR
    assert state.cost_usd >= 2.4 * cloud.rented_seconds / HOUR * 0.99


def test_a_name_taken_by_another_ends_the_run_and_is_left_alone():
    labels = {RUN_LABEL: "run", ID_LABEL: "id-of-a-colleague", ATTEMPT_LABEL: "1"}
    cloud = SimulatedCloud(TRAINER, foreign={"zone-c": labels})
    state = supervised(cloud)
    assert (state.ending, state.ending_reason) == (Ending.GAVE_UP, "bad_input")
    assert all(value in state.ending_message for value in labels.values())
    assert "zones/zone-c/run" in state.ending_message
    assert (cloud.creations, cloud.foreign_touched) == (0, 0)


def test_an_answer_that_lacks_the_machine_once_is_no_preemption_and_makes_no_second_one():
    cloud = SimulatedCloud(TRAINER)
    real = cloud.find
    cloud.find = lambda *where, project: (  # type: ignore[method-assign]
        None if HOUR <= cloud.now % (4 * HOUR) < HOUR + 20 else real(*where, project)
    )
    state = supervised(cloud)
    assert (state.ending, state.preemptions) == (Ending.FINISHED, 0)
    assert (cloud.creations, cloud.most_at_once) == (1, 1)


class Killed(BaseException):
    """SIGKILL of the supervisor after one of its acts, before the next one."""


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.slow)])
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
            supervised(cloud, record)
            assert at > 100  # All acts were tried.
            return
        cloud.sleep(37.0)
        state = supervised(cloud, record)
        assert (state.ending, state.failures) == (Ending.FINISHED, 1), at
        assert (cloud.most_at_once, cloud.nodes) == (1, []), at


@pytest.mark.parametrize("part", ["log", "log_tail", "append_event", "heartbeat"])
def test_no_failure_of_what_is_displayed_or_read_ends_the_loop(part):
    """Fail as a redaction of a log once did.

    A failing trainer's log is displayed.
    """

    def fail(*_):
        raise RecursionError(part)

    cloud, io = SimulatedCloud(TRAINER, lifetimes(1.0), script=["exit:1"]), {}
    if part == "log":
        io["log"] = fail
    elif part == "heartbeat":  # for an hour
        real = cloud.heartbeat
        cloud.heartbeat = lambda: fail() if HOUR < cloud.now < 2 * HOUR else real()
    else:
        setattr(cloud, part, fail)
    state = supervised(cloud, **io)
    assert (state.ending, state.failures, cloud.nodes) == (Ending.FINISHED, 1, [])


def test_a_supervisor_that_loses_its_lock_after_storing_its_decision_does_not_rent():
    cloud = SimulatedCloud(TRAINER)

    def interfere(act, zone):
        if act == "renew_lock" and cloud.state and cloud.state["phase"] == "creating":
            raise LeaseLost("another supervisor has it")

    cloud.interfere = interfere
    with pytest.raises(LeaseLost):
        supervised(cloud)
    assert cloud.state["phase"] == "creating" and cloud.creations == 0


def test_a_state_that_has_ended_without_an_ending_continues_with_its_machine():
    cloud = SimulatedCloud(TRAINER)
    with pytest.raises(Detached):
        supervised(cloud, stop=stopped_at(cloud, HOUR, Stop.DETACH))
    cloud.state |= {"phase": "ended"}
    state = supervised(cloud)
    assert (state.ending, cloud.creations, cloud.nodes) == (Ending.FINISHED, 1, [])
