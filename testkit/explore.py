"""Every interleaving, within bounds, of two supervisors of a run, their lock, machines and bucket.

The code that runs is the real one: `_Supervisor` with all of `decide`, and `Lease`. Each of their
requests is an act of `Process`; each act may answer, fail, answer late (it happened, and the answer
is lost) or lie, and before those that others see the process may fall asleep, perhaps for ever. A
turn that sleeps is replayed from its recorded answers, so a state is plain data: it is hashed, and
none is visited twice. Breadth first: the trace of a violation is a shortest one.

Time goes in ticks of one poll. `faults` bounds what may go wrong in a history, sleeps, preemptions,
lost files, interrupts and machines of others included; the second supervisor may begin at any tick.
Its clocks are hours off from the first one's, and from the service's.
"""

import contextlib
import copy
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from bigbird_ja.launch import supervise
from bigbird_ja.launch.record import (
    ATTEMPT_LABEL,
    ID_LABEL,
    RUN_LABEL,
    LaunchedRun,
    Operation,
    check_still_there,
)
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.state import LONGEST
from bigbird_ja.launch.supervise import Detached, Stop, World
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage import lease as lease_module
from bigbird_ja.storage.decode import FORMAT_VERSION
from bigbird_ja.storage.lease import Holder, Lease
from testkit.simulated_cloud import SimulatedCloud, TrainerModel

POLL = 300.0
ZONES = ("zone-a", "zone-b")
LOCK = "lock.json"
SLACK = 60.0 + 30.0 + 1.0  # the watcher's turn, and the service's deletion
FOREIGN = {  # labels of others' machines that have the run's name
    "another's": {"owner": "someone-else"},
    "a copied folder's": {RUN_LABEL: "run", ID_LABEL: "id-1", ATTEMPT_LABEL: "1"},
}
INVARIANTS = (
    "nothing foreign is touched",
    "nothing outlives its lease",
    "nothing is over budget by more than one poll",
    "a finished run never rents",
    "no two machines for longer than two polls",
)


@dataclass(frozen=True)
class Bounds:
    """How far to look."""

    faults: int = 1
    ticks: int = 12
    target_step: int = 600  # a step a second; beyond `max_polls` the budget ends the run
    max_polls: float = 6.0  # of --max_hours, and of --max_cost
    processes: int = 2

    @cached_property
    def run(self):
        """The record of the run, at a dollar an hour."""
        seconds = self.max_polls * POLL
        return LaunchedRun(
            *("gs://b", "run", "id-1", "p"),
            target_step=self.target_step,
            zones=ZONES,
            usd_per_hour=1.0,
            poll=POLL,
            lease=4 * POLL,
            max_seconds=2 * seconds,
            max_usd=seconds / 3600,
        )


class _Asleep(BaseException):
    """The process stands still in the middle of a turn."""


class _TurnOver(BaseException):
    """The process pauses, for so many seconds."""


@dataclass
class Process:
    """A supervisor: what it remembers between two turns, and the answers that this turn has had."""

    name: str
    offset: float  # of its clocks
    status: str = "away"  # away | runs | sleeps | over
    memory: dict[str, Any] | None = None  # None: it does not have the lock yet
    token: str | None = None
    past: tuple[Any, ...] = ()
    has_looked: bool = False  # in this tick


@dataclass
class System:
    """A state: the world, and those who act on it."""

    bounds: Bounds
    cloud: SimulatedCloud
    processes: list[Process]
    faults: int
    lock: tuple[bytes, str] | None = None  # content and token
    tokens: int = 0
    two_for: float = 0.0  # seconds in which two machines were there
    asked_for: dict[int, float] = field(default_factory=dict)  # by creation: how long it may live

    def copy(self):
        """A copy of which any part may be changed."""
        cloud = copy.copy(self.cloud)
        cloud.nodes = [copy.copy(node) for node in cloud.nodes]
        cloud.operations, cloud.foreign = dict(cloud.operations), dict(cloud.foreign)
        cloud.past_nodes, cloud.events = [], []
        new = copy.copy(self)
        new.cloud, new.asked_for = cloud, dict(self.asked_for)
        new.processes = [copy.copy(process) for process in self.processes]
        return new

    def key(self):
        """A hash of all that decides what may follow."""
        cloud = self.cloud
        parts = (
            *(cloud.now, cloud.nodes, cloud.saved_step, cloud.rented_seconds, cloud.foreign),
            *(cloud.operations, cloud.state, cloud.report, cloud.last_heartbeat),
            *(cloud.answered_at, self.lock, self.processes, self.faults, self.two_for),
        )
        data = msgspec.msgpack.encode(parts, enc_hook=repr)
        return hashlib.blake2b(data, digest_size=12).digest()

    def broken(self):
        """The invariants that do not hold."""
        cloud, run = self.cloud, self.bounds.run
        outlives = any(
            cloud.now
            > min(
                node.ready_at + self.asked_for[node.attempt],
                max(node.renewed_at, node.ready_at) + run.lease,
            )
            + SLACK
            for node in cloud.nodes
            if node.ends_at > cloud.now and node.ready_at <= cloud.now
        )
        checks = (
            cloud.foreign_touched,
            outlives,
            cloud.rented_seconds > run.max_usd * 3600 + POLL + SLACK,
            cloud.rented_finished,
            self.two_for > 2 * POLL,
        )
        return [name for name, is_broken in zip(INVARIANTS, checks, strict=True) if is_broken]


class _Turn:
    """One turn of a process: the services, files and clocks that it sees.

    Args:
        system: changed by it.
        process: one of the system's.
        script: how the next acts go; those after them are answered.
    """

    def __init__(self, system, process, script):
        self._system, self._process = system, process
        self._past, self._log, self._script = list(process.past), list(process.past), [*script]
        self.offered: list[tuple[str, ...]] = []
        self.told: list[str] = []  # what went wrong
        self._looks = 0

    def live(self):
        """Runs the process until it pauses, falls asleep or ends."""
        process, run = self._process, self._system.bounds.run
        name = process.name
        owner = Holder(
            host=name, machine=name, pid=1, started=1, id=name, format_version=FORMAT_VERSION
        )
        lease = Lease(LOCK, "busy", lambda text: None, 1.5 * POLL, self.steady, self._wait, owner)
        lease._wall = lambda: 0.0
        lease._token = process.token
        beat, stop = lease.renew, self._stop
        world = World(self, self, self.steady, self._wall, self._pause, beat, stop)
        process.has_looked = True
        try:
            if process.memory is None:
                lease.acquire()
                process.has_looked = False
                supervisor = supervise._Supervisor(run, world)
            else:
                supervisor = object.__new__(supervise._Supervisor)
                memory = {
                    key: value.copy() if isinstance(value, list | dict) else value
                    for key, value in process.memory.items()
                }
                vars(supervisor).update(memory, _run=run, _world=world)
                supervisor.supervise()
                process.status = "over"
        except _Asleep:
            process.past = (*self._log,)
            return
        except _TurnOver:
            pass
        except (Detached, StorageError):  # a lost lease is one
            process.status = "over"
        except BadInput as error:
            assert str(error) == "busy", error
            process.status = "over"
        if process.status == "over":
            with contextlib.suppress(StorageError):
                lease.release()
            process.memory, process.token, process.past = None, None, ()
            return
        memory = {k: v for k, v in vars(supervisor).items() if k not in ("_run", "_world")}
        process.memory, process.token, process.past = memory, lease._token, ()

    def _act(self, name, act: Callable[[], Any], fault=None, words=(), sleeps=False):
        """Takes an answer from those that the turn has had, or lets the act happen."""
        if self._past:
            answer = self._past.pop(0)
        else:
            words = (*(("fails", "late") if fault else ()), *words, *(["asleep"] if sleeps else []))
            self.offered.append(("ok", *words) if self._system.faults else ("ok",))
            word = self._script.pop(0) if self._script else "ok"
            if word != "ok":
                self._system.faults -= 1
                self.told.append(f"{name}: {word}")
            if word == "asleep":
                self._process.status = "sleeps"
                raise _Asleep
            try:
                if word == "fails":
                    raise fault
                answer = act(word) if words and word not in ("ok", "late") else act()
                if word == "late":
                    raise fault
            except (ServiceFault, StorageError, FileNotFoundError) as error:
                answer = error
            self._log.append(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    # --- clocks and the terminal

    def steady(self):
        return self._act("clock", lambda: self._system.cloud.now) + self._process.offset

    def _wall(self):
        return self._system.cloud.wall() + self._process.offset

    def _wait(self, seconds):
        """Waits for the next tick, while it takes the lock."""
        if self._past:
            self._past.pop(0)
            return
        self._log.append(None)
        raise _Asleep

    def _pause(self, seconds):
        raise _TurnOver

    def _stop(self):
        self._looks += 1
        if self._looks > 1:  # no pause: it looks again at once
            self._process.has_looked = False
            raise _TurnOver
        words = (Stop.DELETE.value, Stop.DETACH.value)
        return Stop(self._act("stop", lambda word="no": word, words=words))

    # --- the service

    def _ask(self, name, act, *words, sleeps=False):
        fault = ServiceFault(Kind.UNAVAILABLE, f"no {name}")
        return self._act(name, act, fault, words, sleeps)

    def list(self, zone):
        cloud = self._system.cloud
        return self._act(
            f"list {zone}",
            lambda word="": [] if word else cloud.list(zone),
            ServiceFault(Kind.UNAVAILABLE, "no list"),
            ("shows nothing",),
        )

    def find(self, zone, name):
        cloud = self._system.cloud
        show = lambda word="": None if word else cloud.find(zone, name)  # noqa: E731
        return self._ask(f"find in {zone}", show, "shows nothing")

    def time(self):
        return self._ask("time", self._system.cloud.time)

    def create(self, run, zone, attempt, metadata, limit):
        def create(word="ok"):
            cloud.script = [word]
            before = cloud.creations
            try:
                return cloud.create(run, zone, attempt, metadata, limit)
            finally:
                if cloud.creations > before:
                    stored = cloud.state.machine_limit if cloud.state else LONGEST
                    self._system.asked_for[attempt] = min(stored, LONGEST)

        cloud = self._system.cloud
        words = ("stockout", "slow", "stuck", "dead")
        # It never sleeps here: of a request that is on its way no check can know any more.
        return self._ask(f"create in {zone}", create, *words)

    def delete(self, tpu):
        def delete(word="ok"):
            there = check_still_there(cloud, tpu)
            cloud.foreign_touched += there.run_dir != self._system.bounds.run.run_dir
            cloud.delete_script = [word]
            return cloud.delete(tpu)

        cloud = self._system.cloud
        return self._ask(f"delete in {tpu.zone}", delete, "internal", sleeps=True)

    def operation(self, name):
        cloud = self._system.cloud
        look = lambda word="": Operation(False) if word else cloud.operation(name)  # noqa: E731
        return self._ask("operation", look, "not done")

    # --- the bucket

    def _store(self, name, act, sleeps=False):
        return self._act(name, act, StorageError(f"no {name}"), sleeps=sleeps)

    def heartbeat(self):
        return self._store("heartbeat", self._system.cloud.heartbeat)

    def exit_report(self):
        return self._store("exit report", self._system.cloud.exit_report)

    def log_tail(self):
        return ""

    def checkpoint_step(self):
        return self._store("checkpoints", self._system.cloud.checkpoint_step)

    def load_state(self):
        return self._store("load state", lambda: self._system.cloud.state)

    def save_state(self, state):
        def save():
            self._system.cloud.state = state

        self._store("save state", save, sleeps=True)

    def append_event(self, event):
        pass

    def renew_machine(self, attempt, wall):
        cloud = self._system.cloud
        self._store("renew machine", lambda: cloud.renew_machine(attempt, wall), sleeps=True)

    # --- the lock's file, for `Lease`

    def _put(self, content):
        system = self._system
        system.tokens += 1
        token = f"{self._process.name}{system.cloud.now}{system.tokens % 4}"
        system.lock = (content, token)
        return token

    def create_exclusive(self, path, content):
        def create():
            return self._system.lock is None and bool(self._put(content))

        return self._store("create lock", create)

    def read_with_token(self, path, most=0):
        def read():
            if self._system.lock is None:
                raise FileNotFoundError(path)
            return self._system.lock

        return self._store("read lock", read)

    def replace_if(self, path, content, token):
        def put():
            lock = self._system.lock
            return self._put(content) if lock is not None and lock[1] == token else None

        return self._store("renew lock", put, sleeps=True)

    def delete_if(self, path, token):
        def delete():
            if self._system.lock is not None and self._system.lock[1] == token:
                self._system.lock = None

        return self._store("release lock", delete)


def _turns(system, index):
    """Every way in which a process's turn may go."""
    scripts: list[tuple[str, ...]] = [()]
    while scripts:
        script = scripts.pop()
        new = system.copy()
        process = new.processes[index]
        turn = _Turn(new, process, script)
        lease_module.storage = turn
        turn.live()
        yield ", ".join([process.name, *turn.told]), new
        for n in range(len(script), len(turn.offered)):
            answered = (*script, *["ok"] * (n - len(script)))
            scripts += [(*answered, word) for word in turn.offered[n][1:]]


def _changed(system, label, change, cost=1):
    new = system.copy()
    new.faults -= cost
    change(new)
    return label, new


def _incidents(system):
    """What happens without a supervisor: machines are preempted, files lost, names taken."""
    if not system.faults:
        return
    for n, node in enumerate(system.cloud.nodes):
        if node.ends_at > system.cloud.now:

            def preempt(new, n=n):
                new.cloud.nodes[n].dies_at = max(new.cloud.now, new.cloud.nodes[n].ready_at)

            yield _changed(system, f"preemption in {node.zone}", preempt)
    for zone in ZONES:
        if zone not in system.cloud.foreign and all(n.zone != zone for n in system.cloud.nodes):
            for whose, labels in FOREIGN.items():

                def take(new, zone=zone, labels=labels):
                    new.cloud.foreign[zone] = labels

                yield _changed(system, f"{whose} machine in {zone}", take)
    if system.cloud.last_heartbeat is not None:

        def lose(new):
            new.cloud.last_heartbeat = None

        yield _changed(system, "heartbeat.json is lost", lose)
    if system.lock is not None:
        yield _changed(system, "the lock is lost", lambda new: setattr(new, "lock", None))


def _tick(new):
    new.cloud.advance(new.cloud.now + POLL)
    alive = [node for node in new.cloud.nodes if node.ends_at > new.cloud.now]
    new.two_for = new.two_for + POLL if len(alive) > 1 else 0.0
    for process in new.processes:
        process.has_looked = False


def successors(system):
    """All pairs of what may happen next, and the state after it."""
    is_ready = True
    for index, process in enumerate(system.processes):
        if process.status == "runs" and not process.has_looked:
            is_ready = False
            yield from _turns(system, index)
        if process.status in ("away", "sleeps"):
            word = "begins" if process.status == "away" else "wakes"

            def begin(new, index=index):
                new.processes[index].status = "runs"

            yield _changed(system, f"{process.name} {word}", begin, 0)
    if is_ready:
        yield from _incidents(system)
        if system.cloud.now < system.bounds.ticks * POLL:
            yield _changed(system, "a poll passes", _tick, 0)


def begin(bounds):
    """The first state: the first supervisor runs, and nothing is rented."""
    cloud = SimulatedCloud(
        TrainerModel(bounds.target_step, 1.0, POLL, 15.0, 60.0),
        lease=bounds.run.lease,
        ended_patience=POLL,
        run=bounds.run,
    )
    names = "ABC"[: bounds.processes]
    processes = [Process(name, n * -5 * 3600.0) for n, name in enumerate(names)]
    processes[0].status = "runs"
    return System(bounds, cloud, processes, bounds.faults)


@dataclass
class Found:
    """What an exploration has visited, and the shortest trace to each broken invariant."""

    states: int = 0
    edges: int = 0
    seconds: float = 0.0  # of processor time
    traces: dict[str, list[str]] = field(default_factory=dict)


def explore(bounds, stop_at_first=False, most_seconds=math.inf):
    """Visits every state within the bounds.

    Args:
        stop_at_first: at the first broken invariant.
        most_seconds: of processor time, after which it raises TimeoutError: nothing is proved then.
    """
    found, began = Found(), time.process_time()
    storage, describe = lease_module.storage, supervise.describe
    supervise.describe = lambda event: ""  # for people, and slow
    first = begin(bounds)
    parents: dict[bytes, tuple[bytes, str]] = {first.key(): (b"", "")}
    level = [(first.key(), first)]
    try:
        while level:
            following = []
            for here, system in level:
                for label, new in successors(system):
                    found.edges += 1
                    key = new.key()
                    if key in parents:
                        continue
                    parents[key] = (here, label)
                    broken = new.broken()
                    for name in broken:
                        found.traces.setdefault(name, _trace(parents, key))
                    if broken and stop_at_first:
                        return found
                    if not broken:
                        following.append((key, new))
                if time.process_time() - began > most_seconds:
                    raise TimeoutError(f"{len(parents):,} states in {most_seconds:.0f} s, and more")
            level = following
        return found
    finally:
        lease_module.storage, supervise.describe = storage, describe
        found.states, found.seconds = len(parents), time.process_time() - began


def _trace(parents, key):
    labels = []
    while key:
        key, label = parents[key]
        labels.append(label)
    return labels[-2::-1]
