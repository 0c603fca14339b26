"""What a machine may cost and whose it is, whatever happens to those who watch it: in virtual time.

Each of these cost money once; the numbers are those of docs/design/launch.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest

from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.run_state import Ending, Phase, RunState
from bigbird_ja.launch.services import ATTEMPT_LABEL, ID_LABEL, RUN_LABEL
from bigbird_ja.launch.supervise import Detached, Stop
from bigbird_ja.process.errors import Refused, StorageError
from bigbird_ja.storage.lease import LeaseLost
from testkit.simulated_cloud import START, SimulatedCloud
from tests.launch.test_supervisor import SETTINGS, SPEC, TRAINER, names, run, times, zones

HOUR = 3600.0
DAYS = replace(TRAINER, target_step=100 * 24 * 3600)
LONG = replace(SETTINGS, target_step=DAYS.target_step)
SERVICES = pytest.mark.parametrize("service", ["tpu", "compute"])


def breaking(
    cloud: SimulatedCloud,
    acts: set[str],
    start: float,
    end: float,
    error: Exception | None = None,
    zone: str = "",
) -> None:
    """Acts fail between two times of day, in one zone or in all."""

    def interfere(act: str, where: str) -> None:
        if act in acts and zone in ("", where) and start <= cloud.now < end:
            raise error or StorageError("the bucket fails")

    cloud.interfere, cloud.wake = interfere, (start, end)


def stopped_at(
    cloud: SimulatedCloud, moment: float, stop: Stop = Stop.DELETE
) -> Callable[[], Stop]:
    """A person who presses Ctrl-C at a time of day."""
    return lambda: stop if cloud.now >= moment else Stop.NO


# --- a bucket that fails --------------------------------------------------------------------------

REFUSED = PermissionError(13, "permission denied (403)", "gs://b/run/supervisor/lock.json")


@pytest.mark.parametrize("error", [REFUSED, Refused("no credentials"), StorageError("fails")])
@pytest.mark.parametrize("act", ["beat", "write", "read"])
def test_a_bucket_that_refuses_for_a_while_ends_nothing(act: str, error: Exception) -> None:
    cloud = SimulatedCloud(TRAINER)
    breaking(cloud, {act}, HOUR, 4 * HOUR, error)
    state = run(cloud)
    assert (state.ending, state.failures) == (Ending.FINISHED, 0)
    assert (cloud.creations, cloud.nodes) == (1, [])


@SERVICES
@pytest.mark.parametrize("act", ["beat", "write"])
def test_where_no_renewal_can_be_written_the_machine_ends_with_its_lease(
    service: str, act: str
) -> None:
    cloud = SimulatedCloud(DAYS, service=service, fast=True)
    breaking(cloud, {act}, 2 * HOUR, math.inf, REFUSED)
    state = run(cloud, LONG)
    assert (state.phase, state.ending) == (Phase.ENDED, Ending.GAVE_UP)
    assert (cloud.creations, cloud.nodes) == (1, [])
    assert cloud.rented_seconds < (2 + 12 + 0.2) * HOUR


@pytest.mark.parametrize("act", ["beat", "write"])
def test_nothing_is_rented_unless_the_lock_is_held_and_the_decision_stored(act: str) -> None:
    cloud = SimulatedCloud(TRAINER, lambda ready: 2 * HOUR)
    breaking(cloud, {act}, HOUR, 5 * HOUR)
    fails = cloud.interfere

    def interfere(done: str, zone: str) -> None:
        fails(done, zone)
        if done == "create":
            assert cloud.state is not None and cloud.state["phase"] == "creating"

    cloud.interfere = interfere
    assert run(cloud).ending is Ending.FINISHED
    created = [moment - START for moment in times(cloud, "creating")]
    assert created and not [moment for moment in created if HOUR <= moment < 5 * HOUR]


def test_the_lock_is_renewed_again_before_renting() -> None:
    """Another supervisor took over between this turn's look and its decision."""
    cloud = SimulatedCloud(TRAINER)
    beats = iter(range(2))

    def beat() -> None:
        if next(beats, None):
            raise LeaseLost("another has taken over")

    with pytest.raises(LeaseLost):
        run(cloud, beat=beat)
    assert cloud.creations == 0


def test_a_deletion_needs_no_bucket() -> None:
    cloud = SimulatedCloud(DAYS, fast=True)
    breaking(cloud, {"beat", "write", "read"}, HOUR, math.inf)
    cloud.wake = (HOUR, 2 * HOUR)
    state = run(cloud, stop=stopped_at(cloud, 2 * HOUR))
    assert (state.ending, cloud.nodes) == (Ending.INTERRUPTED, [])
    assert cloud.rented_seconds < 2.1 * HOUR


# --- zones that do not answer ---------------------------------------------------------------------

AWAY = ServiceFault(Kind.UNAVAILABLE, "no answer")


def test_a_zone_that_cannot_be_listed_holds_no_deletion_up() -> None:
    cloud = SimulatedCloud(TRAINER, script=["stockout", "freeze"])
    breaking(cloud, {"list"}, 600, math.inf, AWAY, "zone-a")
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    assert "zone-a" in state.used_zones
    assert 0 < times(cloud, "deleted")[0] - times(cloud, "failed")[0] < 300
    assert cloud.nodes == []


def test_a_zone_that_neither_lists_nor_deletes_is_named_with_the_end_of_the_lease() -> None:
    cloud = SimulatedCloud(TRAINER)
    breaking(cloud, {"list", "delete"}, 9 * HOUR, math.inf, AWAY)
    state = run(cloud)
    assert state.ending_reason == "io_error"
    assert "zone-a could not be listed" in state.ending_message
    assert "at the end of its lease" in state.ending_message


def test_a_zone_that_cannot_be_listed_is_asked_to_delete_all_the_same() -> None:
    cloud = SimulatedCloud(TRAINER, ended_patience=math.inf)
    breaking(cloud, {"list"}, 9 * HOUR, math.inf, AWAY)
    run(cloud)
    assert cloud.nodes == []


@SERVICES
@pytest.mark.parametrize("budget", [None, 2.4 * 30])
def test_a_zone_that_never_answers_again_ends_the_run(service: str, budget: float | None) -> None:
    cloud = SimulatedCloud(DAYS, service=service, fast=True)
    breaking(cloud, {"list", "delete"}, HOUR, math.inf, AWAY)
    state = run(cloud, replace(LONG, max_usd=budget))
    assert (state.phase, cloud.creations) == (Phase.ENDED, 1)
    cloud.advance(cloud.now + 13 * HOUR)
    assert cloud.nodes == []


def test_zones_that_refuse_at_the_start_leave_the_others() -> None:
    cloud = SimulatedCloud(TRAINER)
    denied = ServiceFault(Kind.PERMISSION, "denied")

    def interfere(act: str, zone: str) -> None:
        if act == "list" and zone != "zone-c":
            raise denied

    cloud.interfere = interfere
    assert run(cloud).ending is Ending.FINISHED
    assert zones(cloud, "created") == ["zone-c"]


# --- limits and leases ----------------------------------------------------------------------------


@SERVICES
@pytest.mark.parametrize(
    ("limits", "hours"),
    [({}, 1 + 12.1), ({"max_seconds": 5 * HOUR}, 5.1), ({"max_usd": 12.0}, 5.1)],
)
def test_a_detached_trainer_has_an_end(
    service: str, limits: dict[str, float], hours: float
) -> None:
    """A healthy one used to be billed for ever: the limits lived in the supervisor only."""
    cloud = SimulatedCloud(DAYS, service=service, fast=True, wake=(HOUR,))
    settings = replace(LONG, **limits)  # type: ignore[arg-type]
    with pytest.raises(Detached):
        run(cloud, settings, stop=stopped_at(cloud, HOUR, Stop.DETACH))
    assert len(cloud.nodes) == 1
    cloud.advance(100 * HOUR)
    assert cloud.nodes == []
    assert cloud.rented_seconds < hours * HOUR
    if limits:  # and whoever comes back finds that the limit is spent
        state = run(cloud, settings)
        assert (state.ending, cloud.creations) == (Ending.BUDGET, 1)


@pytest.mark.parametrize("hours", [-9.0, 9.0, 12.0])
@pytest.mark.parametrize("limits", [{"max_usd": 40.0}, {"max_seconds": 30 * HOUR}])
def test_clocks_that_differ_change_neither_hours_nor_money(
    limits: dict[str, float], hours: float
) -> None:
    """Two supervisors, the second ten hours later on another machine with a wrong clock."""
    cloud = SimulatedCloud(DAYS)
    settings = replace(LONG, **limits)  # type: ignore[arg-type]
    with pytest.raises(Detached):
        run(cloud, settings, stop=stopped_at(cloud, 5 * HOUR, Stop.DETACH))
    cloud.advance(cloud.now + 10 * HOUR)
    cloud.wall_offset = hours * HOUR
    state = run(cloud, settings)
    assert (state.ending, state.ending_reason) == (Ending.BUDGET, "interrupted")
    assert (cloud.creations, cloud.nodes) == (1, [])
    spent, most_usd = 2.4 * cloud.rented_seconds / HOUR, limits.get("max_usd", math.inf)
    assert spent <= most_usd + 0.5
    assert cloud.now <= limits.get("max_seconds", math.inf) + 0.2 * HOUR
    assert state.cost_usd == pytest.approx(spent, rel=0.05)
    most = min(most_usd / 2.4, limits.get("max_seconds", math.inf) / HOUR)
    assert cloud.rented_seconds / HOUR > 0.9 * most  # and ends no run before


def test_a_run_past_its_last_step_rents_nothing() -> None:
    cloud = SimulatedCloud(TRAINER, saved_step=50_000.0)
    state = run(cloud)
    assert (state.ending, state.best_step) == (Ending.FINISHED, 50_000)
    assert cloud.creations == 0


def test_the_end_of_a_lease_is_no_failure_and_no_preemption() -> None:
    cloud = SimulatedCloud(TRAINER)
    state = run(cloud, replace(SETTINGS, longest=3 * HOUR))
    assert state.ending is Ending.FINISHED
    assert (state.failures, state.preemptions, state.leases_over) == (0, 0, 3)
    assert names(cloud).count("lease_over") == 3


def test_a_short_lease_is_renewed_in_time() -> None:
    cloud = SimulatedCloud(TRAINER, lease=600.0)
    state = run(cloud, replace(SETTINGS, lease=600.0))
    assert (state.ending, state.leases_over, cloud.creations) == (Ending.FINISHED, 0, 1)


def test_a_budget_that_does_not_pay_for_another_start_rents_nothing() -> None:
    cloud = SimulatedCloud(TRAINER, lambda ready: 1.9 * HOUR)
    state = run(cloud, replace(SETTINGS, max_seconds=2 * HOUR))
    assert (state.ending, cloud.creations) == (Ending.BUDGET, 1)
    assert "does not pay for 10 minutes" in state.ending_message


def test_what_could_not_be_deleted_is_counted_when_somebody_comes_back() -> None:
    cloud = SimulatedCloud(DAYS)
    breaking(cloud, {"delete"}, HOUR, 3 * HOUR, AWAY)
    settings = replace(LONG, max_usd=2.4 * 20)
    state = run(cloud, settings, stop=stopped_at(cloud, HOUR))
    assert state.ending_reason == "io_error" and len(cloud.nodes) == 1
    cloud.advance(cloud.now + 100 * HOUR)  # its lease has deleted it meanwhile
    cloud.fast = True
    state = run(cloud, settings)
    assert state.cost_usd >= 2.4 * cloud.rented_seconds / HOUR * 0.99
    assert cloud.rented_seconds < 20.2 * HOUR


# --- whose machine it is --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"owner": "someone-else", "purpose": "production-serving"},
        {RUN_LABEL: "run", ID_LABEL: "id-of-a-colleague", ATTEMPT_LABEL: "1"},
    ],
)
@pytest.mark.parametrize("zone", ["zone-a", "zone-c"])
def test_a_name_taken_by_another_ends_the_run_and_is_left_alone(
    labels: Mapping[str, str], zone: str
) -> None:
    cloud = SimulatedCloud(TRAINER, foreign={zone: labels})
    state = run(cloud)
    assert (state.ending, state.ending_reason) == (Ending.GAVE_UP, "bad_input")
    assert all(value in state.ending_message for value in labels.values())
    assert f"zones/{zone}/run" in state.ending_message
    assert (cloud.creations, cloud.foreign_touched) == (0, 0)


def test_one_empty_listing_does_not_prove_a_deletion() -> None:
    """It used to say that the TPU is deleted, which trained on for twelve hours."""
    cloud = SimulatedCloud(DAYS, fast=True, wake=(HOUR,))
    cloud.blinks = lambda zone, now: HOUR <= now < HOUR + 120
    state = run(cloud, stop=stopped_at(cloud, HOUR))
    assert (state.phase, state.ending) == (Phase.ENDED, Ending.INTERRUPTED)
    assert cloud.nodes == [] and "deleted" in names(cloud)


@pytest.mark.parametrize(
    ("seconds", "hides_names"), [(20.0, False), (600.0, False), (2 * HOUR, False), (20.0, True)]
)
def test_a_listing_that_blinks_is_no_preemption_and_makes_no_second_machine(
    seconds: float, hides_names: bool
) -> None:
    cloud = SimulatedCloud(TRAINER)
    cloud.blinks = lambda zone, now: HOUR <= now % (4 * HOUR) < HOUR + seconds
    real = cloud.find
    cloud.find = lambda zone, name: (  # type: ignore[method-assign]
        None if hides_names and cloud.blinks(zone, cloud.now) else real(zone, name)
    )
    state = run(cloud)
    assert (state.ending, state.preemptions) == (Ending.FINISHED, 0)
    assert (cloud.creations, cloud.most_at_once) == (1, 1)


def test_of_two_machines_of_a_run_one_is_adopted_and_the_other_deleted() -> None:
    cloud = SimulatedCloud(TRAINER)
    for zone in ("zone-b", "zone-c"):
        cloud.create(SPEC, zone, 4, {}, math.inf)
    state = run(cloud, stop=stopped_at(cloud, HOUR))
    assert (state.ending, state.attempt) == (Ending.INTERRUPTED, 4)
    assert "adopted" in names(cloud)
    assert sorted(node.ends_at > HOUR for node in cloud.past_nodes) == [False, True]


def test_a_second_machine_that_appears_while_one_trains_is_deleted() -> None:
    cloud = SimulatedCloud(TRAINER)

    def interfere(act: str, zone: str) -> None:
        if cloud.now > HOUR and cloud.creations == 1:
            cloud._add_node(SPEC, "zone-a", 1, "ok", math.inf)

    cloud.interfere = interfere
    assert run(cloud).ending is Ending.FINISHED
    assert cloud.past_nodes[0].ends_at < 2 * HOUR


# --- each act fails -------------------------------------------------------------------------------

ACTS = pytest.mark.parametrize(
    "act", ["list", "create", "delete", "operation", "read", "write", "beat"]
)


@ACTS
def test_each_act_fails_once_at_some_steps(act: str) -> None:
    fails_once(act, itertools.chain(range(3), itertools.count(3, 17)))


@pytest.mark.nightly
@ACTS
def test_each_act_fails_once_at_each_step(act: str) -> None:
    fails_once(act, itertools.count())


def fails_once(act: str, steps: Iterable[int]) -> None:
    """Whatever the instant: the run finishes, on one machine at a time, and nothing is left."""
    is_service = act in ("list", "create", "delete", "operation")
    error = ServiceFault(Kind.INTERNAL, "x") if is_service else StorageError("x")
    settings = replace(SETTINGS, target_step=3_000, poll=120.0)
    for at in steps:
        trainer = replace(TRAINER, target_step=3_000)
        cloud = SimulatedCloud(trainer, lambda ready: 1200.0, script=["stockout"])
        left = iter(range(at + 1))

        def interfere(done: str, zone: str) -> None:
            if done == act and next(left, None) == at:  # noqa: B023
                raise error

        cloud.interfere = interfere
        try:
            state: RunState = run(cloud, settings)
        except StorageError:  # the first read of all: nothing was rented yet
            assert cloud.creations == 0
            state = run(cloud, settings)
        assert (state.ending, state.failures) == (Ending.FINISHED, 0), at
        assert (cloud.most_at_once, cloud.nodes) == (1, []), at
        if next(left, None) is not None:
            assert at > 0
            return
