"""The state machine against the model of the service, in virtual time."""

import math
from dataclasses import replace

import pytest

from bigbird_ja.launch import ID_LABEL, LaunchedRun, Operation, Presence, Tpu
from bigbird_ja.launch.account import accrue, resume
from bigbird_ja.launch.decide import decide
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.state import (
    ABSENT_LOOKS,
    Decision,
    Ending,
    Event,
    Observation,
    Phase,
    RunState,
    TrainerBeat,
)
from bigbird_ja.launch.supervise import World, supervise
from testkit.simulated_cloud import SimulatedCloud, TrainerModel

ZONES = ("zone-a", "zone-b", "zone-c")
TRAINER = TrainerModel(target_step=36_000, steps_per_second=1.0)  # ten hours
RECORD = LaunchedRun(
    "gs://b", "run", "id-1", "p", target_step=36_000, zones=ZONES, usd_per_hour=2.4
)


def run(cloud, record=RECORD, **world):
    handed = World(cloud, cloud, cloud.steady, cloud.wall, cloud.sleep, cloud.beat)
    return supervise(record, replace(handed, **world))  # type: ignore[arg-type]


def names(cloud):
    return [str(event["event"]) for event in cloud.events]


def times(cloud, name):
    return [float(event["time"]) for event in cloud.events if event["event"] == name]


def lifetimes(*hours):
    left = list(hours)
    return lambda ready: left.pop(0) * 3600 if left else math.inf


def test_neither_clocks_that_jump_nor_a_laptop_that_sleeps_count_as_a_stall():
    cloud = SimulatedCloud(TRAINER)
    jumps = iter([86_400.0, -2 * 86_400.0, 1e7])
    naps = iter([5 * 3600.0])  # far beyond the stall limit

    def sleep(seconds):
        cloud.sleep(next(naps, seconds) if cloud.now > 3600 else seconds)
        if cloud.now % 3600 < 30:
            cloud.wall_offset = next(jumps, 0.0)

    state = run(cloud, sleep=sleep)
    assert (state.ending, state.failures, cloud.creations) == (Ending.FINISHED, 0, 1)
    assert next(jumps, None) is None
    assert state.cost_usd == pytest.approx(2.4 * cloud.rented_seconds / 3600, rel=0.01)


def test_a_machine_that_is_repaired_after_hours_has_the_time_of_a_new_one():
    cloud = SimulatedCloud(TRAINER)

    def sleep(seconds):
        cloud.sleep(seconds)
        if 5 * 3600 < cloud.now < 5 * 3600 + 600:
            cloud.nodes[0].ready_at = 5 * 3600 + 600.0

    assert run(cloud, sleep=sleep).ending is Ending.FINISHED
    assert cloud.creations == 1


def test_a_dead_tpu_of_the_run_is_removed_first():
    cloud = SimulatedCloud(TRAINER, lifetimes(0.0))
    cloud.create(RECORD, "zone-a", 1, {}, math.inf)
    cloud.sleep(600)
    assert run(cloud).ending is Ending.FINISHED
    assert (cloud.most_at_once, cloud.nodes) == (1, [])


def test_an_ended_run_continues_with_its_sums_and_without_what_ended_it():
    ended = run(SimulatedCloud(TRAINER, script=["quota"] * 3))
    ended = replace(ended, backoff_seconds=5.0, trouble_seconds=9.0, failures=2, cost_usd=7.0)
    state, away_since = resume(ended, RECORD)
    assert (state.phase, state.ending, state.misses, state.strikes) == (Phase.IDLE, None, 0, {})
    assert (state.struck_zones, state.backoff_seconds, state.trouble_seconds) == ({}, 0.0, 0.0)
    assert (state.failures, state.cost_usd, state.attempt) == (2, 7.0, 3)
    assert away_since == 0.0  # nothing was rented since
    assert resume(replace(ended, billing=True), RECORD)[1] == ended.saved_at > 0.0


def test_a_machine_that_was_made_and_is_gone_before_it_was_seen_was_preempted():
    state = RunState(Phase.CREATING, zone="zone-a", attempt=1)
    state = replace(state, operation="made", operation_kind="create", absences=ABSENT_LOOKS)
    decision = decide(state, Observation(5.0, 5.0, 0.0, operation=Operation(done=True)), RECORD)
    assert decision.state.phase is Phase.REMOVING and decision.state.preemptions == 1


def test_a_creation_that_takes_too_long_is_followed_while_what_it_may_make_is_removed():
    state = RunState(Phase.CREATING, zone="zone-a", attempt=1, phase_seconds=1300.0)
    state = replace(
        state, machine_seconds=1300.0, operation="o", operation_kind="create", absences=ABSENT_LOOKS
    )
    decision = decide(state, Observation(5.0, 5.0, 0.0, operation=Operation(done=False)), RECORD)
    assert (decision.state.phase, decision.state.operation) == (Phase.REMOVING, "o")


@pytest.mark.parametrize(("quiet", "failure"), [(50.0, ""), (60.0, "out_of_memory")])
def test_a_trainer_that_stops_without_a_report_has_ended_by_its_heartbeat(quiet, failure):
    tpu = Tpu("run", "zone-a", Presence.READY, "READY", labels={ID_LABEL: "id-1"}, created=9.0)
    state = RunState(Phase.RUNNING, zone="zone-a", attempt=1, incarnation=9.0)
    state = replace(state, last_step=4, quiet_seconds=quiet)
    beat = TrainerBeat(4, 1.0, "stopped", "out_of_memory")
    decision = decide(state, Observation(5.0, 5.0, 0.0, tpus=[tpu], heartbeat=beat), RECORD)
    assert decision.state.last_failure == failure


@pytest.mark.parametrize(("seconds", "phase"), [(1200.0, Phase.RUNNING), (1201.0, Phase.REMOVING)])
def test_a_machine_in_repair_is_waited_for_and_then_was_preempted(seconds, phase):
    tpu = Tpu(
        "run", "zone-a", Presence.PENDING, "REPAIRING", labels={ID_LABEL: "id-1"}, created=9.0
    )
    state = RunState(Phase.RUNNING, zone="zone-a", attempt=1, incarnation=9.0)
    state = replace(state, phase_seconds=seconds, last_step=4, best_step=4)
    decision = decide(state, Observation(5.0, 5.0, 0.0, tpus=[tpu]), RECORD)
    if phase is Phase.RUNNING:
        assert decision == Decision(state, pause=30.0)
    else:
        where = {"zone": "zone-a", "attempt": 1, "step": 4, "state": "REPAIRING", "preemptions": 1}
        assert decision.state.phase is phase
        assert decision.events == (Event("preempted", where),)


@pytest.mark.parametrize(("limit", "billed"), [(0.0, 5000.0), (4600.0, 1000.0), (3000.0, 0.0)])
def test_what_nobody_can_list_is_billed_for_as_long_as_it_may_live(limit, billed):
    state = RunState(Phase.REMOVING, zone="zone-a", machine_seconds=3600.0, absences=1)
    fault = ServiceFault(Kind.UNAVAILABLE, "no answer")
    seen = Observation(5_000.0, 60.0, unlisted={"zone-a": fault})
    after = accrue(replace(state, machine_limit=limit), seen, RECORD)
    assert (after.billed_seconds, after.billing, after.absences) == (billed, True, 0)
    assert (after.machine_seconds, after.trouble_seconds) == (8600.0, 60.0)


@pytest.mark.parametrize(
    ("beat_at", "limit", "billed"),
    [
        (None, 0.0, 5400.0),  # no sign of life: as long as it may be silent
        (1_000.0, 0.0, 5400.0),  # its last sign is older than ours
        (11_800.0, 0.0, 1800.0 + 5400.0),
        (11_800.0, 4600.0, 1000.0),  # it had 1,000 seconds left to live
        (11_800.0, 3000.0, 0.0),
        (None, 1e6, 5400.0),
    ],
)
def test_what_went_while_nobody_watched_is_billed_no_longer_than_it_can_have_been_there(
    beat_at, limit, billed
):
    state = RunState(Phase.RUNNING, zone="zone-a", billing=True, saved_at=10_000.0)
    state = replace(state, machine_seconds=3600.0, machine_limit=limit)
    heartbeat = None if beat_at is None else TrainerBeat(5, beat_at, "training")
    seen = Observation(360_000.0, 60.0, 370_000.0, heartbeat=heartbeat, resumed=True)
    after = accrue(state, seen, RECORD)
    assert after.billed_seconds == billed and after.cost_usd == billed / 3600 * 2.4
    assert (after.elapsed_seconds, after.billing, after.absences) == (360_000.0, False, 1)


@pytest.mark.parametrize("hours", [0.5, 5.0])
def test_waiting_in_line_uses_up_no_life_of_the_machine(hours):
    """A budget of eleven hours, and ten of training; and twenty minutes to come up after it."""
    record = replace(RECORD, queued=True, max_usd=11 * 2.4, poll=300.0)
    cloud = SimulatedCloud(TRAINER, run=record, queue_seconds=hours * 3600)
    naps = iter([hours / 2 * 3600])  # nobody watches for a while

    def sleep(seconds):
        cloud.sleep(next(naps, seconds) if cloud.now > 600 else seconds)

    state = run(cloud, record, sleep=sleep)
    assert (state.ending, cloud.creations, state.leases_over) == (Ending.FINISHED, 1, 0)
    assert state.billed_seconds == pytest.approx(cloud.rented_seconds, abs=300)


def test_a_queue_that_fails_or_never_moves_gives_its_place_to_the_next_zone():
    record = replace(RECORD, queued=True, poll=300.0)
    script = ["queue_failed", "stuck"]
    lives = lifetimes(math.inf, math.inf, 9.0)
    cloud = SimulatedCloud(TRAINER, lives, run=record, script=script)
    state = run(cloud, record)
    assert (state.ending, cloud.creations) == (Ending.FINISHED, 4)
    assert names(cloud).count("no_quota") == names(cloud).count("create_timeout") == 1
    (preempted,) = [one for one in cloud.events if one["event"] == "preempted"]
    assert preempted["state"].startswith("SUSPEND") and cloud.nodes == []


def test_flex_start_ends_by_the_cloud_at_its_limit_and_what_stays_listed_is_removed():
    record = replace(RECORD, queued=True, pricing="flex-start", max_seconds=5 * 3600.0)
    cloud = SimulatedCloud(TRAINER, fast=True, run=record, queue_seconds=600.0)
    state = run(cloud, record)
    assert (state.ending, cloud.nodes) == (Ending.BUDGET, [])
    assert state.preemptions == 0 and cloud.rented_seconds <= 5 * 3600
    unwatched = SimulatedCloud(TRAINER, run=record, queue_seconds=600.0)
    unwatched.watch_poll = math.inf  # nobody but the cloud
    unwatched.create(record, "zone-a", 1, {}, 3600.0)
    unwatched.sleep(86_400.0)
    assert unwatched.rented_seconds == pytest.approx(3600)
    assert unwatched.list("zone-a")[0].state == "SUSPENDED"
