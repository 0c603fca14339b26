"""What a machine may cost, whatever happens to those who watch it: in virtual time.

Each of these cost money once; the numbers are those of docs/design/launch.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.run_state import Ending, Phase, RunState
from bigbird_ja.launch.supervise import Detached, Stop
from bigbird_ja.process.errors import Refused, StorageError
from testkit.simulated_cloud import SimulatedCloud
from tests.launch.test_supervisor import TRAINER, names, run, settings_with

HOUR = 3600.0
DAYS = replace(TRAINER, target_step=100 * 24 * 3600)
SERVICES = pytest.mark.parametrize("service", ["tpu", "compute"])


def breaking(
    cloud: SimulatedCloud, acts: set[str], start: float, end: float, error: Callable[[], Exception]
) -> None:
    """Acts fail between two times of day."""

    def interfere(act: str, zone: str) -> None:
        if act in acts and start <= cloud.now < end:
            raise error()

    cloud.interfere, cloud.wake = interfere, (start, end)


REFUSALS: list[Callable[[], Exception]] = [
    lambda: PermissionError(13, "permission denied (403)", "gs://b/run/supervisor/lock.json"),
    lambda: Refused("no Google Cloud credentials"),
    lambda: StorageError("the bucket fails"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=["403", "credentials", "fails"])
@pytest.mark.parametrize("act", ["beat", "write", "read"])
def test_1_a_bucket_that_refuses_for_a_while_ends_nothing(
    act: str, error: Callable[[], Exception]
) -> None:
    cloud = SimulatedCloud(TRAINER)
    breaking(cloud, {act}, HOUR, 4 * HOUR, error)
    state = run(cloud)
    assert (state.ending, cloud.creations, cloud.nodes) == (Ending.FINISHED, 1, [])


@SERVICES
@pytest.mark.parametrize("act", ["beat", "write"])
def test_1_a_bucket_that_refuses_for_ever_ends_the_machine_with_its_lease(
    service: str, act: str
) -> None:
    cloud = SimulatedCloud(DAYS, service=service, fast=True)
    breaking(cloud, {act}, 2 * HOUR, math.inf, REFUSALS[0])
    state = run(cloud, settings_with(target_step=DAYS.target_step))
    assert (state.phase, state.ending) == (Phase.ENDED, Ending.GAVE_UP)
    assert cloud.nodes == []
    assert cloud.rented_seconds < (2 + 12 + 0.2) * HOUR
    assert cloud.creations == 1


@SERVICES
@pytest.mark.parametrize(
    ("limits", "hours"),
    [({}, 1 + 12.1), ({"max_seconds": 5 * HOUR}, 5.1), ({"max_usd": 12.0}, 5.1)],
)
def test_2_a_detached_trainer_has_an_end(
    service: str, limits: dict[str, object], hours: float
) -> None:
    """A healthy one used to be billed for ever: the limits lived in the supervisor only."""
    cloud = SimulatedCloud(DAYS, service=service, fast=True, wake=(HOUR,))
    settings = settings_with(target_step=DAYS.target_step, **limits)
    with pytest.raises(Detached):
        run(cloud, settings, stop=lambda: Stop.DETACH if cloud.now >= HOUR else Stop.NO)
    assert len(cloud.nodes) == 1
    cloud.advance(100 * HOUR)
    assert cloud.nodes == []
    assert cloud.rented_seconds < hours * HOUR
    if limits:  # and whoever comes back finds that the limit is spent
        state = run(cloud, settings)
        assert (state.ending, cloud.creations) == (Ending.BUDGET, 1)


def test_4_a_zone_that_cannot_be_listed_holds_no_deletion_up() -> None:
    cloud = SimulatedCloud(TRAINER, script=["stockout", "freeze"])

    def interfere(act: str, zone: str) -> None:
        if act == "list" and zone == "zone-a" and cloud.now > 600:
            raise ServiceFault(Kind.UNAVAILABLE, "no answer")

    cloud.interfere = interfere
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    assert "zone-a" in state.used_zones
    failed, deleted = (
        next(e["time"] for e in cloud.events if e["event"] == word)
        for word in ("failed", "deleted")
    )
    assert 0 < deleted - failed < 300
    assert cloud.nodes == []


def test_4_its_own_zone_without_an_answer_is_named_with_the_end_of_the_lease() -> None:
    cloud = SimulatedCloud(TRAINER)
    breaking(
        cloud, {"list", "delete"}, 9 * HOUR, math.inf, lambda: ServiceFault(Kind.INTERNAL, "down")
    )
    state = run(cloud)
    assert state.ending_reason == "io_error"
    assert "zone-a could not be listed" in state.ending_message
    assert "at the end of its lease" in state.ending_message


def test_4_a_zone_without_an_answer_is_asked_to_delete_all_the_same() -> None:
    cloud = SimulatedCloud(TRAINER, ended_patience=math.inf)
    breaking(cloud, {"list"}, 9 * HOUR, math.inf, lambda: ServiceFault(Kind.INTERNAL, "down"))
    run(cloud)
    assert cloud.nodes == []


@SERVICES
@pytest.mark.parametrize("limits", [{}, {"max_usd": 2.4 * 30}])
def test_4_a_zone_that_never_answers_again_ends_the_run(
    service: str, limits: dict[str, object]
) -> None:
    cloud = SimulatedCloud(DAYS, service=service, fast=True)
    breaking(
        cloud, {"list", "delete"}, HOUR, math.inf, lambda: ServiceFault(Kind.UNAVAILABLE, "away")
    )
    state = run(cloud, settings_with(target_step=DAYS.target_step, **limits))
    assert (state.phase, cloud.creations) == (Phase.ENDED, 1)
    cloud.advance(cloud.now + 13 * HOUR)
    assert cloud.nodes == []


def test_5_a_checkpoint_at_the_last_step_is_the_end() -> None:
    cloud = SimulatedCloud(TRAINER, script=["mute"])
    state = run(cloud)
    assert (state.ending, cloud.creations) == (Ending.FINISHED, 1)
    assert cloud.last_heartbeat is not None and cloud.last_heartbeat.state != "stopped"


def test_5_a_run_past_its_last_step_rents_nothing() -> None:
    cloud = SimulatedCloud(TRAINER, saved_step=50_000.0)
    state = run(cloud)
    assert (state.ending, state.best_step) == (Ending.FINISHED, 50_000)
    assert cloud.creations == 0


@pytest.mark.parametrize(("word", "rentals"), [("exit:2", 1), ("exit:70", 1), ("exit:1", 2)])
def test_6_what_repeats_exactly_is_rented_once(word: str, rentals: int) -> None:
    cloud = SimulatedCloud(TRAINER, script=[word] * 9)
    state = run(cloud)
    assert (state.ending, cloud.creations) == (Ending.GAVE_UP, rentals)
    assert "would come again" in state.ending_message


@pytest.mark.parametrize("act", ["beat", "write"])
def test_7_nothing_is_rented_whose_decision_is_not_stored(act: str) -> None:
    cloud = SimulatedCloud(TRAINER, lambda ready: 2 * HOUR)
    breaking(cloud, {act}, HOUR, 5 * HOUR, lambda: StorageError("the bucket fails"))
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    created = [e["time"] - 1_700_000_000 for e in cloud.events if e["event"] == "creating"]
    assert not [at for at in created if HOUR <= at < 5 * HOUR]


def test_7_a_deletion_needs_nothing_stored() -> None:
    cloud = SimulatedCloud(DAYS, fast=True)
    breaking(cloud, {"beat", "write", "read"}, HOUR, math.inf, lambda: StorageError("fails"))
    cloud.wake = (HOUR, 2 * HOUR)
    stopped = run(cloud, stop=lambda: Stop.DELETE if cloud.now >= 2 * HOUR else Stop.NO)
    assert (stopped.ending, cloud.nodes) == (Ending.INTERRUPTED, [])
    assert cloud.rented_seconds < 2.1 * HOUR


def test_the_end_of_a_lease_is_no_failure_and_no_preemption() -> None:
    cloud = SimulatedCloud(TRAINER)
    state = run(cloud, settings_with(longest=3 * HOUR))
    assert state.ending is Ending.FINISHED
    assert (state.failures, state.preemptions, state.leases_over) == (0, 0, 3)
    assert names(cloud).count("lease_over") == 3


def test_a_budget_that_does_not_pay_for_another_start_rents_nothing() -> None:
    cloud = SimulatedCloud(TRAINER, lambda ready: 1.9 * HOUR)
    state = run(cloud, settings_with(max_seconds=2 * HOUR))
    assert (state.ending, cloud.creations) == (Ending.BUDGET, 1)
    assert "does not pay for 10 minutes" in state.ending_message


def test_zones_that_refuse_at_the_start_leave_the_others() -> None:
    cloud = SimulatedCloud(TRAINER)

    def interfere(act: str, zone: str) -> None:
        if act == "list" and zone != "zone-c":
            raise ServiceFault(Kind.PERMISSION, "denied")

    cloud.interfere = interfere
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    assert [e["zone"] for e in cloud.events if e["event"] == "created"] == ["zone-c"]


ACTS = pytest.mark.parametrize(
    "act", ["list", "create", "delete", "operation", "read", "write", "beat"]
)


@ACTS
def test_each_act_fails_once_now_and_then(act: str) -> None:
    fails_once(act, itertools.chain(range(3), itertools.count(3, 17)))


@pytest.mark.nightly
@ACTS
def test_each_act_fails_once_at_each_step(act: str) -> None:
    fails_once(act, itertools.count())


def fails_once(act: str, steps: Iterable[int]) -> None:
    """Whatever the instant: the run finishes, on one machine at a time, and nothing is left."""
    trainer = replace(TRAINER, target_step=3_000)
    for at in steps:
        cloud = SimulatedCloud(trainer, lambda ready: 1200.0, script=["stockout"])
        left = [at]

        def interfere(done: str, zone: str) -> None:
            if done == act:
                left[0] -= 1  # noqa: B023
                if left[0] == -1:  # noqa: B023
                    is_service = act in ("list", "create", "delete", "operation")
                    raise ServiceFault(Kind.INTERNAL, "x") if is_service else StorageError("x")

        def started(at: float = at) -> RunState:
            return run(cloud, settings_with(target_step=3_000, poll=120.0))  # noqa: B023

        cloud.interfere = interfere
        try:
            state = started()
        except StorageError:  # the first read of all: nothing was rented yet
            assert cloud.creations == 0
            state = started()
        assert (state.ending, state.failures) == (Ending.FINISHED, 0), at
        assert (cloud.most_at_once, cloud.nodes) == (1, []), at
        if left[0] >= 0:
            assert at > 0
            return


def test_a_short_lease_is_renewed_in_time() -> None:
    cloud = SimulatedCloud(TRAINER, lease=600.0)
    state = run(cloud, settings_with(lease=600.0))
    assert (state.ending, state.leases_over, cloud.creations) == (Ending.FINISHED, 0, 1)


def test_what_could_not_be_deleted_is_counted_when_somebody_comes_back() -> None:
    cloud = SimulatedCloud(DAYS)
    breaking(cloud, {"delete"}, HOUR, 3 * HOUR, lambda: ServiceFault(Kind.INTERNAL, "down"))
    settings = settings_with(target_step=DAYS.target_step, max_usd=2.4 * 20)
    left = run(cloud, settings, stop=lambda: Stop.DELETE if cloud.now >= HOUR else Stop.NO)
    assert left.ending_reason == "io_error" and len(cloud.nodes) == 1
    cloud.advance(cloud.now + 100 * HOUR)  # its lease has deleted it meanwhile
    cloud.fast = True
    state = run(cloud, settings)
    assert state.cost_usd >= 2.4 * cloud.rented_seconds / HOUR * 0.99
    assert cloud.rented_seconds < 20.2 * HOUR
