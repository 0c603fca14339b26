"""The state machine against the model of the service, in virtual time."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from bigbird_ja.launch.decide import decide
from bigbird_ja.launch.run_state import (
    ABSENT_LOOKS,
    Ending,
    Observation,
    Phase,
    RunState,
    Settings,
)
from bigbird_ja.launch.services import Operation, TpuSpec
from bigbird_ja.launch.supervise import Detached, Services, Stop, supervise
from bigbird_ja.process.errors import StorageError
from testkit.simulated_cloud import SimulatedCloud, TrainerModel

ZONES = ("zone-a", "zone-b", "zone-c")
SPEC = TpuSpec("run", "v3-8", "image", "id-1")
TRAINER = TrainerModel(target_step=36_000, steps_per_second=1.0)  # ten hours


def settings_with(**changes: object) -> Settings:
    base = Settings(
        ZONES,
        TRAINER.target_step,
        2.4,
        project="p",
        accelerator_type="v3-8",
        run_id="id-1",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def run(cloud: SimulatedCloud, settings: Settings | None = None, **services: object) -> RunState:
    handed = Services(cloud, cloud, cloud.steady, cloud.wall, cloud.sleep, cloud.beat)
    for name, value in services.items():
        setattr(handed, name, value)
    return supervise(SPEC, settings or settings_with(), handed)


def names(cloud: SimulatedCloud) -> list[str]:
    return [str(event["event"]) for event in cloud.events]


def lifetimes(*hours: float) -> Callable[[float], float]:
    left = list(hours)
    return lambda ready: left.pop(0) * 3600 if left else math.inf


def test_twenty_preemptions_cost_only_the_work_since_the_last_checkpoint() -> None:
    rng = random.Random(3)
    instants = [
        rng.choice([0.02, 0.09, 0.28, 0.61, 1.3]) * rng.uniform(0.9, 1.1) for _ in range(20)
    ]
    cloud = SimulatedCloud(TRAINER, lifetimes(*instants))
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    assert (state.preemptions, state.failures) == (20, 0)
    assert cloud.creations == 21
    assert cloud.most_at_once == 1
    assert cloud.nodes == []


def test_stockout_goes_on_to_the_next_zone_and_backs_off_after_each_round() -> None:
    cloud = SimulatedCloud(TRAINER, script=["stockout"] * 7)
    state = run(cloud)
    zones = [e["zone"] for e in cloud.events if e["event"] == "creating"]
    assert zones == ["zone-a", "zone-b", "zone-c"] * 2 + ["zone-a", "zone-b"]
    assert state.ending is Ending.FINISHED
    assert state.failures == 0
    times = [e["time"] for e in cloud.events if e["event"] == "creating"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses[2] >= 30 + 60  # the operation takes 60 s; then the round's pause
    assert pauses[5] >= pauses[2] + 30


def test_quota_strikes_a_zone_off_and_ends_with_advice_when_none_is_left() -> None:
    cloud = SimulatedCloud(TRAINER, script=["quota"] * 3)
    state = run(cloud)
    assert state.ending is Ending.GAVE_UP
    assert state.ending_reason == "bad_input"
    assert "no quota for v3-8 in zone-a" in state.ending_message
    assert "Quotas page" in state.ending_message
    assert cloud.creations == 0


def test_quota_of_a_zone_that_served_us_is_given_time_to_come_back() -> None:
    cloud = SimulatedCloud(TRAINER, lifetimes(1.0), script=["ok", "quota", "quota"])
    state = run(cloud, settings_with(zones=("zone-a",)))
    assert state.ending is Ending.FINISHED
    assert state.preemptions == 1


def test_permission_stops_at_once_with_words_to_act_on() -> None:
    cloud = SimulatedCloud(TRAINER, script=["permission"])
    state = run(cloud)
    assert state.ending is Ending.GAVE_UP
    assert "roles/tpu.admin" in state.ending_message
    assert cloud.creations == 0
    assert "creating" in names(cloud) and names(cloud).count("creating") == 1


@pytest.mark.parametrize("word", ["internal", "unavailable"])
def test_trouble_of_the_service_is_ridden_out_for_hours(word: str) -> None:
    """Three such answers within minutes used to end an unattended run for good."""
    cloud = SimulatedCloud(TRAINER, script=[word] * 60)
    state = run(cloud)
    assert (state.ending, state.failures) == (Ending.FINISHED, 0)
    times = [e["time"] for e in cloud.events if e["event"] == "creating"]
    assert times[60] - times[0] > 3 * 3600


@pytest.mark.parametrize("word", ["internal", "unavailable"])
def test_trouble_without_an_end_ends_the_run_after_a_day(word: str) -> None:
    cloud = SimulatedCloud(TRAINER, script=[word] * 10_000)
    state = run(cloud)
    assert (state.ending, state.ending_reason) == (Ending.GAVE_UP, "io_error")
    assert 24 * 3600 < cloud.now < 26 * 3600
    assert (state.failures, cloud.nodes) == (0, [])


def test_a_node_that_stays_creating_is_deleted_and_tried_elsewhere() -> None:
    cloud = SimulatedCloud(TRAINER, script=["stuck"])
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    assert "create_timeout" in names(cloud)
    assert [e["zone"] for e in cloud.events if e["event"] == "created"] == ["zone-b"]
    assert state.failures == 0
    assert cloud.nodes == []


def test_lost_reply_to_a_creation_never_makes_a_second_tpu() -> None:
    cloud = SimulatedCloud(TRAINER, script=["lost"])
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    assert cloud.creations == 1
    assert cloud.most_at_once == 1


def test_deletion_that_fails_at_first_is_repeated_until_nothing_is_listed() -> None:
    words = ["unavailable", "internal", "permission", "unavailable"]
    cloud = SimulatedCloud(TRAINER, lifetimes(1.0), delete_script=words)
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    assert names(cloud).count("delete_failed") == 4
    assert cloud.nodes == []
    assert cloud.most_at_once == 1


def test_a_run_whose_tpu_cannot_be_deleted_ends_loudly() -> None:
    cloud = SimulatedCloud(TRAINER, delete_script=["permission"] * 10_000)
    cloud.ended_patience = cloud.silence = math.inf
    state = run(cloud)
    assert "at the end of its lease, in" in state.ending_message
    assert "STILL THERE AND BILLED" in state.ending_message
    assert state.ending_reason == "io_error"


def test_a_frozen_trainer_on_a_ready_tpu_is_replaced() -> None:
    cloud = SimulatedCloud(TRAINER, script=["freeze"])
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    assert (state.preemptions, state.failures) == (0, 1)
    failed = next(e for e in cloud.events if e["event"] == "failed")
    assert failed["reason"] == "stalled"
    assert failed["log"].endswith("the last line of the log")


def test_same_failure_three_times_in_a_row_gives_up_with_the_log() -> None:
    cloud = SimulatedCloud(TRAINER, script=["exit:71"] * 9)
    state = run(cloud)
    assert state.ending is Ending.GAVE_UP
    assert state.ending_reason == "out_of_memory"
    assert state.failures == 3
    assert "the last line of the log" in state.ending_message
    assert cloud.creations == 3
    assert cloud.nodes == []


def test_preemptions_between_failures_do_not_hide_them() -> None:
    words = ["exit:71", "ok", "exit:71", "ok", "exit:71"]
    cloud = SimulatedCloud(TRAINER, lifetimes(math.inf, 0.01, math.inf, 0.01), script=words)
    state = run(cloud)
    assert state.ending is Ending.GAVE_UP
    assert (state.failures, state.preemptions) == (3, 2)


@pytest.mark.parametrize(("limit", "value"), [("max_seconds", 2 * 3600.0), ("max_usd", 4.8)])
def test_limits_end_the_run_and_delete(limit: str, value: float) -> None:
    cloud = SimulatedCloud(TRAINER)
    state = run(cloud, settings_with(**{limit: value}))
    assert state.ending is Ending.BUDGET
    assert state.ending_reason == "interrupted"
    assert cloud.nodes == []
    assert state.cost_usd <= 4.9
    assert cloud.now < 2.2 * 3600
    # More of it, and the same command goes on.
    again = run(cloud, settings_with())
    assert again.ending is Ending.FINISHED


def test_interrupt_deletes_or_detaches() -> None:
    cloud = SimulatedCloud(TRAINER)
    state = run(cloud, stop=lambda: Stop.DELETE if cloud.now > 3600 else Stop.NO)
    assert state.ending is Ending.INTERRUPTED
    assert cloud.nodes == []

    other = SimulatedCloud(TRAINER)
    with pytest.raises(Detached):
        run(other, stop=lambda: Stop.DETACH if other.now > 3600 else Stop.NO)
    assert len(other.nodes) == 1
    assert run(other).ending is Ending.FINISHED
    assert other.creations == 1  # the same TPU was adopted
    assert other.nodes == []


@pytest.mark.parametrize("phase_seconds", [1.0, 100.0])
def test_interrupt_while_creating_leaves_nothing(phase_seconds: float) -> None:
    cloud = SimulatedCloud(TRAINER, script=["slow"])
    state = run(cloud, stop=lambda: Stop.DELETE if cloud.now > phase_seconds else Stop.NO)
    assert state.ending is Ending.INTERRUPTED
    assert cloud.nodes == []


class Killed(Exception):
    """SIGKILL of the supervisor, between two of its acts."""


class Killer:
    """Counts the supervisor's acts and kills it at one of them, before or after it happened."""

    def __init__(self, cloud: SimulatedCloud, at: int, after: bool) -> None:
        self.cloud, self.left, self.after = cloud, at, after

    def __getattr__(self, name: str) -> object:
        value = getattr(self.cloud, name)
        if not callable(value) or name in ("steady", "wall"):
            return value

        def call(*args: object) -> object:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise Killed
            try:
                return value(*args)
            finally:
                if self.left == 0:
                    raise Killed

        return call


AFTER = pytest.mark.parametrize("after", [False, True])


@AFTER
def test_killed_now_and_then_and_started_again(after: bool) -> None:
    killed_and_started_again(after, itertools.chain(range(1, 12), itertools.count(12, 23)))


@pytest.mark.nightly
@AFTER
def test_killed_at_each_step_and_started_again(after: bool) -> None:
    killed_and_started_again(after, itertools.count(1))


def killed_and_started_again(after: bool, instants: Iterable[int]) -> None:
    """Whatever the instant: one TPU at a time, the run finishes, nothing is left."""
    trainer = replace(TRAINER, target_step=3_000)
    settings = settings_with(target_step=3_000, poll=120.0)
    for at in instants:
        words = ["stockout", "ok", "exit:1", "lost"]
        cloud = SimulatedCloud(trainer, lifetimes(0.3), script=words, delete_script=["unavailable"])
        killer = Killer(cloud, at, after)
        try:
            run(killer, settings)  # type: ignore[arg-type]
            assert killer.left > 0  # the run has fewer acts than `at`: each was hit once
            assert at > 200
            return
        except Killed:
            cloud.sleep(37.0)
        state = run(cloud, settings)
        assert state.ending is Ending.FINISHED, at
        assert (cloud.most_at_once, cloud.nodes) == (1, []), at


def test_clock_jumps_neither_kill_a_healthy_tpu_nor_change_the_bill() -> None:
    cloud = SimulatedCloud(TRAINER)
    jumps = iter([86_400.0, -2 * 86_400.0, 1e7, 0.0])

    def sleep(seconds: float) -> None:
        cloud.sleep(seconds)
        if int(cloud.now) % 7200 < 30:
            cloud.wall_offset = next(jumps, 0.0)

    state = run(cloud, sleep=sleep)
    assert state.ending is Ending.FINISHED
    assert cloud.creations == 1
    assert state.cost_usd == pytest.approx(2.4 * cloud.rented_seconds / 3600, rel=0.01)


def test_a_laptop_that_slept_does_not_take_the_silence_for_a_stall() -> None:
    cloud = SimulatedCloud(TRAINER)
    slept = []

    def sleep(seconds: float) -> None:
        if cloud.now > 3600 and not slept:
            slept.append(True)
            seconds = 5 * 3600.0  # far beyond the stall limit
        cloud.sleep(seconds)

    state = run(cloud, sleep=sleep)
    assert state.ending is Ending.FINISHED
    assert (cloud.creations, state.failures) == (1, 0)
    assert state.cost_usd == pytest.approx(2.4 * cloud.rented_seconds / 3600, rel=0.01)


def test_bucket_that_cannot_be_read_proves_nothing() -> None:
    cloud = SimulatedCloud(TRAINER)
    real = cloud.heartbeat

    def heartbeat() -> object:
        if 3600 < cloud.now < 3 * 3600:
            raise StorageError("the bucket fails")
        return real()

    cloud.heartbeat = heartbeat  # type: ignore[method-assign, assignment]
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    assert (cloud.creations, state.failures) == (1, 0)


def test_a_tpu_of_the_run_in_another_zone_is_adopted_not_doubled() -> None:
    cloud = SimulatedCloud(TRAINER)
    cloud.create(SPEC, "zone-c", 4, {}, math.inf)
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    assert cloud.creations == 1
    assert "adopted" in names(cloud)
    assert state.attempt == 4


def test_a_dead_tpu_left_by_an_earlier_life_is_removed_first() -> None:
    cloud = SimulatedCloud(TRAINER, lifetimes(0.0))
    cloud.create(SPEC, "zone-a", 1, {}, math.inf)
    cloud.sleep(600)
    state = run(cloud)
    assert state.ending is Ending.FINISHED
    assert cloud.most_at_once == 1
    assert cloud.nodes == []


def test_a_machine_that_was_made_and_is_gone_before_it_was_seen_was_preempted() -> None:
    state = RunState("run", Phase.CREATING, zone="zone-a", attempt=1)
    state = replace(state, operation="made", operation_kind="create", absences=ABSENT_LOOKS)
    decision = decide(
        state, Observation(5.0, 5.0, 0.0, operation=Operation(done=True)), settings_with()
    )
    assert decision.state.phase is Phase.REMOVING and decision.state.preemptions == 1
