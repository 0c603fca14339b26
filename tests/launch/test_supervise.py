"""The supervisor with the simulated cloud, in virtual time."""

import contextlib
import itertools
from dataclasses import replace

import pytest

from bigbird_ja.launch.state import Ending
from bigbird_ja.launch.supervise import Detached, Stop
from bigbird_ja.storage.lease import LeaseLost
from testkit.simulated_cloud import SimulatedCloud
from tests.launch.support import RECORD, TRAINER, lifetimes, supervised

HOUR = 3600.0
DAYS = replace(TRAINER, target_step=100 * 24 * 3600)
LONG = replace(RECORD, target_step=DAYS.target_step)


def stopped_at(cloud, moment, stop=Stop.DELETE):
    """Return a callback for the supervisor. It returns Stop.NO until `moment`, and then `stop`."""
    return lambda: stop if cloud.now >= moment else Stop.NO


@pytest.mark.parametrize("act", ["renew_lock", "find"])
def test_a_machine_that_comes_and_goes_during_one_poll_is_counted(act):
    cloud = SimulatedCloud(DAYS, lambda ready: 5 * HOUR)
    naps = iter([20 * HOUR])

    def interfere(done, zone):
        if done == act and cloud.creations:
            cloud.advance(cloud.now + next(naps, 0.0))

    cloud.interfere = interfere
    state = supervised(cloud, LONG, stop=stopped_at(cloud, 21 * HOUR))
    assert cloud.rented_seconds > 4 * HOUR
    assert state.cost_usd >= 2.4 * cloud.rented_seconds / HOUR * 0.99


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
    """Exception that simulates a SIGKILL between two acts of the supervisor."""


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
            assert at > 100  # The run has at most `at` acts, so no later kill is possible.
            return
        cloud.sleep(37.0)
        state = supervised(cloud, record)
        assert (state.ending, state.failures) == (Ending.FINISHED, 1), at
        assert (cloud.most_at_once, cloud.nodes) == (1, []), at


@pytest.mark.parametrize("part", ["log", "read_log_tail", "append_event", "read_heartbeat"])
def test_no_failure_to_display_or_read_ends_the_loop(part):
    """Continue to supervise after an error in a function that reads files or displays messages.

    The first trainer fails, so that the supervisor reads and displays the trainer's log.
    """

    def fail(*_):
        raise RecursionError(part)

    cloud, io = SimulatedCloud(TRAINER, lifetimes(1.0), script=["exit:1"]), {}
    if part == "log":
        io["log"] = fail
    elif part == "read_heartbeat":  # Reading fails for an hour.
        real = cloud.read_heartbeat
        cloud.read_heartbeat = lambda: fail() if HOUR < cloud.now < 2 * HOUR else real()
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
