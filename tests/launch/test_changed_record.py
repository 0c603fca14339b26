"""A run that is launched again with other flags while a machine of it is there."""

import random
import time
from dataclasses import replace

import pytest

from bigbird_ja.launch import RUN_DIR_KEY, Machine, Presence, Tpu, labels_of, prepare
from bigbird_ja.launch.account import accrue
from bigbird_ja.launch.decide import decide
from bigbird_ja.launch.files import RunFiles
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.state import Observation, Phase, RunState
from bigbird_ja.launch.supervise import Detached, Stop, World, supervise
from bigbird_ja.launch.tpu_api import TpuNodes
from testkit import histories
from testkit.fakes.tpu import FakeTpu
from testkit.histories import HOUR, POLL, History
from testkit.simulated_cloud import SimulatedCloud
from tests.launch import support
from tests.launch.test_supervisor import RECORD, TRAINER, lifetimes

ZONE = "us-central1-a"


@pytest.fixture
def fake(tmp_path):
    with FakeTpu(f"{tmp_path}/vms") as fake:
        yield fake


@pytest.fixture
def record(tmp_path):
    run = support.vm_of("run-1", "id-1", "v3-8", zones=(ZONE,), usd_per_hour=2.0, poll=0.05)
    run = replace(run, bucket=str(tmp_path / "bucket"), target_step=1000)
    RunFiles(run).prepare()
    return run


def launch(record, fake, stop, said=None):
    """Supervise with the real clients of the fake service, until `stop` says so."""

    def connect(service, project):
        assert service == "tpu"
        return TpuNodes(project, support.rest(f"{fake.url}/v2"))

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


def rent(record, fake):
    """Launch, and detach as soon as the machine is READY."""
    files = RunFiles(record)

    def stop():
        state = files.load_state() or RunState()
        is_own = state.machine is not None and not state.moves(record)
        return Stop.DETACH if is_own and state.phase is Phase.RUNNING else Stop.NO

    state = launch(record, fake, stop)
    assert state.phase is Phase.RUNNING
    return state


def test_a_machine_has_its_facts_from_its_request_on(record, fake):
    machine = rent(record, fake).machine
    assert machine == Machine("tpu", "p", "v3-8", "spot", False, 2.0, machine.requested)
    assert abs(machine.requested - time.time()) < 3600  # by the service's clock


@pytest.mark.parametrize(
    "changed", [{"project": "q"}, {"accelerator_type": "v2-8", "project": "q", "usd_per_hour": 1.0}]
)
def test_a_machine_of_another_project_trains_on_and_is_deleted_there(record, fake, changed):
    """It was called deleted while it was READY."""
    rent(record, fake)
    looks, said = iter(range(100)), []
    stop = lambda: Stop.DELETE if next(looks) > 5 else Stop.NO  # noqa: E731
    state = launch(replace(record, **changed), fake, stop, said)
    assert said[0].startswith("v3-8 (spot, tpu service, project p, 2.00 USD/h) trains on: next v")
    assert (state.phase, fake.node_names(), len(fake.created)) == (Phase.ENDED, [], 1)
    assert state.machine.usd_per_hour == 2.0


def test_the_next_machine_is_as_the_record_says_once_the_last_one_is_gone(record, fake):
    rent(record, fake)
    fake.preempt("run-1")  # stays listed, in its project
    changed = replace(record, project="q", accelerator_type="v2-8", usd_per_hour=1.0)
    state = rent(changed, fake)
    assert fake.node_names() == [f"projects/q/locations/{ZONE}/nodes/run-1"]
    assert (state.machine.project, state.machine.usd_per_hour, state.attempt) == ("q", 1.0, 2)


def test_down_finds_a_machine_in_the_project_that_its_run_had(record, fake):
    rent(record, fake)
    files = RunFiles(record)
    files.save_run()
    down = ["down", "--project=q", "--yes"]
    assert support.run(down, fake)[1]["deleted"] == []
    status, result = support.run([*down, f"--bucket={record.bucket}"], fake)
    assert (status, len(result["deleted"]), fake.node_names()) == (0, 1, [])


def test_a_machine_that_was_requested_and_is_no_longer_wanted_is_removed_first():
    changed = replace(RECORD, accelerator_type="v2-8")
    tpu = Tpu("run", "zone-a", Presence.PENDING, "CREATING", labels=labels_of(RECORD, 1))
    state = RunState(Phase.CREATING, zone="zone-a", attempt=1, machine=Machine.of(RECORD))
    seen = Observation(5.0, 5.0, 0.0, tpus=[tpu])
    assert decide(state, seen, RECORD).state.phase is Phase.CREATING
    assert decide(state, seen, replace(RECORD, usd_per_hour=9.0)).state.phase is Phase.CREATING
    assert decide(state, seen, changed).state.phase is Phase.REMOVING
    ready = replace(seen, tpus=[replace(tpu, presence=Presence.READY)])
    assert decide(state, ready, changed).state.phase is Phase.RUNNING


def test_only_the_machine_that_was_requested_last_is_adopted():
    old = Tpu("run", "zone-a", Presence.READY, "READY", labels=labels_of(RECORD, 1))
    last = replace(old, zone="zone-b", labels=labels_of(RECORD, 2))
    state = RunState(Phase.IDLE, zone="zone-b", attempt=2, machine=Machine.of(RECORD))
    decision = decide(state, Observation(5.0, 5.0, 0.0, tpus=[old, last]), RECORD)
    assert (decision.state.zone, decision.deletions) == ("zone-b", (old,))
    decision = decide(state, Observation(5.0, 5.0, 0.0, tpus=[old]), RECORD)
    assert decision.state.phase is Phase.REMOVING


def test_a_zone_of_the_last_service_that_does_not_answer_holds_the_next_machine_up():
    state = RunState(used_zones=("zone-x",), attempt=1, machine=Machine.of(RECORD))
    fault = ServiceFault(Kind.UNAVAILABLE, "no answer")
    seen = Observation(5.0, 5.0, 0.0, unlisted={"zone-x": fault}, checkpoint_step=-1)
    moved = replace(RECORD, project="q")
    assert decide(state, seen, RECORD).rents and not decide(state, seen, moved).rents
    assert accrue(state, seen, moved).trouble_seconds == 5.0  # for a day at most
    decision = decide(state, replace(seen, unlisted={}), moved)
    assert decision.rents and decision.state.used_zones == ("zone-a",)


def test_money_is_counted_at_the_price_at_which_a_machine_was_rented():
    cloud = SimulatedCloud(TRAINER, lifetimes(4.0))
    prices = [2.4, 0.6]
    for price, hours in zip(prices, (2.0, 99.0), strict=True):
        record = replace(RECORD, usd_per_hour=price)
        stop = lambda: Stop.DETACH if cloud.now >= hours * HOUR else Stop.NO  # noqa: B023, E731
        world = World(cloud, cloud, cloud.steady, cloud.wall, cloud.sleep, cloud.beat, stop)
        try:
            state = supervise(record, world)
        except Detached:
            continue
    spent = [(node.billed(cloud.now)) for node in cloud.past_nodes]
    expected = sum((end - begin) / HOUR * p for (begin, end), p in zip(spent, prices, strict=True))
    assert state.cost_usd == pytest.approx(expected, rel=0.02)


class Changing(History):
    """Each supervisor of it has other flags: price, zones, project and type."""

    def __init__(self, seed, service):
        super().__init__(seed, service)
        self._changes = random.Random(f"{service}/{seed}/changes")
        self.prices = {}
        create, cloud = self.cloud.create, self.cloud

        def noting(run, zone, attempt, metadata, limit):
            self.prices[attempt] = run.usd_per_hour
            return create(run, zone, attempt, metadata, limit)

        cloud.create = noting

    def _session(self):
        rng = self._changes
        zones = (*rng.sample(histories.ZONES, 3),)
        self.record = replace(
            self.record,
            usd_per_hour=rng.choice([0.3, 2.4, 9.6]),
            zones=zones,
            project=rng.choice(["p", "q"]),
            accelerator_type=rng.choice(["v2-8", "v3-8"]),
        )
        return super()._session()

    def broken(self, unending):
        nodes = [*self.cloud.past_nodes, *self.cloud.nodes]
        spent = late = 0.0
        for node in nodes:
            begin, end = node.billed(self.cloud.now)
            if end <= begin:  # never ready
                continue
            spent += (end - begin) / HOUR * self.prices[node.attempt]
            late += (2 * POLL + 91.0) / HOUR * self.prices[node.attempt]
        self.excess = spent - late - (self.record.max_usd or spent)
        limit, self.record = self.record, replace(self.record, max_usd=None)
        broken = super().broken(unending)  # counts money at one price
        self.record = limit
        return broken


@pytest.mark.parametrize("service", ["tpu", "queue"])
@pytest.mark.parametrize("seeds", [8, pytest.param(250, marks=pytest.mark.nightly)])
def test_no_limit_is_passed_whatever_the_flags_of_later_launches(service, seeds):
    for seed in range(seeds):
        history = Changing(seed, service)
        assert history.run() == [], seed
        assert history.excess <= 1e-6, (seed, history.excess)


def test_a_state_of_0_1_0_gets_its_facts_from_the_record_that_it_was_launched_with(record):
    files = RunFiles(record)
    files.save_run()
    files.save_state(RunState(Phase.RUNNING, attempt=1, zone=ZONE))
    assert prepare.machine_of(record) == Machine.of(record)
