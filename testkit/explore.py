"""Explore every interleaving, within bounds, of two supervisors of one run.

The supervisors run the real code of `_Supervisor` and `Lease`. Their lock, machines and bucket are
simulated. A turn (`_Turn`) is the execution of a supervisor up to its next pause. Each request in a
turn is an act. An act may succeed, fail, succeed although its answer is lost ("late"), or return a
wrong answer ("lies"). A process may fall asleep before an act that changes shared data, perhaps
forever. A process that wakes up repeats its turn, and its earlier acts return their recorded
answers. A state therefore contains only plain data. The search hashes states, and visits each state
once. It is breadth-first, so that the trace to a violation is as short as possible.

`walk` follows a single random path through the simulation for days, with any number of faults.

Time advances in ticks of one poll. `faults` limits the number of faults on a path. Faults are all
acts that do not succeed, malformed answers, deletions that are confirmed but not made, interrupts,
preemptions, lost files, and machines of other owners (also of a copied folder) with the run's name.
The second supervisor may start at any tick, possibly with a different record of the run. The clocks
of the second supervisor are wrong by hours.
"""

import collections
import contextlib
import copy
import hashlib
import random
import time
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import msgspec

from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.launch import supervise
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import Operation, make_labels
from bigbird_ja.launch.state import MAX_LIFETIME, RunState
from bigbird_ja.launch.supervise import Detached, Stop, SupervisorIO
from bigbird_ja.storage import lease as lease_module
from bigbird_ja.storage.decode import FORMAT_VERSION
from bigbird_ja.storage.lease import Holder, Lease
from testkit.explored import POLL, Cloud
from testkit.simulated_cloud import InProject, TrainerModel

ZONES = ("zone-a", "zone-b")
# Labels of machines that have the run's name but do not belong to the run.
FOREIGN = {
    "another's": {"owner": "someone-else"},
    "a copied folder's": make_labels(LaunchedRun("gs://copy", "run", "id-1"), 1),
}
_CREATIONS, _STOPS = ("stockout", "slow", "stuck", "dead"), ("delete", "detach")
_SERVICE = ("find", "create", "delete", "get_operation")
# Requests that read a file and parse it.
_READ = ("read_heartbeat", "read_exit_report", "load_state", "read_with_token")
_WRITTEN = ("save_state", "renew_machine", "replace_if")
_ACTS = (*_SERVICE, *_READ, *_WRITTEN)
_LIES = {"find": None, "time": None, "get_operation": Operation(done=False)}
_WORDS = {"create": _CREATIONS, "delete": ("internal", "ignored"), "stop": _STOPS, "monotonic": ()}
# Acts before which a process may fall asleep. They do not include "create": the process would send
# an outdated request to create a machine, and no check of the supervisor could prevent this.
_SLEEPS = ("delete", *_WRITTEN)


@dataclass(frozen=True)
class Bounds:
    """Maximum numbers of faults, ticks and processes, and settings of the simulated run."""

    faults: int = 1
    ticks: int = 12
    # Last step. The trainer makes one step per second, so that 600 steps take two polls of 300 s.
    target_step: int = 600
    polls: float = 6.0  # polls that --max_cost pays for
    processes: int = 2
    service: str = "tpu"
    queued: float = 0.0  # polls for which a request waits in a queue
    hours: float = 12.0  # polls that --max_hours allows
    # Whether the second supervisor's record of the run has a different project, machine type and
    # price than the first supervisor's record.
    changes: bool = False

    @cached_property
    def other(self):
        """Record of the run that the second supervisor uses."""
        changed = {"project": "q", "accelerator_type": "v2-8", "usd_per_hour": 0.25}
        return replace(self.run, **changed) if self.changes else self.run

    @cached_property
    def run(self):
        """Record of the run that the first supervisor uses. A machine costs a dollar per hour."""
        return LaunchedRun(
            bucket="gs://b",
            name="run",
            run_id="id-1",
            project="p",
            target_step=self.target_step,
            zones=ZONES,
            usd_per_hour=1.0,
            poll=POLL,
            lease=4 * POLL,
            max_seconds=self.hours * POLL,
            max_usd=self.polls * POLL / 3600,
            service=self.service,
            queued=bool(self.queued),
        )


@dataclass
class Process:
    """State of a supervisor's process between two acts.

    Attributes:
        offset: error of the clocks of the process in seconds.
        status: "away", "runs", "sleeps" or "over".
        memory: variables of the supervisor between two turns, None before it owns the lock.
        token: token of the supervisor's lock.
        past: answers to the earlier acts of an interrupted turn.
        has_looked: whether the supervisor has polled in the current tick.
    """

    name: str
    offset: float
    status: str = "away"
    memory: dict[str, Any] | None = None
    token: str | None = None
    past: tuple[Any, ...] = ()
    has_looked: bool = False
    # Version of the stored state that the process knows: "current", "old" if the other process has
    # saved a newer version, or "" if the process knows no version.
    version: str = ""


@dataclass
class System:
    """State of the simulated cloud and of the supervisors' processes."""

    bounds: Bounds
    cloud: Cloud
    processes: list[Process]
    faults: int

    def changed(self, cost):
        """Return a copy of the state that allows `cost` fewer faults."""
        processes = [copy.copy(process) for process in self.processes]
        return System(self.bounds, self.cloud.copy(), processes, self.faults - cost)

    def key(self):
        """Return a hash of all values on which the successors of this state depend."""
        names = ("lifetime", "interfere", "trainer", "run", "events")
        cloud = {name: value for name, value in vars(self.cloud).items() if name not in names}
        data = msgspec.msgpack.encode((cloud, self.processes, self.faults), enc_hook=repr)
        return hashlib.blake2b(data, digest_size=12).digest()


class _Asleep(BaseException):
    """Raised to suspend a process in the middle of a turn."""


class _TurnOver(BaseException):
    """Raised when a process pauses, which ends its turn."""


class _Turn:
    """One turn of a process, with the services, files and clocks that the process uses.

    Args:
        system: state that the turn changes.
        process: process of this system.
        script: outcomes of the next acts. All later acts succeed.
        pick: function that chooses the outcome of an act, in place of the script. Its arguments are
            the name of the act and the possible outcomes.
    """

    def __init__(self, system, process, script=(), pick=None):
        self._system, self._process, self._script = system, process, [*script]
        self._pick = pick or (lambda name, words: self._script.pop(0) if self._script else "ok")
        self._past, self._log = [*process.past], [*process.past]
        self.offered: list[tuple[str, ...]] = []
        self.told: list[str] = []  # Outcomes other than "ok" in this turn.
        self._looks = 0

    def live(self):
        """Run the process until it pauses, falls asleep or ends."""
        process, bounds = self._process, self._system.bounds
        run = bounds.run if process is self._system.processes[0] else bounds.other
        who = {"host": process.name, "id": process.name}
        owner = Holder(**who, pid=1, format_version=FORMAT_VERSION)
        silent, clocks = lambda text: None, (self.monotonic, self._wait)
        path, limit = "gs://bucket/lock.json", 1.5 * POLL
        lease = Lease(path, "busy", silent, limit, *clocks, owner, lambda: 0.0)
        lease._token = process.token
        io = SupervisorIO(
            tpus=InProject(self, run.project),
            files=self,
            monotonic=self.monotonic,
            wall=lambda: process.offset,
            sleep=self._pause,
            renew_lock=lease.renew,
            stop=self._stop,
            metadata=lambda state: {"state": state},
            connect=lambda service, project: InProject(self, project),
        )
        supervisor, process.has_looked = object.__new__(supervise._Supervisor), True
        try:
            if process.memory is None:
                lease.acquire()
                process.has_looked = False
                supervisor.__init__(run, io)
            else:
                for name, value in process.memory.items():
                    is_own = isinstance(value, list | dict)
                    setattr(supervisor, name, value.copy() if is_own else value)
                supervisor._run, supervisor._io = run, io
                supervisor.supervise()
                process.status = "over"
        except _Asleep:
            process.past = (*self._log,)
            return
        except _TurnOver:
            pass
        except (Detached, StorageError, BadInput) as error:
            # A BadInput must be the refusal of a busy lock or of a malformed file.
            is_refusal = str(error) == "busy" or "malformed" in str(error)
            assert not isinstance(error, BadInput) or is_refusal, error
            process.status = "over"
        process.past = ()
        if process.status == "over":
            with contextlib.suppress(StorageError):
                lease.release()
            process.memory = process.token = None
            return
        process.memory = {**vars(supervisor), "_run": None, "_io": None}
        process.token = lease._token

    def __getattr__(self, name):
        """Return a function that performs the request `name` to the service or the bucket."""
        return partial(self._act, name)

    def _act(self, name, *arguments, **more):
        if self._past:
            answer = self._past.pop(0)
        else:
            answer = self._answer(name, self._choose(name, arguments), arguments, more)
            self._log.append(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _choose(self, name, arguments):
        """Choose the outcome of an act, and record all its possible outcomes."""
        words = [*_WORDS.get(name, ()), *(["lies"] if name in _LIES else [])]
        words += ["queue_failed"] if name == "create" and self._system.bounds.queued else []
        words += ["fails", "late"] if name not in ("stop", "monotonic", "time") else []
        words += ["malformed"] if name in (*_SERVICE, *_READ) else []
        words += ["asleep"] if name in _SLEEPS else []
        self.offered.append(("ok", *words) if self._system.faults else ("ok",))
        word = self._pick(name, words)
        if word != "ok":
            self._system.faults -= 1
            zone = next((f" {one}" for one in arguments if one in ZONES), "")
            self.told.append(f"{name}{zone}: {word}")
        if word == "asleep":
            self._process.status = "sleeps"
            raise _Asleep
        return word

    def _answer(self, name, word, arguments, more):
        cloud, fault = self._system.cloud, StorageError(f"no {name}")
        if name in _SERVICE:
            kind = Kind.INTERNAL if word == "malformed" else Kind.UNAVAILABLE
            fault = ServiceFault(kind, f"{word} {name}")
        elif word == "malformed":
            return BadInput("malformed") if name != "read_with_token" else (b"malformed[", "0")
        if name == "stop":
            return Stop("no" if word == "ok" else word)
        if word in ("fails", "lies"):
            self._process.version = "" if name == "save_state" else self._process.version
            return fault if word == "fails" else _LIES[name]
        if name in ("load_state", "save_state") and not self._has_version(name, word):
            return False
        cloud.script, cloud.delete_script = [word], [word]
        try:
            answer = getattr(cloud, name)(*arguments, **more)
        except (ServiceFault, StorageError, FileNotFoundError) as error:
            return error
        finally:
            cloud.script, cloud.delete_script = [], []
        return fault if word in ("late", "malformed") else answer

    def _has_version(self, name, word):
        """Update the versions of the stored state that the processes know.

        Returns:
            False if the process saves a state of which it knows an old version, else True.
        """
        process, system = self._process, self._system
        if name == "save_state":
            if process.version == "old" and system.cloud.state is not None:
                process.version = ""
                return False
            for other in system.processes:
                other.version = other.version and "old"
        process.version = "" if word == "late" else "current"
        return True

    def monotonic(self):
        return self._act("monotonic") + self._process.offset

    def _wait(self, seconds):
        """Suspend the process, which waits for the lock, until the next tick."""
        if not self._past:
            self._log.append(None)
            raise _Asleep
        self._past.pop(0)

    def _pause(self, seconds):
        raise _TurnOver

    def _stop(self):
        self._looks += 1
        # On its second call, the supervisor polls again without a pause. Let the process take
        # another turn in the same tick.
        if self._looks > 1:
            self._process.has_looked = False
            raise _TurnOver
        return self._act("stop")


def _turns(system, index):
    """Yield every possible turn of a process, with the state after the turn."""
    scripts: list[tuple[str, ...]] = [()]
    while scripts:
        script = scripts.pop()
        new = system.changed(0)
        turn = _Turn(new, new.processes[index], script)
        lease_module.storage = turn
        turn.live()
        yield ", ".join([new.processes[index].name, *turn.told]), new
        for n in range(len(script), len(turn.offered)):
            answered = (*script, *["ok"] * (n - len(script)))
            scripts += [(*answered, word) for word in turn.offered[n][1:]]


def _incidents(cloud):
    """Yield events that no supervisor causes, each with a function that applies it to a cloud.

    The events are preemptions, lost files, and machines of other owners with the run's name.
    """
    for n, node in enumerate(cloud.nodes):
        if node.ends_at > cloud.now:
            dies = {"dies_at": max(cloud.now, node.ready_at)}
            yield f"preemption {node.zone}", lambda new, n=n, to=dies: vars(new.nodes[n]).update(to)
    for zone in {*ZONES} - {*cloud.foreign, *(node.zone for node in cloud.nodes)}:
        for whose, labels in FOREIGN.items():
            yield f"{whose} machine {zone}", lambda new, at={zone: labels}: new.foreign.update(at)
    for name in ("state", "last_heartbeat", "report", "lock"):
        if getattr(cloud, name) is not None:
            yield f"{name} is lost", lambda new, name=name: setattr(new, name, None)


def successors(system):
    """Yield all events that are possible in a state, each with the state after the event.

    After an event that is a fault, the state allows one fault fewer.
    """
    is_ready = True
    for index, process in enumerate(system.processes):
        if process.status == "runs" and not process.has_looked:
            is_ready = False
            yield from _turns(system, index)
        if process.status in ("away", "sleeps"):
            new = system.changed(0)
            new.processes[index].status = "runs"
            yield f"{process.name} {'begins' if process.status == 'away' else 'wakes'}", new
    if is_ready and system.faults:
        for label, change in _incidents(system.cloud):
            change((new := system.changed(1)).cloud)
            yield label, new
    if is_ready and system.cloud.now < system.bounds.ticks * POLL:
        new = system.changed(0)
        new.cloud.tick()
        for process in new.processes:
            process.has_looked = False
        yield "a poll passes", new


def begin(bounds):
    """Return the initial state, in which the first supervisor runs and no machine is rented."""
    trainer = TrainerModel(bounds.target_step, 1.0, POLL, 15.0, 60.0)
    cloud = Cloud(trainer, lease=bounds.run.lease, ended_timeout=POLL, run=bounds.run)
    cloud.service, cloud.queue_seconds = bounds.service, POLL * bounds.queued
    # `launch` stores this state before the supervisor starts.
    cloud.state = RunState()
    processes = [Process("A", 0.0, "runs"), Process("B", -5 * 3600.0)][: bounds.processes]
    return System(bounds, cloud, processes, bounds.faults)


def walk(bounds, seed):
    """Follow a random path for `bounds.ticks` polls, and then let every lease expire.

    Some acts fail for a while, others at random. Supervisors start, end, are killed between two
    turns, and start again.

    Returns:
        The names of the violated invariants, and the faults on the path.
    """
    rng, system, trace = random.Random(seed), begin(bounds), []
    cloud, system.faults = system.cloud, 10**9
    rarely, sometimes = rng.choice([0.0, 0.01, 0.1]), rng.choice([0.0, 0.01, 0.05])
    span = bounds.ticks * POLL
    troubles = [
        (rng.choice(_ACTS), start, start + rng.expovariate(20 / span))
        for start in (rng.uniform(0, span) for _ in range(rng.choice([0, 1, 2, 4])))
    ]

    def pick(name, words):
        if any(name == act and start <= cloud.now < end for act, start, end in troubles):
            return "fails"
        # `explore` covers these two outcomes. A random path leaves them out.
        words = [word for word in words if word not in ("asleep", "lies")]
        return rng.choice(words) if words and rng.random() < rarely else "ok"

    with _patched():
        while cloud.now < span:
            for process in system.processes:
                if process.status == "over" or rng.random() < sometimes / 2:
                    fresh = Process(process.name, process.offset)
                    vars(process).update(vars(fresh))  # The process has ended, or is killed.
                if process.status in ("away", "sleeps") and rng.random() < 0.05:
                    process.status = "runs"
                if process.status == "runs":
                    turn = _Turn(system, process, pick=pick)
                    lease_module.storage = turn
                    turn.live()
                    trace += [f"{cloud.now / POLL:.0f} {process.name} {told}" for told in turn.told]
            incidents = [*_incidents(cloud)] if rng.random() < sometimes else []
            for label, change in incidents and [rng.choice(incidents)]:
                change(cloud)
                trace.append(f"{cloud.now / POLL:.0f} {label}")
            cloud.tick()
            for process in system.processes:
                process.has_looked = False
            if broken := cloud.broken(bounds.run):
                return broken, trace
        cloud.advance(cloud.now + MAX_LIFETIME + bounds.run.lease + 86_400.0)
    left = any(node.ready_at <= cloud.now < node.ends_at for node in cloud.nodes)
    return ["a machine is billed at the end of all time"] * left, trace


@contextlib.contextmanager
def _patched():
    """Skip the formatting of log lines, which is slow.

    At its end, this context manager also restores `lease.storage`, which `explore` and `walk`
    replace.
    """
    storage, describe = lease_module.storage, supervise.describe
    supervise.describe = lambda event: ""
    try:
        yield
    finally:
        lease_module.storage, supervise.describe = storage, describe


@dataclass
class Found:
    """Result of an exploration, with one of the shortest traces to each violated invariant."""

    states: int = 0
    edges: int = 0
    seconds: float = 0.0  # processor time
    traces: dict[str, list[str]] = field(default_factory=dict)


def explore(bounds, stop_at_first=False):
    """Visit every state within the bounds, or stop at the first violated invariant."""
    found, began, first = Found(), time.process_time(), begin(bounds)
    waiting = collections.deque([(b"", first)])
    parents: dict[bytes, tuple[bytes, str]] = {b"": (b"", "")}
    with _patched():
        while waiting and not (stop_at_first and found.traces):
            here, system = waiting.popleft()
            for label, new in successors(system):
                found.edges += 1
                key = new.key()
                if key in parents:
                    continue
                parents[key] = (here, label)
                broken = new.cloud.broken(bounds.run)
                for name in broken:
                    found.traces.setdefault(name, _trace(parents, key))
                if not broken:
                    waiting.append((key, new))
    found.states, found.seconds = len(parents), time.process_time() - began
    return found


def _trace(parents, key):
    labels = []
    while key:
        key, label = parents[key]
        labels.append(label)
    return labels[::-1]
