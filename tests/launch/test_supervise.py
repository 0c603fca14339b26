"""The state machine against the model of the service, in virtual time."""

import contextlib
import itertools
import math
import time
from dataclasses import replace

import pytest

from bigbird_ja.launch import tpu_api
from bigbird_ja.launch.files import RunFiles
from bigbird_ja.launch.record import Machine
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import ATTEMPT_LABEL, ID_LABEL, RUN_DIR_KEY, RUN_LABEL
from bigbird_ja.launch.state import Ending, Phase, RunState
from bigbird_ja.launch.supervise import Detached, Stop, World, supervise
from bigbird_ja.process.errors import StorageError
from testkit.histories import HOUR
from testkit.simulated_cloud import START, SimulatedCloud
from tests.launch import support
from tests.launch.support import RECORD, TRAINER, lifetimes, names, supervised, times


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
    """After hours of training it has the time that a new one has to come up."""
    cloud = SimulatedCloud(TRAINER)

    def sleep(seconds):
        cloud.sleep(seconds)
        if 5 * 3600 < cloud.now < 5 * 3600 + 300:
            cloud.nodes[0].ready_at = 5 * 3600 + minutes * 60.0

    state = supervised(cloud, sleep=sleep)
    assert (state.ending, state.preemptions) == (Ending.FINISHED, machines - 1)
    assert cloud.creations == machines


def test_a_dead_tpu_of_the_run_is_removed_first():
    cloud = SimulatedCloud(TRAINER, lifetimes(0.0))
    cloud.create(RECORD, "zone-a", 1, {}, math.inf)
    cloud.sleep(600)
    assert supervised(cloud).ending is Ending.FINISHED
    assert (cloud.most_at_once, cloud.nodes) == (1, [])


def test_an_ended_run_continues_without_what_ended_it():
    cloud = SimulatedCloud(TRAINER, script=["quota"] * 3)
    assert supervised(cloud).ending is Ending.GAVE_UP
    state = supervised(cloud)
    assert (state.ending, state.attempt, state.struck_zones) == (Ending.FINISHED, 4, {})


@pytest.mark.parametrize("hours", [0.5, 5.0])
def test_waiting_in_line_uses_up_no_life_of_the_machine(hours):
    """A budget of eleven hours, and ten of training; and twenty minutes to come up after it."""
    record = replace(RECORD, queued=True, max_usd=11 * 2.4, poll=300.0)
    cloud = SimulatedCloud(TRAINER, run=record, queue_seconds=hours * 3600)
    naps = iter([hours / 2 * 3600])  # nobody watches for a while

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
    assert names(cloud).count("no_quota") == names(cloud).count("create_timeout") == 1
    (preempted,) = [one for one in cloud.events if one["event"] == "preempted"]
    assert preempted["state"].startswith("SUSPEND") and cloud.nodes == []


def test_flex_start_ends_by_the_cloud_at_its_limit_and_what_stays_listed_is_removed():
    record = replace(RECORD, queued=True, pricing="flex-start", max_seconds=5 * 3600.0)
    cloud = SimulatedCloud(TRAINER, fast=True, run=record, queue_seconds=600.0)
    state = supervised(cloud, record)
    assert (state.ending, cloud.nodes) == (Ending.BUDGET, [])
    assert state.preemptions == 0 and cloud.rented_seconds <= 5 * 3600
    unwatched = SimulatedCloud(TRAINER, run=record, queue_seconds=600.0)
    unwatched.watch_poll = math.inf  # nobody but the cloud
    unwatched.create(record, "zone-a", 1, {}, 3600.0)
    unwatched.sleep(86_400.0)
    assert unwatched.rented_seconds == pytest.approx(3600)
    assert unwatched.find("zone-a", "run").state == "SUSPENDED"


ZONE = "us-central1-a"


@pytest.fixture
def record(tmp_path):
    """The record of a run of 1,000 steps, in one zone, on a disk."""
    run = support.vm_of("run-1", "id-1", "v3-8", zones=(ZONE,), usd_per_hour=2.0, poll=0.05)
    run = replace(run, bucket=str(tmp_path / "bucket"), target_step=1000)
    RunFiles(run).prepare()
    return run


def launch(record, fake_tpu, stop, said=None):
    """Supervise with the real clients of the fake_tpu service, until `stop` says so."""

    def connect(service, project):
        assert service == "tpu"
        return tpu_api.Client(project, support.rest(f"{fake_tpu.url}/v2"))

    world = World(
        tpus=connect(record.service, record.project),
        files=RunFiles(record),
        steady=time.monotonic,
        wall=time.time,
        sleep=time.sleep,
        stop=stop,
        say=([] if said is None else said).append,
        metadata=lambda state: {RUN_DIR_KEY: record.run_dir},
        connect=connect,
    )
    try:
        return supervise(record, world)
    except Detached:
        return RunFiles(record).load_state()


def rent(record, fake_tpu):
    """Launch, and detach as soon as the machine is READY."""
    files = RunFiles(record)

    def stop():
        state = files.load_state() or RunState()
        is_own = state.machine is not None and not state.moves(record)
        return Stop.DETACH if is_own and state.phase is Phase.RUNNING else Stop.NO

    state = launch(record, fake_tpu, stop)
    assert state.phase is Phase.RUNNING
    return state


def test_a_machine_has_its_facts_from_its_request_on(record, fake_tpu):
    machine = rent(record, fake_tpu).machine
    assert machine == Machine("tpu", "p", "v3-8", "spot", False, 2.0, machine.requested)
    assert abs(machine.requested - time.time()) < 3600  # by the service's clock


@pytest.mark.parametrize(
    "changed", [{"project": "q"}, {"accelerator_type": "v2-8", "project": "q", "usd_per_hour": 1.0}]
)
def test_a_machine_of_another_project_trains_on_and_is_deleted_there(record, fake_tpu, changed):
    """It was called deleted while it was READY."""
    rent(record, fake_tpu)
    looks, said = iter(range(100)), []
    stop = lambda: Stop.DELETE if next(looks) > 5 else Stop.NO  # noqa: E731
    state = launch(replace(record, **changed), fake_tpu, stop, said)
    assert said[0].startswith("v3-8 (spot, tpu service, project p, 2.00 USD/h) trains on: next v")
    assert (state.phase, fake_tpu.node_names(), len(fake_tpu.created)) == (Phase.ENDED, [], 1)
    assert state.machine.usd_per_hour == 2.0


def test_the_next_machine_is_as_the_record_says_once_the_last_one_is_gone(record, fake_tpu):
    rent(record, fake_tpu)
    fake_tpu.preempt("run-1")  # stays listed, in its project
    changed = replace(record, project="q", accelerator_type="v2-8", usd_per_hour=1.0)
    state = rent(changed, fake_tpu)
    assert fake_tpu.node_names() == [f"projects/q/locations/{ZONE}/nodes/run-1"]
    assert (state.machine.project, state.machine.usd_per_hour, state.attempt) == ("q", 1.0, 2)


def test_down_finds_a_machine_in_the_project_that_its_run_had(record, fake_tpu):
    rent(record, fake_tpu)
    files = RunFiles(record)
    files.save_run()
    down = ["down", "--project=q", "--yes"]
    assert support.run(down, fake_tpu)[1]["deleted"] == []
    status, result = support.run([*down, f"--bucket={record.bucket}"], fake_tpu)
    assert (status, len(result["deleted"]), fake_tpu.node_names()) == (0, 1, [])


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
    assert supervised(cloud).ending is Ending.FINISHED
    created = [moment - START for moment in times(cloud, "creating")]
    assert created and not [moment for moment in created if start <= moment < 5 * HOUR]


@pytest.mark.parametrize("hours", [-9.0, 12.0])
@pytest.mark.parametrize("limits", [{"max_usd": 40.0}, {"max_seconds": 30 * HOUR}])
def test_clocks_that_differ_change_neither_hours_nor_money(limits, hours):
    """Two supervisors, the second ten hours later on another machine with a wrong clock."""
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
    assert cloud.rented_seconds / HOUR > 0.9 * most  # and ends no run before


def test_what_could_not_be_deleted_is_counted_when_somebody_comes_back():
    cloud = SimulatedCloud(DAYS)
    breaking(cloud, "delete", HOUR, 3 * HOUR, ServiceFault(Kind.UNAVAILABLE, "no answer"))
    record = replace(LONG, max_usd=2.4 * 20)
    state = supervised(cloud, record, stop=stopped_at(cloud, HOUR))
    assert state.ending_reason == "io_error" and len(cloud.nodes) == 1
    cloud.advance(cloud.now + 100 * HOUR)  # its lease has deleted it meanwhile
    cloud.fast = True
    state = supervised(cloud, record)
    assert state.cost_usd >= 2.4 * cloud.rented_seconds / HOUR * 0.99
    assert cloud.rented_seconds < 20.2 * HOUR


@pytest.mark.parametrize("act", ["beat", "find"])
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


@pytest.mark.parametrize("zone", ["zone-a", "zone-c"])
def test_a_name_taken_by_another_ends_the_run_and_is_left_alone(zone):
    labels = {RUN_LABEL: "run", ID_LABEL: "id-of-a-colleague", ATTEMPT_LABEL: "1"}
    cloud = SimulatedCloud(TRAINER, foreign={zone: labels})
    state = supervised(cloud)
    assert (state.ending, state.ending_reason) == (Ending.GAVE_UP, "bad_input")
    assert all(value in state.ending_message for value in labels.values())
    assert f"zones/{zone}/run" in state.ending_message
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


def test_of_two_machines_of_a_run_one_is_adopted_and_the_other_deleted():
    cloud = SimulatedCloud(TRAINER)
    for zone in ("zone-b", "zone-c"):
        cloud.create(RECORD, zone, 4, {}, math.inf)
    state = supervised(cloud, stop=stopped_at(cloud, HOUR))
    assert (state.ending, state.attempt) == (Ending.INTERRUPTED, 4)
    assert "adopted" in names(cloud)
    assert sorted(node.ends_at > HOUR for node in cloud.past_nodes) == [False, True]


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
            supervised(cloud, record)
            assert at > 100  # there are no more acts
            return
        cloud.sleep(37.0)
        state = supervised(cloud, record)
        assert (state.ending, state.failures) == (Ending.FINISHED, 1), at
        assert (cloud.most_at_once, cloud.nodes) == (1, []), at
